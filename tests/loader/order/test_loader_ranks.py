"""Every rank and every worker reads its share, once, whoever divides the work and whenever ranks become known."""

import os

import pytest
from loader_cases import anchors_in, make_cache
from loader_processes import run, run_ranks, run_script
from robocache import Loader, Window

torch = pytest.importorskip("torch")

STATE = {"state": Window(past=0.02, future=0.02, rate_hz=100)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("ranks") / "cache", episodes=8)


def epoch_of(cache, epoch, batch_size=10, drop_last=False):
    """The batches that one process reads."""
    one = Loader(cache, batch_size, STATE, seed=4, return_index=True, drop_last=drop_last)
    return [[list(a) for a in anchors_in(one.batch(s, epoch))] for s in range(len(one))]


def joined(ranks):
    """Batches of all ranks together: ``ranks[rank][step]`` are lists of anchors."""
    return [[a for part in parts for a in part] for parts in zip(*ranks, strict=True)]


def assert_two_epochs(cache, ranks):
    """``ranks[rank][epoch]``: together what one process reads, each anchor once, in two orders."""
    for epoch in range(2):
        assert joined([found[epoch] for found in ranks]) == epoch_of(cache, epoch)
    flat = [sorted(a for batch in epoch_of(cache, e) for a in batch) for e in range(2)]
    assert flat[0] == flat[1]
    assert epoch_of(cache, 0) != epoch_of(cache, 1)


# ---- ranks that are known only later --------------------------------------------------------------------------------

EARLY = """
loader = Loader(Cache(PATH), 5, STATE, seed=4, return_index=True, drop_last=False)
next(iter(loader))  # to see what a batch looks like
assert (loader.rank, loader.world_size) == (0, 1)
"""


def test_a_loader_made_before_the_process_group_reads_the_share_of_its_rank(cache, tmp_path):
    code = """
def work(rank):
    assert (loader.rank, loader.world_size) == (rank, WORLD)
    found = [[anchors(batch) for batch in loader] for epoch in range(2)]
    assert {len(epoch) for epoch in found} == {len(loader)}
    return found
"""
    assert_two_epochs(cache, run_ranks(2, tmp_path, EARLY + code, PATH=str(cache.path)))


def test_a_length_told_before_the_process_group_is_an_error_at_the_first_batch(cache, tmp_path):
    code = """
planned = len(loader)
def work(rank):
    try:
        next(iter(loader))
    except RuntimeError as error:
        return str(error)
"""
    for rank, text in enumerate(run_ranks(2, tmp_path, EARLY + code, PATH=str(cache.path))):
        assert text.startswith("Loader: len() was 34 batches for rank 0 of 1")
        assert f"rank {rank} of 2 now, which has 17" in text
        assert "give rank= and world_size=" in text


def test_a_process_group_in_the_middle_of_an_iteration_is_an_error(cache, tmp_path):
    code = """
begun = iter(loader)
next(begun)
def work(rank):
    try:
        next(begun)
    except RuntimeError as error:
        return str(error)
"""
    for rank, text in enumerate(run_ranks(2, tmp_path, EARLY + code, PATH=str(cache.path))):
        assert text.startswith(f"Loader: this process became rank {rank} of 2 in the middle of an iteration")


def test_a_state_loaded_before_the_process_group_goes_on_on_all_ranks_or_is_refused(cache, tmp_path):
    code = """
state = loader.state_dict() | {"epoch": 1, "step": 4, "world_size": 2}
loader.load_state_dict(state)
other = Loader(Cache(PATH), 5, STATE, seed=4)
other.load_state_dict(state | {"world_size": 4})
def work(rank):
    try:
        next(iter(other))
    except ValueError as error:
        return [anchors(batch) for batch in loader], str(error)
"""
    ranks = run_ranks(2, tmp_path, EARLY + code, PATH=str(cache.path))
    assert joined([found for found, _ in ranks]) == epoch_of(cache, 1)[4:]
    assert {text for _, text in ranks} == {
        "load_state_dict: batch_size * world_size must be 5 * 2 = 10, got 5 * 4 = 20"
    }


def test_the_rank_of_the_launcher_counts_before_there_is_a_process_group(cache, monkeypatch):
    expected, ranks = epoch_of(cache, 0), []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        loader = Loader(cache, 5, STATE, seed=4, return_index=True, drop_last=False)
        assert (loader.rank, loader.world_size, len(loader)) == (rank, 2, 17)
        ranks.append([[list(a) for a in anchors_in(batch)] for batch in loader])
    assert joined(ranks) == expected
    monkeypatch.delenv("RANK")  # Lightning sets WORLD_SIZE alone, before it has ranks
    assert Loader(cache, 5, STATE).world_size == 1


# ---- Accelerate -----------------------------------------------------------------------------------------------------

ACCELERATE = """
os.environ["ACCELERATE_USE_CPU"] = "true"
def accelerator_of(rank, **options):
    import accelerate
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)})  # as its launcher does
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    return accelerate.Accelerator(cpu=True, **options)
"""


@pytest.mark.parametrize(
    ("options", "batch_size"), [({"dispatch_batches": None}, None), ({"dispatch_batches": False}, 1)]
)
def test_a_prepared_dataloader_of_several_ranks_is_an_error_at_the_first_batch(cache, tmp_path, options, batch_size):
    """Accelerate would divide among the ranks what the loader has divided already: on all ranks, with or without
    workers, so that none waits for another."""
    pytest.importorskip("accelerate")
    code = """
def work(rank):
    import accelerate
    config = accelerate.DataLoaderConfiguration(**OPTIONS)
    accelerator = accelerator_of(rank, dataloader_config=config)
    texts = []
    for workers in (0, 2):
        data = torch.utils.data.DataLoader(loader.as_dataset(), batch_size=BATCH, num_workers=workers)
        try:
            next(iter(accelerator.prepare(data)))
        except RuntimeError as error:
            texts.append(str(error))
    return texts
"""
    for texts in run_ranks(
        2, tmp_path, EARLY + ACCELERATE + code, PATH=str(cache.path), OPTIONS=options, BATCH=batch_size
    ):
        assert len(texts) == 2
        for text in texts:
            assert "Loader.as_dataset: accelerator.prepare must not be given its DataLoader on 2 ranks" in text


def test_a_loader_or_a_dataloader_that_is_not_prepared_is_right_under_accelerate(cache, tmp_path):
    pytest.importorskip("accelerate")
    code = """
def work(rank):
    accelerator = accelerator_of(rank)
    found = [[anchors(batch) for batch in accelerator.prepare(loader)] for epoch in range(2)]
    loader.set_epoch(0)
    data = torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None, num_workers=2)
    return found, [[anchors(batch) for batch in data] for epoch in range(2)]
"""
    ranks = run_ranks(2, tmp_path, EARLY + ACCELERATE + code, PATH=str(cache.path))
    assert_two_epochs(cache, [found for found, _ in ranks])
    assert_two_epochs(cache, [found for _, found in ranks])


def test_a_prepared_dataloader_of_one_process_reads_everything(cache):
    accelerate = pytest.importorskip("accelerate")
    loader = Loader(cache, 10, STATE, seed=4, return_index=True, drop_last=False)
    data = torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None)
    prepared = accelerate.Accelerator(cpu=True).prepare(data)
    for epoch in range(2):
        assert [[list(a) for a in anchors_in(batch)] for batch in prepared] == epoch_of(cache, epoch)


# ---- Lightning ------------------------------------------------------------------------------------------------------

LIGHTNING = """
import logging, warnings
warnings.simplefilter("ignore")
import pytorch_lightning as lightning
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.seen = [[], []]
    def training_step(self, batch, _):
        self.seen[self.current_epoch].append(anchors(batch))
        return self.layer(batch["state"]).square().mean()
    def on_train_end(self):
        report(self.global_rank, self.seen)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
if __name__ == "__main__":
    loader = Loader(Cache(PATH), 5, STATE, seed=4, return_index=True, drop_last=False)
    data = loader
    if WORKERS is not None:
        data = torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None, num_workers=WORKERS)
    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    options = dict.fromkeys(quiet, False) | {"accelerator": "cpu", "devices": 2, "max_epochs": 2}
    trainer = lightning.Trainer(strategy=STRATEGY, **options)
    trainer.fit(Model(), data)
"""


@pytest.mark.parametrize(("strategy", "workers"), [("ddp", None), ("ddp_spawn", 2)])
def test_lightning_gives_each_of_its_ranks_a_share(cache, tmp_path, strategy, workers):
    """The loader is made before Lightning has ranks: in a program that it runs twice, or one whose loader it copies."""
    pytest.importorskip("pytorch_lightning")
    ranks = run_script(tmp_path, LIGHTNING, PATH=str(cache.path), STRATEGY=strategy, WORKERS=workers)
    assert len(ranks) == 2
    assert_two_epochs(cache, ranks)


# ---- epochs of workers ----------------------------------------------------------------------------------------------

DATALOADER = """
import itertools
def loader_of():
    return Loader(Cache(PATH), 10, STATE, seed=4, return_index=True, drop_last=False)
def data_of(loader, workers=2, **options):
    return torch.utils.data.DataLoader(loader.as_dataset(), batch_size=None, num_workers=workers, **options)
def read(data, count=None):
    return [anchors(batch) for batch in itertools.islice(data, count)]
"""


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}], ids=["new workers", "workers that stay"])
def test_every_iteration_of_workers_reads_the_next_epoch(cache, options):
    """Also after one that was left early, whatever the seeds, and again where an epoch is asked for."""
    code = """
data = data_of(loader := loader_of(), **OPTIONS)
found = [read(data), read(data)]
read(data, 3)
for _ in range(2):
    torch.manual_seed(0)
    found.append(read(data))
loader.set_epoch(1)
found += [read(data), read(data)]
print(json.dumps(found))
"""
    found = run(DATALOADER + code, PATH=str(cache.path), OPTIONS=options)
    assert found == [epoch_of(cache, epoch) for epoch in (0, 1, 3, 4, 1, 2)]


def test_iterations_at_the_same_time_are_epochs_of_their_own(cache):
    code = """
data = data_of(loader_of())
both = [(anchors(a), anchors(b)) for a, b in zip(data, data)]
print(json.dumps([*zip(*both)]))
"""
    found = run(DATALOADER + code, PATH=str(cache.path))
    assert sorted(found) == sorted([epoch_of(cache, 0), epoch_of(cache, 1)])


def test_spawned_workers_count_epochs_too_and_leave_no_files(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = """
if __name__ == "__main__":
    data = data_of(loader_of(), multiprocessing_context="spawn")
    report(0, [read(data), read(data)])
"""
    [found] = run_script(tmp_path, DATALOADER + code, PATH=str(cache.path))
    assert found == [epoch_of(cache, 0), epoch_of(cache, 1)]
    assert [name for name in os.listdir(tmp_path) if name.startswith("robocache")] == []


def test_workers_go_on_after_epochs_of_the_main_process(cache):
    code = """
loader = loader_of()
found = [[anchors(batch) for batch in loader]]
data = data_of(loader)
found += [read(data), read(data)]
loader.load_state_dict(loader.state_dict() | {"epoch": 5, "step": 7})
found += [read(data), read(data)]
print(json.dumps(found))
"""
    found = run(DATALOADER + code, PATH=str(cache.path))
    assert found == [
        epoch_of(cache, 0),
        epoch_of(cache, 1),
        epoch_of(cache, 2),
        epoch_of(cache, 5)[7:],
        epoch_of(cache, 6),
    ]


@pytest.mark.parametrize("stop", [5, 1000])
def test_the_epoch_after_a_resumed_one_is_the_next(cache, stop):
    """StatefulDataLoader gives each worker its own state, and the main process none."""
    pytest.importorskip("torchdata")
    code = """
from torchdata.stateful_dataloader import StatefulDataLoader
def new():
    return StatefulDataLoader(loader_of().as_dataset(), batch_size=None, num_workers=2)
first = new()
found = [read(first), read(first, STOP)]
state = json.loads(json.dumps(first.state_dict()))
second = new()
second.load_state_dict(state)
print(json.dumps([*found, read(second), read(second)]))
"""
    found = run(DATALOADER + code, PATH=str(cache.path), STOP=stop)
    epochs = [epoch_of(cache, epoch) for epoch in range(4)]
    if stop < 1000:
        assert found == [epochs[0], epochs[1][:stop], epochs[1][stop:], epochs[2]]
    else:  # the state of a finished epoch: the next one follows
        assert found == epochs
