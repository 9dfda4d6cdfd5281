#!/usr/bin/env bash
# Prepares this checkout: system packages where missing (Debian, as root), then a virtual environment in .venv.
#   tools/setup.sh <virtual environment> <requirements file>
set -euo pipefail
venv=$1
requirements=$2

missing=()
command -v g++ >/dev/null || missing+=(g++)
command -v pkg-config >/dev/null || missing+=(pkgconf)
command -v nm >/dev/null || missing+=(binutils)
[ -e /usr/include/gtest/gtest.h ] || [ -e /usr/local/include/gtest/gtest.h ] || missing+=(libgtest-dev)
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
python3 - <<'PY' || missing+=(python3-dev)
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))
PY

if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "setup: installing ${missing[*]}"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
    else
        echo "setup: these packages are missing: ${missing[*]}" >&2
        echo "setup: install them (Debian: sudo apt-get install ${missing[*]}), then run the same command again" >&2
        exit 1
    fi
fi
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "setup: Python 3.10 or newer is needed, python3 is $(python3 --version)" >&2
    exit 1
}

echo "setup: creating $venv (a few minutes the first time)"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --upgrade pip 2>&1 | { grep -v 'WARNING: Location' || true; }
"$venv/bin/python" -m pip install --quiet -r "$requirements" 2>&1 | { grep -v 'WARNING: Location' || true; }
touch "$venv/.ready"
