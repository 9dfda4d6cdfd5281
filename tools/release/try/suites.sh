#!/usr/bin/env bash
# Runs the Python tests on the wheels of a release, under several Pythons, each in an environment of its own: build/suites/<version>.
#   tools/release/try/suites.sh DIST VERSION ...     for example dist/release-cpu 3.10 3.11 3.12 3.13; 3.13t: without the GIL
# pip takes the wheel of DIST that fits. What tools/requirements.txt needs comes from the index, as wheels only; a package that has none for
# a Python, such as a new PyTorch, is left out, and tests that need it are skipped: the result names these packages.
# TESTS="tests/core tests/cache": only these. ROBOCACHE_SUITES=FILE: the result, as JSON; default build/suites/suites.json.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dist=$(cd "$1" && pwd)
shift
words="$*${TESTS:+ TESTS=\"$TESTS\"}"
cd "$here/../../.."
mkdir -p build/suites
result=${ROBOCACHE_SUITES:-build/suites/suites.json}
failed=0
for version in "$@"; do
    folder=$PWD/build/suites/$version
    python=$folder/bin/python
    pip() { "$python" -m pip "$@" 2> >(grep -v 'WARNING: Location' >&2); }
    if [ ! -e "$folder/.ready" ]; then
        of=$("$here/../compiler/python.sh" "$version")
        "$of" -m venv "$folder"
        # All at once, or one after the other where one has no wheel.
        packages=$(mktemp)
        cat tools/requirements.txt tools/requirements-build.txt tools/requirements-torch.txt | grep -v '^\(#\|-r\)' >"$packages"
        pip install --quiet --only-binary=:all: -r "$packages" 2>/dev/null || while read -r package; do
            pip install --quiet --only-binary=:all: "$package" 2>/dev/null || echo "suites: Python $version has no wheel of $package"
        done <"$packages"
        rm "$packages"
        touch "$folder/.ready"
    fi
    rm -rf "$folder/wheel"
    pip download --quiet --no-deps --no-index --find-links "$dist" -d "$folder/wheel" robocache
    wheel=$(echo "$folder"/wheel/*.whl)
    pip install --quiet --no-deps --no-index --force-reinstall "$wheel"
    missing=$("$python" -c 'import importlib.util, sys; print(*(x for x in sys.argv[1:] if importlib.util.find_spec(x) is None))' \
        PIL accelerate av google_crc32c gymnasium h5py jax lz4 matplotlib mcap mcap_ros2 ml_dtypes mujoco numcodecs pandas pyarrow \
        pytorch_lightning rerun safetensors scipy torch torchdata zarr zstandard)
    echo "suites: Python $version, $(basename "$wheel"), without: ${missing:-nothing}"
    # shellcheck disable=SC2086  # TESTS is a list
    ROBOCACHE_MISSING=$missing ROBOCACHE_WHEEL=$wheel OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PATH=$folder/bin:$PATH "$python" -m pytest -q \
        -p no:cacheprovider --continue-on-collection-errors --junit-xml="$folder/tests.xml" ${TESTS:-tests} >"$folder/tests.log" 2>&1 || failed=1
    sed -n '/^=* \(FAILURES\|ERRORS\)/,$p' "$folder/tests.log"
    tail -n 1 "$folder/tests.log"
    "$python" - "$result" "$(git rev-parse HEAD)" "$words" "$version" "$wheel" "$missing" "$folder/tests.xml" <<'PY'
import datetime, hashlib, json, pathlib, platform, sys
import xml.etree.ElementTree as xml

result, commit, words, version, wheel, missing, log = sys.argv[1:]
path = pathlib.Path(result)
made = json.loads(path.read_text()) if path.exists() else {}
cases = list(xml.parse(log).getroot().iter("testcase"))
wrong = [f"{case.get('classname')}::{case.get('name')}" for case in cases if {x.tag for x in case} & {"failure", "error"}]
skipped = sum(case.find("skipped") is not None for case in cases)
made[version] = {
    "command": f"tools/release/try/suites.sh DIST {words}",
    "commit": commit,  # of the tests
    "date": str(datetime.datetime.now(datetime.timezone.utc).date()),
    "python": platform.python_version(),
    "wheel": pathlib.Path(wheel).name,
    "sha256": hashlib.sha256(pathlib.Path(wheel).read_bytes()).hexdigest(),
    "without": missing.split(),
    "passed": len(cases) - len(wrong) - skipped,
    "skipped": skipped,
    "failed": wrong,
}
path.write_text(json.dumps(made, indent=1) + "\n")
PY
done
exit $failed
