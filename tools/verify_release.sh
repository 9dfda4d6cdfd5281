#!/usr/bin/env bash
# Verifies a release offline: signature, hashes, provenance of every file, bills of materials, tags, hardening, stable ABI.
#   tools/verify_release.sh DIST [PUBLIC KEY [COMMIT]]      default: DIST/release.pub, which shows only that the files belong together
# COMMIT: the commit or tag of this checkout that the provenance must name.
# COSIGN and PYTHON: the tools; PYTHON has the packages of tools/release/locks/check.lock. Without COSIGN it must be on the PATH.
# ROBOCACHE_VERIFY=signatures leaves out what needs these packages.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dist=$(cd "$1" && pwd)
key=$(realpath "${2:-$dist/release.pub}")
cosign=${COSIGN:-cosign}
python=${PYTHON:-python3}
cd "$dist"
fail() { echo "verify: $1" >&2; exit 1; }
run() { # WHAT COMMAND ...: silent if it succeeds
    local what=$1 output
    shift
    output=$("$@" 2>&1) || { echo "$output" | tail -n 5 >&2; fail "$what"; }
}

run "the signature of SHA256SUMS is wrong" "$cosign" verify-blob --key "$key" --insecure-ignore-tlog=true --signature SHA256SUMS.sig SHA256SUMS
run "a file differs from SHA256SUMS" sha256sum --check --quiet --strict SHA256SUMS
# Links count as files too: a link could lead to a file that is not signed.
unlisted=$(comm -23 <(find . ! -type d ! -path ./SHA256SUMS ! -path ./SHA256SUMS.sig ! -path ./release.pub | sed 's|^\./||' | LC_ALL=C sort) <(cut -c 67- SHA256SUMS | LC_ALL=C sort))
[ -z "$unlisted" ] || fail "not in SHA256SUMS: $unlisted"
for file in *.whl *.tar.gz; do
    [ -e "$file" ] || continue
    run "the provenance of $file is missing or wrong" "$cosign" verify-blob-attestation --key "$key" --insecure-ignore-tlog=true \
        --type slsaprovenance1 --signature "$file.intoto.json" "$file"
done
run "the provenance is not that of this release" "$python" "$here/release/check/origin.py" . ${3:+"$3"}
echo "verify: signatures, hashes and provenance are right ($(cat RELEASE_KEY))"
[ "${ROBOCACHE_VERIFY:-all}" = all ] || exit 0

for file in *.whl; do
    run "$file: the bill of materials" "$python" "$here/release/check/bill.py" "$file.cdx.json" "$file"
    run "$file: hardening" "$python" "$here/release/check/native.py" "$file"
    case $file in
        *_x86_64.whl | *_aarch64.whl)
            shown=$("$python" -m auditwheel show "$file" 2>&1) || true
            grep -qE 'consistent with the following platform tag: *"?manylinux_2_([0-9]|1[0-9]|2[0-8])_' <<<"$(tr '\n' ' ' <<<"$shown")" ||
                { echo "$shown" >&2; fail "$file: auditwheel does not find manylinux_2_28 or older"; } ;;
    esac
    case $file in
        *abi3*) run "$file: abi3audit" "$python" -m abi3audit --strict --assume-minimum-abi3 3.12 "$file" ;;
    esac
done
echo "verify: bills of materials, hardening, manylinux tags and the stable ABI are right"
