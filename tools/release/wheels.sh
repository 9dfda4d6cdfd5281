#!/usr/bin/env bash
# Compiles the wheels of one variant from a clean copy of the commit: one per Python version, one build folder for all of them.
#   tools/release/wheels.sh WORK cuda|cpu VERSION ...      for example build/release cuda 3.12 3.11 3.10
# WORK/<variant>/raw receives wheels with debug information and the tag linux_x86_64; finish_wheel.py makes them ready.
# The bytes depend on the commit and the locked tools only: times come from the commit, and no path of WORK gets into a file.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mkdir -p "$1" && cd "$1" && pwd)
variant=$2
shift 2

commit=$(git -C "$root" rev-parse HEAD)
tree=$(git -C "$root" stash create)  # changes that are not committed; a release has none, and release.sh refuses them
SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct "$commit")
export SOURCE_DATE_EPOCH PYTHONHASHSEED=0 LC_ALL=C.UTF-8 TZ=UTC
source=$work/source
if [ "$(cat "$source/.commit" 2>/dev/null)" != "${tree:-$commit}" ]; then
    rm -rf "$source" && mkdir -p "$source"
    git -C "$root" archive --format=tar "${tree:-$commit}" | tar -x -C "$source"
    echo "${tree:-$commit}" >"$source/.commit"
fi
"$here/compiler/sysroot.sh" amd64 "$work/amd64"
jax=$work/jax_headers
if [ ! -d "$jax/jaxlib/include" ]; then
    python3 -m pip download --quiet --no-deps --require-hashes --only-binary=:all: --python-version 3.11 -r "$here/locks/jax_headers.lock" -d "$jax" 2>&1 | grep -v 'WARNING: Location' || true
    python3 -m zipfile -e "$jax"/jaxlib-*.whl "$jax/all" && mkdir -p "$jax/jaxlib" && mv "$jax/all/jaxlib/include" "$jax/jaxlib/include"
    rm -rf "$jax/all"
fi

find_python() { # the interpreter of a version: on the PATH, or of pyenv
    local found
    found=$(compgen -G "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1.*/bin/python" | sort -V | tail -n 1) || true
    echo "${found:-$(command -v "python$1" || { echo "wheels: Python $1 is missing" >&2; exit 1; })}"
}

map="-ffile-prefix-map=$work=."
export CXX=$work/amd64/bin/c++ CUDAHOSTCXX=$work/amd64/bin/c++ CXXFLAGS="-g1 $map" CUDAFLAGS="-Xcompiler=$map" LDFLAGS=-Wl,--build-id=sha1
[ "$variant" = cuda ] && cuda=ON || cuda=OFF
rm -rf "$work/$variant/raw"
for version in "$@"; do
    venv=$work/venv-$version
    if [ ! -e "$venv/.ready" ]; then
        "$(find_python "$version")" -m venv "$venv"
        "$venv/bin/python" -m pip install --quiet --no-deps --require-hashes -r "$here/locks/build.lock" 2>&1 | grep -v 'WARNING: Location' || true
        touch "$venv/.ready"
    fi
    PATH=$venv/bin:$PATH python3 "$root/tools/build_progress.py" "$work/$variant-$version.log" \
        "$venv/bin/python" -m pip wheel -v --no-build-isolation --no-deps --no-index --no-cache-dir -w "$work/$variant/raw" \
        --config-settings build-dir="$work/$variant/native" --config-settings install.strip=false --config-settings cmake.define.ROBOCACHE_CUDA=$cuda --config-settings cmake.define.ROBOCACHE_JAX=ON \
        --config-settings cmake.define.ROBOCACHE_JAX_INCLUDE_DIR="$jax/jaxlib/include" --config-settings cmake.define.ROBOCACHE_RELEASE_ARCHITECTURES=ON "$source"
done
