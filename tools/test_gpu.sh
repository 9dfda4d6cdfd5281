#!/bin/bash
# All tests on a machine with a GPU: in shards side by side, then alone what measures or needs the memory of the whole
# GPU. Logs stay in build/test_gpu. Usage: tools/test_gpu.sh PYTHON [arguments of pytest]
set -u
python=$1
shift
shards=${ROBOCACHE_SHARDS:-$(nproc)}
logs=build/test_gpu
rm -rf "$logs" && mkdir -p "$logs"
run() { # NAME MARKERS [arguments]
    local name=$1 markers=$2
    shift 2
    "$python" -m pytest -q -p no:cacheprovider --continue-on-collection-errors -m "$markers" "$@" >"$logs/$name.log" 2>&1
    local code=$?
    echo "$name: $(tail -1 "$logs/$name.log")"
    # 5: no test was left for this shard
    [ $code -eq 0 ] || [ $code -eq 5 ] || { grep -E '^(FAILED|ERROR)' "$logs/$name.log"; touch "$logs/failed"; }
}
echo "test-gpu: $shards shards"
for ((i = 0; i < shards; ++i)); do
    ROBOCACHE_SHARD=$i/$shards run "shard $i" "not alone and not huge" "$@" &
done
wait
run alone "alone or huge" "$@"
[ ! -e "$logs/failed" ]
