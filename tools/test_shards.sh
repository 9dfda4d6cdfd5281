#!/bin/bash
# Runs all tests in parallel processes, each of which takes the next test (tests/project/shards.py); then one at a time
# those that measure time or need the memory of a whole GPU. Prints the failures; logs stay in build/test_shards.
# Usage: tools/test_shards.sh PYTHON [arguments of pytest]
set -u
python=$1
shift
shards=${ROBOCACHE_SHARDS:-$(nproc)}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}  # of PyTorch; else every shard has as many threads as there are cores
logs=build/test_shards
rm -rf "$logs" && mkdir -p "$logs"
run() { # NAME MARKERS [arguments]
    local name=$1 markers=$2
    shift 2
    "$python" -m pytest -q --durations=5 -p no:cacheprovider --continue-on-collection-errors -m "$markers" "$@" >"$logs/$name.log" 2>&1
    local code=$?
    # 5: no test was left for this shard
    [ $code -eq 0 ] || [ $code -eq 5 ] || { sed -n '/^=* \(FAILURES\|ERRORS\)/,$p' "$logs/$name.log" && touch "$logs/failed"; }
    echo "$name: $(tail -n 1 "$logs/$name.log")"
}
echo "$shards shards"
for ((i = 0; i < shards; ++i)); do
    ROBOCACHE_SHARD=$PWD/$logs/next run "shard $i" "not alone and not huge" "$@" &
done
wait
run alone "alone or huge" "$@"
[ ! -e "$logs/failed" ]
