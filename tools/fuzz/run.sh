#!/usr/bin/env bash
# Builds the fuzz targets of the cache and of the picture decoder and runs them in parallel; failing inputs stay in build/fuzz.
#   tools/fuzz/run.sh <seconds for each target> [<target> ...]
# Uses libFuzzer of clang, which is installed if missing (Debian, as root); without clang, a plain driver runs.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=$1
shift
[ $# -gt 0 ] || set -- manifest shard reader picture

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
if has_libfuzzer; then compiler=clang++; else echo "fuzz: no clang with libFuzzer; using the plain driver"; fi

# One build folder per compiler: changing the compiler of a CMake folder discards its settings.
build=build/fuzz
[ $compiler = clang++ ] || build=build/fuzz_plain
cmake --preset fuzz --log-level=WARNING -B $build -DCMAKE_CXX_COMPILER=$compiler
cmake --build $build --target fuzz_targets
cd $build
tests/fuzz/make_seeds seeds

# The timeout for one input is wall time and therefore generous: on a busy machine, a short input may wait for seconds.
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
        echo "fuzz: $target FAILED; log: $build/fuzz_$target.log, input: found_${target}_*"
    fi
    pids=("${pids[@]:1}")
done
exit $failed
