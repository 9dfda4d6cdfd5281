#!/usr/bin/env bash
# Prints the interpreter of a Python version: that of pyenv, else of the PATH.
#   tools/release/compiler/python.sh 3.12 | 3.13t ...      3.13t: without the GIL; pyenv calls it 3.13.0t
set -euo pipefail
number=${1%t}
found=$(compgen -G "${PYENV_ROOT:-$HOME/.pyenv}/versions/$number.*/bin/python" |
    grep -E "/${number/./\\.}\.[0-9]+${1#"$number"}/bin/python\$" | sort -V | tail -n 1) || true
[ -n "$found" ] || found=$(command -v "python$1") || { echo "python: Python $1 is missing" >&2; exit 1; }
echo "$found"
