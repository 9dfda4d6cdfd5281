#!/usr/bin/env bash
# Builds the fuzz targets of the cache and runs them side by side; what they find stays in build/fuzz.
#   tools/fuzz.sh <seconds for each target> [<target> ...]
# With clang: libFuzzer. It is installed where it is missing (Debian, as root); where it cannot be, a plain driver runs.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift
[ $# -gt 0 ] || set -- manifest shard reader

has_libfuzzer() {
    command -v clang++ >/dev/null || return 1
    echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
        clang++ -fsanitize=fuzzer,address -x c++ - -o /dev/null 2>/dev/null
}

if ! has_libfuzzer && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "fuzz: installing clang"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq clang >/dev/null; } ||
        echo "fuzz: clang could not be installed" >&2
fi
compiler=c++
if has_libfuzzer; then compiler=clang++; else echo "fuzz: no clang with libFuzzer here, the plain driver runs"; fi

# A folder of its own for each compiler: CMake does not change the compiler of a folder without losing what was set.
build=build/fuzz
[ $compiler = clang++ ] || build=build/fuzz_plain
cmake --preset fuzz --log-level=WARNING -B $build -DCMAKE_CXX_COMPILER=$compiler
cmake --build $build --target fuzz_targets
cd $build
tests/fuzz/make_seeds seeds

# The limit for one input is by the clock: on a busy machine an input of a millisecond may wait for seconds.
pids=()
for target in "$@"; do
    if [ $compiler = clang++ ]; then
        tests/fuzz/fuzz_$target -max_total_time="$seconds" -rss_limit_mb=2560 -timeout=60 -print_final_stats=1 \
            -artifact_prefix="found_${target}_" -dict=../../tests/fuzz/json.dict seeds/$target >fuzz_$target.log 2>&1 &
    else
        tests/fuzz/fuzz_$target "$seconds" seeds/$target >fuzz_$target.log 2>&1 &
    fi
    pids+=($!)
done

failed=0
for target in "$@"; do
    if wait "${pids[0]}"; then
        echo "fuzz: $target: nothing found in $seconds s; $(grep -aE 'DONE|runs$' fuzz_$target.log | tail -1)"
    else
        failed=1
        tail -n 60 fuzz_$target.log
        echo "fuzz: $target FAILED; $build/fuzz_$target.log has all, found_${target}_* the input"
    fi
    pids=("${pids[@]:1}")
done
exit $failed
