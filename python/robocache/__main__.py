"""``python -m robocache``: the command ``robocache`` where its script is not on the PATH."""

import sys

from ._cli import main

if __name__ == "__main__":
    sys.exit(main())
