#!/usr/bin/env bash
# Builds the wheels and the source distribution twice in different folders, without ccache, and compares SHA-256; exit code 1 if they differ.
#   tools/release/reproduce.sh cpu|cuda|cpu-arm64|cuda-arm64 [VERSION ...]      Python versions, default: 3.12 3.11 3.10
# ROBOCACHE_REPRODUCED=FILE: also writes commit, date, command and the hashes of both builds there, as JSON.
set -euo pipefail
cd "$(dirname "$0")/../.."
variant=$1
shift
versions=("$@")
[ ${#versions[@]} -gt 0 ] || versions=(3.12 3.11 3.10)
if [ -n "$(git status --porcelain --untracked-files=no)" ] && [ -z "${ROBOCACHE_DIRTY:-}" ]; then
    echo "reproduce: the checkout has changes that are not committed; commit them (ROBOCACHE_DIRTY=1 for a trial)" >&2
    exit 1
fi
folders=$(mktemp -d)
trap 'rm -rf "$folders"' EXIT
export CCACHE_DISABLE=1
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
export SOURCE_DATE_EPOCH
finish=()
[[ $variant != cuda* ]] || finish+=(--cuda)
[[ $variant != *-arm64 ]] || finish+=(--tag manylinux_2_28_aarch64)
for folder in "$folders/first" "$folders/second_with_a_longer_name"; do
    tools/release/wheels.sh "$folder" "$variant" "${versions[@]}"
    mkdir "$folder/dist"
    for raw in "$folder/$variant"/raw/*.whl; do
        python3 tools/release/finish_wheel.py "$raw" "$folder/dist" "${finish[@]}"
    done
    PATH=$folder/venv-${versions[0]}/bin:$PATH tools/release/sdist.sh "$folder" "$folder/dist"
    (cd "$folder/dist" && find . -type f | sed 's|^\./||' | LC_ALL=C sort | xargs sha256sum) | tee "$folder.sums"
done
[ -z "${ROBOCACHE_REPRODUCED:-}" ] || python3 - "$commit" "$variant ${versions[*]}" "$folders"/*.sums >"$ROBOCACHE_REPRODUCED" <<'PY'
import datetime, json, platform, sys

commit, words, *files = sys.argv[1:]
sums = [dict(reversed(line.split(maxsplit=1)) for line in open(name).read().splitlines()) for name in files]
today = datetime.datetime.now(datetime.timezone.utc).date()
made = {"command": f"tools/release/reproduce.sh {words}", "commit": commit, "date": str(today), "equal": sums[0] == sums[1]}
print(json.dumps(made | {"first": sums[0], "second": sums[1], "linux": platform.release()}, indent=1))
PY
cmp "$folders/first.sums" "$folders/second_with_a_longer_name.sums"
echo "reproduce: equal SHA-256 in both folders"
