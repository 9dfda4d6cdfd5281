"""``python -m robocache``: the command ``robocache`` where its script is not on the PATH."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
