#!/usr/bin/env bash
# Times the way from `git clone` to the first picture of `make demo`, without downloads and without a GPU. Not a test: a
# figure of a busy machine means nothing, so the processor time and the load are printed as well.
#   tools/release/try/time_first_picture.sh [make variables, for example CUDA=0]
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CCACHE_DISABLE=1
seconds() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(seconds)" 'BEGIN { printf "%.1f", b - a }'; }
load=$(cut -d ' ' -f 1 /proc/loadavg)
begin=$(seconds)
git clone --quiet "$root" "$folder/robocache"
cd "$folder/robocache"
clone_s=$(since "$begin")
begin=$(seconds)
make --no-print-directory .venv/.ready-demo .venv/.ready-build "$@"
setup_s=$(since "$begin")
begin=$(seconds)
TIMEFORMAT='%U %S'
{ time make --no-print-directory picture "$@" 1>&3; } 3>&1 2>"$folder/times"
picture_s=$(since "$begin")
cpu_s=$(tail -n 1 "$folder/times" | awk '{ printf "%.1f", $1 + $2 }')
[ -s build/demo.png ]
awk -v c="$clone_s" -v p="$picture_s" -v u="$cpu_s" -v s="$setup_s" -v l="$load" -v n="$(nproc)" 'BEGIN {
    printf "clone %.1f s + build and picture %.1f s = %.1f s (processor time %.1f s; %d cores, load before %s)\n", c, p, c + p, u, n, l
    printf "not counted: %.1f s of pip downloads and installation\n", s }'
