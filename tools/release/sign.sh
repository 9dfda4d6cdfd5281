#!/usr/bin/env bash
# Signs the files of a release with cosign, offline: SHA256SUMS, and for each wheel and the sdist an attestation of provenance.
#   tools/release/sign.sh DIST PREDICATE COSIGN
# ROBOCACHE_RELEASE_KEY: private key of cosign (password in COSIGN_PASSWORD). Without it a key is made for this release only,
# which proves that the files belong together, and nothing about who made them; RELEASE_KEY says which it was.
set -euo pipefail
dist=$(cd "$1" && pwd)
predicate=$(realpath "$2")
cosign=$3
export COSIGN_PASSWORD=${COSIGN_PASSWORD:-}
keys=$(mktemp -d)
trap 'rm -rf "$keys"' EXIT
cd "$dist"
rm -f -- *.intoto.json SHA256SUMS SHA256SUMS.sig release.pub RELEASE_KEY
if [ -n "${ROBOCACHE_RELEASE_KEY:-}" ]; then
    key=$ROBOCACHE_RELEASE_KEY
    "$cosign" public-key --key "$key" >release.pub
    echo "key of ROBOCACHE_RELEASE_KEY" >RELEASE_KEY
else
    (cd "$keys" && "$cosign" generate-key-pair 2>/dev/null)
    key=$keys/cosign.key
    cp "$keys/cosign.pub" release.pub
    echo "key made for this release only, and not kept: it says nothing about who signed" >RELEASE_KEY
fi
for file in *.whl *.tar.gz; do
    [ -e "$file" ] || continue
    "$cosign" attest-blob --yes --tlog-upload=false --key "$key" --type slsaprovenance1 --predicate "$predicate" \
        --output-signature "$file.intoto.json" "$file" >/dev/null 2>&1
done
find . -type f ! -name 'SHA256SUMS*' ! -name release.pub | sed 's|^\./||' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS
"$cosign" sign-blob --yes --tlog-upload=false --key "$key" --output-signature SHA256SUMS.sig SHA256SUMS >/dev/null 2>&1
find . -type f -exec chmod 644 {} +  # cosign makes files that only their owner can read
echo "signed: $(wc -l <SHA256SUMS) files, $(cat RELEASE_KEY)"
