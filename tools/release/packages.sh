#!/usr/bin/env bash
# Downloads the Debian packages of a group of locks/packages.lock, checks their hashes and unpacks them; nothing is installed.
#   tools/release/packages.sh GROUP FOLDER
# DEBIAN_MIRROR: where they come from; else the mirror of this machine's apt.
set -euo pipefail
group=$1
folder=$2
here=$(cd "$(dirname "$0")" && pwd)
[ ! -e "$folder/.complete" ] || exit 0
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' | grep '/debian/$' | head -n 1)}
rm -rf "$folder" && mkdir -p "$folder"
while read -r of path digest; do
    [ "$of" = "$group" ] || continue
    curl -fsSL --retry 3 -o "$folder/.package" "${mirror%/}/$path"
    echo "$digest  $folder/.package" | sha256sum --check --quiet
    dpkg-deb --extract "$folder/.package" "$folder"
    rm "$folder/.package"
done <"$here/locks/packages.lock"
touch "$folder/.complete"
