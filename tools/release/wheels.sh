#!/usr/bin/env bash
# Compiles the wheels of one variant from a clean copy of the commit: one per Python version, one build folder for all of them.
#   tools/release/wheels.sh WORK cuda|cpu|cuda-arm64|cpu-arm64 VERSION ...      for example build/release cuda 3.12 3.11 3.10 3.13t
# WORK/<variant>/raw receives wheels with debug information and the tag linux_*; finish_wheel.py makes them ready.
# The variants for arm64 are cross-compiled against the headers of this machine's Python: pyconfig.h of Debian's Python 3.11 differs
# between amd64 and arm64 only in macros that extensions do not use (assembler of x86, wchar_t, the tier of support).
# The bytes depend on the commit and the locked tools only: times come from the commit, and no path of WORK gets into a file.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mkdir -p "$1" && cd "$1" && pwd)
variant=$2
shift 2
case $work in *[[:space:]]*) echo "wheels: the path of the work files must have no spaces, because compilers get it in options: $work" >&2; exit 1 ;; esac

commit=$(git -C "$root" rev-parse HEAD)
tree=$(git -C "$root" stash create)  # changes that are not committed; a release has none, and release.sh refuses them
SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct "$commit")
export SOURCE_DATE_EPOCH PYTHONHASHSEED=0 LC_ALL=C.UTF-8 TZ=UTC
source=$work/source
if [ "$(cat "$source.commit" 2>/dev/null)" != "${tree:-$commit}" ]; then
    rm -rf "$source" && mkdir -p "$source"
    git -C "$root" archive --format=tar "${tree:-$commit}" | tar -x -C "$source"
    echo "${tree:-$commit}" >"$source.commit"
fi
arch=amd64
[[ $variant != *-arm64 ]] || arch=arm64
"$here/compiler/sysroot.sh" $arch "$work/$arch"

take() { # FOLDER LOCK PART [OPTION OF PIP ...]: FOLDER receives a part of the one wheel in a lock file
    local folder=$1 lock=$2 part=$3
    shift 3
    [ ! -e "$folder/.complete" ] || return 0
    rm -rf "$folder" && mkdir -p "$folder"
    python3 -m pip download --quiet --no-deps --require-hashes --only-binary=:all: "$@" -r "$here/locks/$lock" -d "$folder/wheel" 2>&1 | grep -v 'WARNING: Location' || true
    python3 -m zipfile -e "$folder"/wheel/*.whl "$folder/all" && mv "$folder/all/$part" "$folder/${part##*/}"
    rm -rf "$folder/all" "$folder/wheel" && touch "$folder/.complete"
}
jax=$work/jax_headers
take "$jax" jax_headers.lock jaxlib/include --python-version 3.11

map="-ffile-prefix-map=$work=."
export CXX=$work/$arch/bin/c++ CUDAHOSTCXX=$work/$arch/bin/c++ CXXFLAGS="-g1 $map" CUDAFLAGS="-Xcompiler=$map" LDFLAGS=-Wl,--build-id=sha1
[ "${variant%-arm64}" = cuda ] && cuda=ON || cuda=OFF
options=(build-dir="$work/$variant/native" install.strip=false cmake.define.ROBOCACHE_CUDA=$cuda cmake.define.ROBOCACHE_JAX=ON
    cmake.define.ROBOCACHE_JAX_INCLUDE_DIR="$jax/include" cmake.define.ROBOCACHE_RELEASE_ARCHITECTURES=ON)
if [ $arch = arm64 ]; then
    export _PYTHON_HOST_PLATFORM=linux-aarch64
    options+=(cmake.define.CMAKE_SYSTEM_NAME=Linux cmake.define.CMAKE_SYSTEM_PROCESSOR=aarch64)
fi
if [ "$variant" = cuda-arm64 ]; then
    take "$work/cudart-arm64" cuda_arm64.lock nvidia/cu13/lib --platform manylinux2014_aarch64
    "$here/compiler/cuda_arm64.sh" "$work/cudart-arm64/lib" "$work/cuda-arm64-toolkit"
    export CUDACXX=$work/cuda-arm64-toolkit/bin/nvcc
fi
rm -rf "$work/$variant/raw"
for version in "$@"; do
    venv=$work/venv-$version
    if [ ! -e "$venv/.ready" ]; then
        python=$("$here/compiler/python.sh" "$version")
        "$python" -m venv "$venv"
        "$venv/bin/python" -m pip install --quiet --no-deps --require-hashes -r "$here/locks/build.lock" 2>&1 | grep -v 'WARNING: Location' || true
        touch "$venv/.ready"
    fi
    [ $arch = amd64 ] || export SETUPTOOLS_EXT_SUFFIX=.cpython-${version/./}-aarch64-linux-gnu.so  # of a module that is not abi3
    PATH=$venv/bin:$PATH python3 "$root/tools/build_progress.py" "$work/$variant-$version.log" \
        "$venv/bin/python" -m pip wheel -v --no-build-isolation --no-deps --no-index --no-cache-dir -w "$work/$variant/raw" \
        "${options[@]/#/--config-settings=}" "$source"
done
