"""The repository, and the folders whose modules tests import by name: importing this extends sys.path."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
GOLDEN_DIRTY = TESTS / "sources" / "reading" / "golden_dirty"
FUZZ = TESTS / "fuzz" / "adapters"

OWN = (GOLDEN_DIRTY, FUZZ)  # packages and programs whose modules have names of their own
FOLDERS = [str(folder) for folder in sorted({path.parent for path in TESTS.rglob("*.py")}) if folder not in OWN]
sys.path[:0] = [folder for folder in FOLDERS if folder not in sys.path]
