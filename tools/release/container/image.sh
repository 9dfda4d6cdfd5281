#!/usr/bin/env bash
# Makes the container image of a release wheel, with its bill of materials, from Debian packages and wheels; no base image is pulled.
#   tools/release/container/image.sh cpu|cuda WHEELS OUT     WHEELS: folder of `make release`; OUT: for example dist/container
# OUT receives robocache-<version>-<variant>.tar (docker archive: `podman load`, `docker load`) and .cdx.json.
# Needs root and Debian 12 or newer: apt-get install buildah mmdebstrap. Debian packages come from the mirrors of this machine's apt.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../../.." && pwd)
variant=$1
wheels=$(cd "$2" && pwd)
out=$(mkdir -p "$3" && cd "$3" && pwd)
case $variant in cpu | cuda) ;; *) echo "image: variant must be cpu or cuda, got $variant" >&2; exit 2 ;; esac
[ "$(id -u)" = 0 ] || { echo "image: must run as root (chroot, buildah)" >&2; exit 1; }
for program in buildah mmdebstrap; do
    command -v $program >/dev/null || { echo "image: $program is missing: apt-get install buildah mmdebstrap" >&2; exit 1; }
done
check=$source/build/release/check/bin/python
[ -x "$check" ] || { echo "image: $check is missing: run make release first" >&2; exit 1; }
suite=trixie python=3.13 max_bytes=500000000  # max_bytes: of the CPU image, unpacked
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
wheel=$(compgen -G "$wheels/robocache-*-cp312-abi3-manylinux*_x86_64.whl") ||
    { echo "image: no release wheel for CPython $python in $wheels: run make release$([ "$variant" = cuda ] || echo ' CUDA=0')" >&2; exit 1; }
has=$(python3 -c 'import sys, zipfile; wheel = zipfile.ZipFile(sys.argv[1])
bills = [wheel.read(name) for name in wheel.namelist() if name.endswith("/robocache.cdx.json")]
print("cuda" if any(b"CUDA runtime" in bill for bill in bills) else "cpu")' "$wheel")
[ "$has" = "$variant" ] || { echo "image: the wheel must be for $variant, got one for $has: $wheel" >&2; exit 1; }
version=$(basename "$wheel" | cut -d- -f2)
commit=$(git -C "$source" rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git -C "$source" log -1 --format=%ct "$commit")
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC
work=$(mktemp -d "${TMPDIR:-/var/tmp}/robocache_image.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
inside() { env -i PATH=/usr/bin:/bin LC_ALL=C.UTF-8 PYTHONHASHSEED=0 SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" "$(command -v chroot)" "$root" "$@"; }

# Debian with its security updates, and Python. "essential" leaves out apt.
mirror() { apt-get indextargets --format '$(REPO_URI)' | grep "/$1/\$" | head -n 1; }
cat >"$work/sources.list" <<END
deb [signed-by=$keyring] $(mirror debian) $suite main
deb [signed-by=$keyring] $(mirror debian) $suite-updates main
deb [signed-by=$keyring] $(mirror debian-security) $suite-security main
END
exclude=()
for folder in doc info lintian locale man; do exclude+=(--dpkgopt="path-exclude=/usr/share/$folder/*"); done
mmdebstrap --quiet --mode=root --format=directory --variant=essential --include=python3,libstdc++6 "${exclude[@]}" \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' $suite "$root" - <"$work/sources.list"

# The wheel and the packages that ingest needs (locks/container.txt), by hash. pip runs from its own wheel.
mkdir "$root/tmp/wheels"
python3 -m pip download --quiet --no-deps --require-hashes --only-binary=:all: --python-version $python --implementation cp --abi cp${python/./} \
    --abi abi3 --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 --platform any \
    -r "$here/../locks/container.lock" -d "$root/tmp/wheels" 2>&1 | grep -v 'WARNING: Location' || true
cp "$wheel" "$root/tmp/wheels"
inside python3 -m venv --without-pip /opt/robocache
inside /bin/sh -ec 'pip=$(echo /tmp/wheels/pip-*.whl); /opt/robocache/bin/python -I "$pip/pip" install --quiet --no-index --no-deps --no-compile \
    --no-cache-dir --root-user-action=ignore /tmp/wheels/*.whl; /opt/robocache/bin/python -m pip check'
"$here/bill.py" "$root" "$version" "$SOURCE_DATE_EPOCH" >"$work/bill.json"
"$check" "$here/../check/bill.py" "$work/bill.json"

# Parts that ingest does not use: tests, C headers, Arrow's server (Flight) and its client for S3, second copies.
packages=$root/opt/robocache/lib/python$python/site-packages
find "$packages" -type d \( -name tests -o -path '*/pyarrow/include' -o -path '*/numpy/_core/include' -o -path '*/pyarrow/src' \) -prune -exec rm -rf {} +
rm -f "$packages"/pyarrow/{libarrow_flight,libarrow_python_flight,libarrow_s3}.so* "$packages"/pyarrow/{_flight,_s3fs}.*
hardlink --quiet --ignore-time "$packages"
# Compiled at once, with hashes instead of times of the sources: a read-only root cannot do it later. Not pip, which runs seldom.
find "$root/usr/lib" "$packages" -name __pycache__ -prune -exec rm -rf {} +
inside /opt/robocache/bin/python -m compileall -q -j1 -x '/pip/' --invalidation-mode unchecked-hash /usr/lib/python3 /usr/lib/python$python /opt/robocache/lib >"$work/compile.log" ||
    { cat "$work/compile.log" >&2; exit 1; }

echo "robocache:x:10001:10001:robocache:/tmp:/usr/sbin/nologin" >>"$root/etc/passwd"
echo "robocache:x:10001:" >>"$root/etc/group"
install -d -o 10001 -g 10001 "$root/cache"
install -D -m 644 "$work/bill.json" "$root/usr/share/robocache/container.cdx.json"
find "$root" -xdev -perm /6000 -type f -exec chmod ug-s {} +
rm -rf "$root"/tmp/* "$root"/var/tmp/* "$root"/var/log/* "$root"/var/cache/* "$root"/var/lib/apt "$root"/etc/apt "$root"/run/*
rm -f "$root"/var/lib/dpkg/*-old "$root"/etc/{passwd,group,shadow,gshadow}- "$root"/etc/{hostname,resolv.conf,machine-id}
tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --numeric-owner --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime -C "$root" -cf "$work/root.tar" .

bytes=$(stat -c %s "$work/root.tar")
[ "$variant" = cuda ] || [ "$bytes" -lt $max_bytes ] || { echo "image: must be below $max_bytes bytes unpacked, got $bytes" >&2; exit 1; }
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
storage=(--root "$work/storage" --runroot "$work/storage_run")
tag=$version$([ "$variant" = cpu ] || echo "-$variant")
mkdir "$work/context" && mv "$work/root.tar" "$work/context"
rm -rf "$root"
buildah "${storage[@]}" build --quiet --format docker --target "$variant" --timestamp "$SOURCE_DATE_EPOCH" --build-arg VERSION="$version" \
    --build-arg REVISION="$commit" --tag "robocache:$tag" --file "$here/Containerfile" "$work/context" >"$work/id"
name=robocache-$version-$variant
rm -f "$out/$name".*
buildah "${storage[@]}" push --quiet "$(cat "$work/id")" "docker-archive:$out/$name.tar:robocache:$tag"
cp "$work/bill.json" "$out/$name.cdx.json"
echo "robocache:$tag $(cat "$work/id"): $((bytes / 1000000)) MB unpacked, $out/$name.tar"
