#!/usr/bin/env bash
# Makes the source distribution from the clean copy of the commit in WORK/source; the same commit gives the same bytes.
#   tools/release/sdist.sh WORK DIST      python on the PATH has the packages of locks/build.lock
set -euo pipefail
dist=$(cd "$2" && pwd)
cd "$1/source"
python - "$dist" <<'PY'
import sys
from scikit_build_core.build import build_sdist

print(build_sdist(sys.argv[1]))
PY
