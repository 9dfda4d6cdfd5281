#!/usr/bin/env bash
# Makes a release from the commit: wheels, source distribution, bills of materials, provenance, signatures; then verifies it.
#   tools/release/release.sh cuda|cpu|cuda-arm64|cpu-arm64 DIST [VERSION ...]     Python versions, default: 3.12 (abi3) 3.11 3.10
# Work files, kept for the next run: build/release. `make release` runs this. docs/guides/release.md describes the result.
set -euo pipefail
cd "$(dirname "$0")/../.."
variant=$1
dist=$2
shift 2
versions=("$@")
[ ${#versions[@]} -gt 0 ] || versions=(3.12 3.11 3.10)
work=build/release
if [ -n "$(git status --porcelain --untracked-files=no)" ] && [ -z "${ROBOCACHE_DIRTY:-}" ]; then
    echo "release: the checkout has changes that are not committed; commit them (ROBOCACHE_DIRTY=1 for a trial)" >&2
    exit 1
fi
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
export SOURCE_DATE_EPOCH
mkdir -p "$work"

tools/release/wheels.sh "$work" "$variant" "${versions[@]}"
rm -rf "$dist" && mkdir -p "$dist"
finish=()
[[ $variant != cuda* ]] || finish+=(--cuda)
[[ $variant != *-arm64 ]] || finish+=(--tag manylinux_2_28_aarch64)
for raw in "$work/$variant"/raw/*.whl; do
    python3 tools/release/finish_wheel.py "$raw" "$dist" "${finish[@]}"
done
PATH=$PWD/$work/venv-${versions[0]}/bin:$PATH tools/release/sdist.sh "$work" "$dist"

tools/release/packages.sh cosign "$work/cosign"
export COSIGN=$PWD/$work/cosign/usr/bin/cosign PYTHON=$PWD/$work/check/bin/python
if [ ! -e "$work/check/.ready" ]; then
    python3.11 -m venv "$work/check"
    "$PYTHON" -m pip install --quiet --no-deps --require-hashes -r tools/release/locks/check.lock 2>&1 | grep -v 'WARNING: Location' || true
    touch "$work/check/.ready"
fi
python3 tools/release/provenance.py "$commit" "$variant" >"$work/predicate.json"
tools/release/sign.sh "$dist" "$work/predicate.json" "$COSIGN"
tools/verify_release.sh "$dist" "$dist/release.pub" "$commit"
ls -l "$dist"
