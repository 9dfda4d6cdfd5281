"""The loader in other people's loops: torchdata's StatefulDataLoader, Lightning, Accelerate."""

import json
import warnings

import pytest
from loader_cases import anchors_in, make_cache
from loader_processes import run, run_ranks
from robocache import Loader, Window

torch = pytest.importorskip("torch")

STATE = {"state": Window(past=0.02, future=0.02, rate_hz=100)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("frameworks") / "cache", episodes=8)


def new_loader(cache, **options):
    return Loader(cache, 10, STATE, **{"seed": 4, "return_index": True, "drop_last": False, **options})


def anchors(batch):
    return [list(a) for a in anchors_in(batch)]


def epochs_of(cache, *epochs):
    loader = new_loader(cache)
    return [[anchors(loader.batch(s, e)) for s in range(len(loader))] for e in epochs]


# ---- loops that count batches ---------------------------------------------------------------------------------------


def test_a_loop_that_counts_to_the_length_gets_the_next_epoch_next(cache):
    """Lightning asks for ``len(loader)`` batches and never whether there is another."""
    loader, seen = new_loader(cache), []
    for _ in range(3):
        seen.append([anchors(batch) for _, batch in zip(range(len(loader)), loader, strict=False)])
    assert seen == epochs_of(cache, 0, 1, 2)
    loader.set_epoch(2)  # the same one again
    assert [anchors(batch) for batch in loader] == seen[2]


# ---- torchdata ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [1, 4, 16])
def test_the_stateful_protocol_goes_on_in_the_middle_of_an_epoch(cache, stop):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    first = stateful.StatefulDataLoader(new_loader(cache).as_dataset(), batch_size=None)
    iterator = iter(first)
    seen = [anchors(next(iterator)) for _ in range(stop)]
    state = json.loads(json.dumps(first.state_dict()))
    second = stateful.StatefulDataLoader(new_loader(cache).as_dataset(), batch_size=None)
    second.load_state_dict(state)
    seen += [anchors(batch) for batch in second]
    following = [anchors(batch) for batch in second]
    assert [seen, following] == epochs_of(cache, 0, 1)


def test_the_loader_itself_speaks_the_stateful_protocol(cache):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    assert isinstance(new_loader(cache), stateful.Stateful)
    assert isinstance(new_loader(cache).as_dataset(), stateful.Stateful)


@pytest.mark.parametrize("stop", [3, 8])
def test_workers_of_a_stateful_dataloader_go_on_too(cache, stop):
    """Each worker has a state of its own; the one that is asked next is remembered by torchdata."""
    pytest.importorskip("torchdata")
    code = """
from torchdata.stateful_dataloader import StatefulDataLoader
def new():
    loader = Loader(Cache(PATH), 10, STATE, seed=4, return_index=True, drop_last=False)
    return StatefulDataLoader(loader.as_dataset(), batch_size=None, num_workers=2, multiprocessing_context="fork")
first = new()
iterator = iter(first)
seen = [anchors(next(iterator)) for _ in range(STOP)]
state = json.loads(json.dumps(first.state_dict()))
del iterator
second = new()
second.load_state_dict(state)
print(json.dumps(seen + [anchors(batch) for batch in second]))
"""
    assert run(code, PATH=str(cache.path), STOP=stop) == epochs_of(cache, 0)[0]


# ---- Lightning ------------------------------------------------------------------------------------------------------


def lightning_module(lightning, seen):
    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, _):
            seen.append(anchors(batch))
            return self.layer(batch["state"]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    return Model()


def trainer_of(lightning, tmp_path, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return lightning.Trainer(default_root_dir=tmp_path, **quiet, **options)


@pytest.fixture
def lightning():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own about itself
        yield pytest.importorskip("pytorch_lightning")


def test_lightning_trains_on_a_loader_epoch_by_epoch(cache, tmp_path, lightning):
    seen = []
    trainer = trainer_of(lightning, tmp_path, max_epochs=3, enable_checkpointing=False)
    trainer.fit(lightning_module(lightning, seen), new_loader(cache))
    assert seen == [batch for epoch in epochs_of(cache, 0, 1, 2) for batch in epoch]


def test_lightning_goes_on_from_a_checkpoint_in_the_middle_of_an_epoch(cache, tmp_path, lightning):
    expected = [batch for epoch in epochs_of(cache, 0, 1) for batch in epoch]
    stop, seen, path = len(new_loader(cache)) + 5, [], tmp_path / "run.ckpt"
    model = lightning_module(lightning, seen)
    model.on_train_batch_end = lambda *_: len(seen) == stop and model.trainer.save_checkpoint(path)
    trainer_of(lightning, tmp_path, max_epochs=2, enable_checkpointing=False).fit(model, new_loader(cache))
    assert seen == expected
    rest = []
    second = trainer_of(lightning, tmp_path, max_epochs=2, enable_checkpointing=False)
    second.fit(lightning_module(lightning, rest), new_loader(cache), ckpt_path=path)
    assert rest == expected[stop:]


# ---- Accelerate -----------------------------------------------------------------------------------------------------


def test_accelerate_leaves_a_loader_as_it_is_and_keeps_its_place(cache, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    loader = new_loader(cache)
    assert accelerator.prepare(loader) is loader
    accelerator.register_for_checkpointing(loader)
    seen = [anchors(batch) for _, batch in zip(range(6), loader, strict=False)]
    accelerator.save_state(str(tmp_path / "run"))
    again = accelerate.Accelerator(cpu=True)
    other = new_loader(cache)
    again.register_for_checkpointing(other)
    again.load_state(str(tmp_path / "run"))
    assert seen + [anchors(batch) for batch in other] == epochs_of(cache, 0)[0]


def test_ranks_of_accelerate_share_the_batches(cache, tmp_path):
    pytest.importorskip("accelerate")
    code = """
os.environ["ACCELERATE_USE_CPU"] = "true"
def work(rank):
    import accelerate
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)})  # as its launcher does
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    accelerator = accelerate.Accelerator(cpu=True)
    assert (accelerator.process_index, accelerator.num_processes) == (rank, WORLD)
    loader = accelerator.prepare(Loader(Cache(PATH), 5, STATE, seed=4, return_index=True, drop_last=False))
    model = accelerator.prepare(torch.nn.Linear(3, 1))
    found = []
    for batch in loader:
        accelerator.backward(model(batch["state"]).square().sum())
        found.append(anchors(batch))
    return found
"""
    first, second = run_ranks(2, tmp_path, code, PATH=str(cache.path))
    assert [a + b for a, b in zip(first, second, strict=True)] == epochs_of(cache, 0)[0]
