#!/usr/bin/env bash
# Tries a wheel of a release in a bare Debian root, as a user without rights and without a compiler: pip install, self-test, ingest,
# check, one batch. Needs root for chroot. The packages come from a folder, so the root needs no network.
#   tools/release/try/wheel.sh ROOT DIST [PYTHON]     for example /srv/bookworm dist/release-cpu; PYTHON: its path inside ROOT
# A root: debootstrap --variant=minbase --include=python3,python3-venv bookworm ROOT. Debian 11 has Python 3.9, which is too old
# for RoboCache: build a newer one under ROOT/opt and name it. EXTRA="torch": more packages to install.
# A root for arm64 runs under qemu: apt-get install mmdebstrap qemu-user-static binfmt-support (binfmt_misc must be mounted), then
# mmdebstrap --arch=arm64 --variant=minbase --include=python3,python3-venv trixie ROOT.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$1" && pwd)
dist=$(cd "$2" && pwd)
python=${3:-/usr/bin/python3}
for compiler in cc gcc g++ c++ clang; do
    for folder in usr/local/bin usr/bin bin; do
        [ ! -e "$root/$folder/$compiler" ] && [ ! -L "$root/$folder/$compiler" ] ||
            { echo "try_wheel: the root must have no compiler, got /$folder/$compiler" >&2; exit 1; }
    done
done
# The version, with a t if this Python has no GIL, and the beginning of the tag of the wheel for it.
version=$(chroot "$root" "$python" -c 'import sys, sysconfig
print("%d.%d" % sys.version_info[:2] + "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED")))')
number=${version%t}
case $version in 3.10 | 3.11 | *t) tag=cp${number/./}-cp${version/./} ;; *) tag=cp312-abi3 ;; esac
machine=$(chroot "$root" "$python" -c 'import platform; print(platform.machine())')
home=$(mktemp -d "$root/tmp/try_wheel.XXXXXX")
trap 'rm -rf "$home"' EXIT
mkdir "$home/wheels"
cp "$dist"/robocache-*-"$tag"*"_$machine.whl" "$home/wheels"
python3 -m pip download --quiet --only-binary=:all: --python-version "$number" --implementation cp --abi "cp${version/./}" --abi abi3 --abi none \
    --platform "manylinux_2_28_$machine" --platform "manylinux_2_27_$machine" --platform "manylinux2014_$machine" --platform any \
    -d "$home/wheels" "numpy>=1.23" ${EXTRA:-}
cp "$here/first_batch.py" "$home"
chmod 755 "$home" && chown -R 65534:65534 "$home"
inside=${home#"$root"}
env -i PATH=/usr/bin:/bin HOME="$inside" "$(command -v chroot)" --userspec=65534:65534 "$root" /bin/sh -ec "
    cd $inside
    . /etc/os-release && echo \"\$PRETTY_NAME, \$($python --version), $machine, user \$(id -u), no compiler\"
    $python -m venv venv
    venv/bin/python -m pip install --quiet --disable-pip-version-check --no-index --find-links wheels robocache ${EXTRA:-}
    venv/bin/robocache self-test
    venv/bin/python first_batch.py work"
