"""Numbers in the documents come from committed results."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def test_the_table_of_the_readme_is_the_committed_result():
    command = [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
