"""A short soak of the loader: what it holds does not grow with the batches it reads. The long one: benchmarks/."""

import pytest
from loader_processes import run

pytest.importorskip("torch")

# In a program of its own: a page that another test's memory leaves behind is none of the loader's.
SOAK = """
sys.path.insert(0, BENCHMARKS)
import tempfile, pathlib
from pipeline.loader import soak as soak_loader
kept = []
def use(batch):
    if LEAK:
        kept.append(batch["state"].clone())
with tempfile.TemporaryDirectory() as folder:
    loader = soak_loader.open_loader(soak_loader.make(pathlib.Path(folder)), TIER, "cpu", 4)
    samples = soak_loader.soak(loader, BATCHES, BATCHES // 4, use, tell=False)
print(json.dumps({"targets": soak_loader.targets_of(samples), "samples": samples}))
"""


def soak(pytestconfig, **names):
    return run(SOAK, timeout=280, BENCHMARKS=str(pytestconfig.rootpath / "benchmarks"), **names)


@pytest.mark.parametrize(("tier", "batches"), [("memory", 20_000), ("mmap", 4_000)])
def test_memory_and_descriptors_do_not_grow_with_the_batches(pytestconfig, tier, batches):
    found = soak(pytestconfig, TIER=tier, BATCHES=batches, LEAK=False)
    assert found["samples"][-1]["batches"] >= batches
    assert all(target["met"] for target in found["targets"].values()), found["targets"]


def test_a_consumer_that_keeps_every_batch_would_have_been_noticed(pytestconfig):
    """The control: some 1.4 KB kept of each of 3,000 batches."""
    target = soak(pytestconfig, TIER="memory", BATCHES=4_000, LEAK=True)["targets"]["resident_bytes"]
    assert not target["met"]
    assert target["measured"] > 3_000_000
