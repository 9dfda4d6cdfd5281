#!/usr/bin/env bash
# Builds the C++ library and its tests for aarch64 and runs them under qemu. Left out: installed_library, whose user's
# project is configured with this machine's own compiler.
#   tools/release/try/arm64_tests.sh [FOLDER of the build; build/arm64]
# Debian 12: apt-get install g++-aarch64-linux-gnu qemu-user-static libgtest-dev
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
folder=${1:-$root/build/arm64}
triple=aarch64-linux-gnu
for program in $triple-g++ qemu-aarch64-static cmake ninja; do
    command -v $program >/dev/null || { echo "arm64_tests: $program is missing; the first lines of this file have the packages" >&2; exit 1; }
done
cross=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=$triple-gcc
    -DCMAKE_CXX_COMPILER=$triple-g++ "-DCMAKE_CROSSCOMPILING_EMULATOR=$(command -v qemu-aarch64-static);-L;/usr/$triple" --log-level=WARNING)
if [ ! -e "$folder/gtest/lib/cmake/GTest/GTestConfig.cmake" ]; then
    cmake -S /usr/src/googletest -B "$folder/gtest-build" "${cross[@]}" -DBUILD_GMOCK=OFF -DCMAKE_INSTALL_PREFIX="$folder/gtest"
    cmake --build "$folder/gtest-build" --target install >/dev/null
fi
cmake -S "$root" -B "$folder/tests" "${cross[@]}" -DROBOCACHE_CUDA=OFF -DROBOCACHE_TESTS=ON -DGTest_DIR="$folder/gtest/lib/cmake/GTest"
cmake --build "$folder/tests"
ctest --test-dir "$folder/tests" --output-on-failure --no-tests=error --exclude-regex installed_library
