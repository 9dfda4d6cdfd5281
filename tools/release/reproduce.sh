#!/usr/bin/env bash
# Builds the wheel for Python 3.12 twice in different folders, without ccache, and compares SHA-256; exit code 1 if they differ.
#   tools/release/reproduce.sh cpu|cuda
set -euo pipefail
cd "$(dirname "$0")/../.."
variant=$1
folders=$(mktemp -d)
trap 'rm -rf "$folders"' EXIT
export CCACHE_DISABLE=1
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
for folder in "$folders/first" "$folders/second_with_a_longer_name"; do
    tools/release/wheels.sh "$folder" "$variant" 3.12
    python3 tools/release/finish_wheel.py "$folder/$variant"/raw/*.whl "$folder/dist" $([ "$variant" = cuda ] && echo --cuda)
    (cd "$folder/dist" && find . -type f | LC_ALL=C sort | xargs sha256sum) | tee "$folder.sums"
done
cmp "$folders/first.sums" "$folders/second_with_a_longer_name.sums"
echo "reproduce: equal SHA-256 in both folders"
