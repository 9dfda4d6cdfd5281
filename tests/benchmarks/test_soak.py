"""make soak: a short one passes; a leak and a wrong bit are found."""

import json
import subprocess
import sys

import pytest
from arrays import CUDA, REQUIRE_CUDA
from loader_processes import run
from paths import ROOT
from robocache.loader.batches.store import TIERS

for package in ("torch", "h5py", "pyarrow", "PIL"):
    pytest.importorskip(package)

SOAK = """
sys.path.insert(0, BENCHMARKS)
import tempfile, pathlib
from pipeline.soak import run as driver, work
class Faulty:
    name, unit = "faulty", "turns"
    kept = []
    def turn(self, number):
        if FAULT == "bit" and number == 3:
            raise work.WrongBits("faulty: value 7 of turn 3")
        if FAULT == "memory":
            self.kept.append(b"x" * 3_000_000)
        if FAULT == "descriptors":
            self.kept.append(open(os.devnull))
        time.sleep(0.05)  # so that few rounds keep little
        return 1
with tempfile.TemporaryDirectory() as folder:
    works = [Faulty(), work.Decoding("cpu")]
    found = driver.soak(works, 1, limit_mib=4)
print(json.dumps({"failed": driver.failed(found), **found}))
"""


def soak(fault):
    return run(SOAK, BENCHMARKS=str(ROOT / "benchmarks"), FAULT=fault)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.alone)])
def test_a_few_rounds_of_all_work_pass(device, tmp_path):
    """Memory settles later than in these seconds, so its limit is wide here. The other limits are those of hours."""
    if device == "cuda" and not CUDA:
        (pytest.fail if REQUIRE_CUDA else pytest.skip)("no CUDA backend here")
    out = tmp_path / "soak.json"
    command = [sys.executable, str(ROOT / "benchmarks/pipeline/soak/run.py"), "--device", device, "--json", str(out)]
    command += ["--hours", "0.002", "--limit-mib", "64" if device == "cpu" else "512"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["wrong"] is None
    assert found["targets"].keys() >= {"resident_bytes", "descriptors", "threads", "children"}
    tiers = {"cpu": ("memory", "mmap"), "cuda": TIERS}[device]
    loading = {f"{kind}, {tier}" for kind in ("windows", "features", "pictures") for tier in tiers}
    assert found["done"].keys() == {"decode", "ingest", *loading}
    assert all(count >= found["rounds"] for counts in found["done"].values() for count in counts.values())


@pytest.mark.parametrize(("fault", "target"), [("memory", "resident_bytes"), ("descriptors", "descriptors")])
def test_what_is_kept_is_found(fault, target):
    found = soak(fault)
    assert found["failed"]
    assert not found["targets"][target]["met"]


def test_the_first_wrong_bit_ends_it():
    found = soak("bit")
    assert found["failed"]
    assert (found["wrong"], found["rounds"]) == ("faulty: value 7 of turn 3", 4)
