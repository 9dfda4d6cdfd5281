#!/usr/bin/env bash
# Prepares this checkout: installs missing system packages (Debian, as root), then Python packages in a virtual environment.
#   tools/setup.sh <virtual environment> demo     packages for the first image of `make demo`, without a compiler
#   tools/setup.sh <virtual environment> build    a compiler and the packages that build the wheel
#   tools/setup.sh <virtual environment> policy   packages for examples/train_policy; robocache must be installed
#   tools/setup.sh <virtual environment> tests    packages for all other targets, from tools/requirements.lock
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
purpose=$2

missing=()
compiles=no
case $purpose in build | tests) compiles=yes ;; esac
[ $compiles = no ] || command -v g++ >/dev/null || missing+=(g++)
if [ "$purpose" = tests ]; then
    command -v pkg-config >/dev/null || missing+=(pkgconf)
    command -v nm >/dev/null || missing+=(binutils)
    [ -e /usr/include/gtest/gtest.h ] || [ -e /usr/local/include/gtest/gtest.h ] || missing+=(libgtest-dev)
fi
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
[ $compiles = no ] || python3 - <<'PY' || missing+=(python3-dev)
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

install() { # prints pip's messages, except its warnings about folders that a local index lacks
    local output code=0
    output=$("$venv/bin/python" -m pip install --quiet --no-warn-script-location "$@" 2>&1) || code=$?
    grep -v 'WARNING: Location' <<<"$output" | grep . >&2 || true
    return $code
}

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
if [ "$purpose" = demo ]; then
    echo "setup: installing the packages of the demo into $venv"
    install -r tools/requirements-demo.txt
    exit 0
elif [ "$purpose" = build ]; then
    echo "setup: installing the tools that build the wheel into $venv"
    install "pip>=23.1" -r tools/requirements-build.txt  # older ones, as that of Debian 12, have no option -C
    exit 0
elif [ "$purpose" = policy ]; then
    echo "setup: installing the packages of examples/train_policy into $venv"
    install "robocache[torch,mcap]" -r examples/train_policy/requirements.txt
    exit 0
fi

echo "setup: installing the packages of the tests into $venv (a few minutes the first time)"
install --upgrade pip
# The lock is for one Python and one platform. On others, or if the index lacks these versions, the newest versions that
# tools/requirements.txt allows are installed, without hashes. A file with a wrong hash always stops the setup.
wanted=$(sed -n 's/^# for \(.*\)$/\1/p' tools/requirements.lock)
here=$("$venv/bin/python" -c 'import platform as p, sys; print(f"CPython {sys.version_info[0]}.{sys.version_info[1]}, {p.system()} {p.machine()}")')
locked=no
if [ "$wanted" = "$here" ]; then
    if output=$(install --require-hashes --no-deps -r tools/requirements.lock 2>&1); then
        locked=yes
    elif grep -q 'DO NOT MATCH THE HASHES' <<<"$output"; then
        echo "$output" >&2
        exit 1
    else
        tail -n 3 <<<"$output" >&2
    fi
fi
if [ $locked = yes ]; then
    install -r tools/requirements-torch.txt
else
    echo "setup: tools/requirements.lock is for $wanted and an index that has its versions; this is $here."
    echo "setup: installing the newest versions that tools/requirements.txt allows, without hashes"
    install -r tools/requirements.txt
fi
touch "$venv/.ready"
