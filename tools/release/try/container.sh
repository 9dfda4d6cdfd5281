#!/usr/bin/env bash
# Tries a container image as a cluster runs it: user 10001, read-only root, no capabilities, no network, limits of CPU and memory.
# Health check, self-test, ingest -> check -> one batch.
#   tools/release/try/container.sh ARCHIVE     for example dist/container/robocache-0.1.0-cpu.tar
# Needs root: apt-get install podman runc. The image goes into a storage of its own, which is removed afterwards.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
archive=$(realpath "$1")
work=$(mktemp -d "${TMPDIR:-/var/tmp}/robocache_container.XXXXXX")
container() { podman --root "$work/storage" --runroot "$work/run" --storage-driver vfs --runtime runc --cgroup-manager cgroupfs "$@"; }
trap 'container rm --all --force >/dev/null 2>&1; rm -rf "$work"' EXIT
container load --quiet --input "$archive" >/dev/null
image=$(container images --quiet --no-trunc | head -n 1)
install -d -o 10001 -g 10001 "$work/cache"
install -D -m 644 "$here/first_batch.py" "$work/program/first_batch.py"
# The limits of files and processes are set because those of podman may be more than this machine grants. Podman repeats a health check
# with systemd, which may not run here: it is started by hand below, and podman's messages about it are left out.
container run --detach --name try --read-only --read-only-tmpfs=false --tmpfs /tmp:size=256m,mode=1777 --shm-size 64m --cap-drop all --network none \
    --security-opt no-new-privileges --ulimit nofile=4096:4096 --ulimit nproc=4096:4096 --cpus 1 --memory 1g --health-interval disable \
    --volume "$work/cache:/cache" --volume "$work/program:/program:ro" --entrypoint sleep "$image" 600 \
    2> >(grep -v 'systemd connection' >&2) >/dev/null
inside() { container exec try "$@"; }
inside python -c 'import os, sys; status = open("/proc/self/status").read()
sys.exit((os.getuid(), os.getgid()) != (10001, 10001) and "container: must run as user 10001, got %d" % os.getuid()
    or "CapEff:\t0000000000000000" not in status and "container: has capabilities")'
for folder in / /opt/robocache /usr /var /etc; do
    ! inside touch "$folder/written" 2>/dev/null || { echo "container: $folder is writable" >&2; exit 1; }
done
echo "$(basename "$archive"): user 10001, no capabilities, read-only root"
container healthcheck run try && echo "health check: ok"
inside robocache self-test
inside python -c 'import av, h5py, lz4.frame, numcodecs, PIL.Image, pyarrow.dataset, pyarrow.fs, pyarrow.parquet, zstandard'
inside python /program/first_batch.py /cache/work
