#!/usr/bin/env bash
# Downloads the Debian packages of a group of locks/packages.lock, checks their hashes and unpacks them; nothing is installed.
#   tools/release/packages.sh GROUP FOLDER
# DEBIAN_MIRROR: where they come from; else the mirror of this machine's apt.
set -euo pipefail
group=$1
folder=$2
here=$(cd "$(dirname "$0")" && pwd)
[ ! -e "$folder/.complete" ] || exit 0
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m 1 '/debian/$' || true)}
[ -n "$mirror" ] || { echo "packages: apt knows no mirror of Debian here; set DEBIAN_MIRROR to one" >&2; exit 1; }
rm -rf "$folder" && mkdir -p "$folder"
while read -r of path digest; do
    [ "$of" = "$group" ] || continue
    curl -fsSL --retry 3 -o "$folder/.package" "${mirror%/}/$path" ||
        { echo "packages: $mirror lacks $path; set DEBIAN_MIRROR to one that has it" >&2; exit 1; }
    echo "$digest  $folder/.package" | sha256sum --check --quiet
    dpkg-deb --extract "$folder/.package" "$folder"
    rm "$folder/.package"
done <"$here/locks/packages.lock"
touch "$folder/.complete"
