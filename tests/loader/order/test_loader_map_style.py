"""Samples by number: rows of the batches in ascending order, for samplers that others wrote."""

import io
import pickle

import numpy as np
import pytest
from arrays import CUDA, REQUIRE_CUDA
from loader_cases import SPECS, make_cache
from robocache import (
    CacheWriter,
    Episode,
    EpisodeStream,
    Feature,
    Image,
    Loader,
    Mixture,
    RandomCrop,
    StreamSpec,
    Voxels,
    Window,
    _core,
)

torch = pytest.importorskip("torch")
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, WeightedRandomSampler  # noqa: E402

PLACES = [("memory", "cpu"), ("mmap", "cpu")]
if CUDA or REQUIRE_CUDA:
    PLACES += [(tier, "cuda") for tier in ("gpu", "pinned", "memory", "mmap")]
GRID = Voxels(grid_min=(-20, -20, -20), voxel_size=4.0, grid_size=(10, 10, 10))
WINDOWS = {
    "state": Window(past=0.02, future=0.03, rate_hz=100),
    "force": Window(past=0.01, rate_hz=250),
    "camera": Window(method="nearest"),
    "cloud": Window(voxels=GRID),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("map") / "cache", episodes=5)


def whole(loader):
    """All samples of an epoch, as one batch."""
    batches = list(loader)
    return {
        name: [x for b in batches for x in b[name]] if isinstance(batches[0][name], list)
        else torch.cat([b[name] for b in batches])
        for name in batches[0]
    }  # fmt: skip


def assert_rows(batch, expected, numbers):
    assert list(batch) == list(expected)
    for name, rows in expected.items():
        if isinstance(rows, list):
            assert batch[name] == [rows[n] for n in numbers], name
            continue
        assert (batch[name].dtype, batch[name].device) == (rows.dtype, rows.device)
        assert torch.equal(batch[name], rows[torch.as_tensor(numbers, dtype=torch.int64, device=rows.device)]), name


def in_order(cache, tier="memory", device="cpu", windows=WINDOWS, **options):
    options = {"shuffle": False, "drop_last": False, "return_index": True, **options}
    return Loader(cache, 7, windows, tier=tier, device=device, **options)


@pytest.mark.parametrize(("tier", "device"), PLACES)
def test_samples_by_number_are_the_rows_of_batches(cache, tier, device):
    windows = WINDOWS if tier != "pinned" else {**WINDOWS, "camera": Window(method="previous")}
    loader = in_order(cache, tier, device, windows)
    expected, dataset = whole(loader), loader.dataset
    count = len(dataset)
    assert count == loader.num_anchors == len(expected["anchor_ns"])
    numbers = [5, 0, count - 1, 5, 17, 3]
    assert_rows(dataset[numbers], expected, numbers)
    assert_rows(dataset[np.array(numbers)], expected, numbers)
    assert_rows(dataset[torch.tensor(numbers)], expected, numbers)
    assert_rows(dataset[3:11:2], expected, [3, 5, 7, 9])
    assert_rows(dataset[[]], expected, [])
    for number in (0, 9, -1, np.int64(4), torch.tensor(2)):
        item = dataset[number]
        for name, rows in expected.items():
            assert torch.equal(item[name], rows[int(number)]), name
    for item, number in zip(dataset.__getitems__([8, 2]), (8, 2), strict=True):
        assert torch.equal(item["state"], expected["state"][number])


def test_samples_do_not_depend_on_how_the_loader_orders_them(cache):
    expected = in_order(cache).dataset[[1, 30, 8]]
    for options in ({"shuffle": True, "seed": 5}, {"rank": 1, "world_size": 2}, {"shuffle": True, "weights": {0: 9.0}}):
        loader = in_order(cache, **options)
        assert len(loader.dataset) == loader.num_anchors
        assert_rows(loader.dataset[[1, 30, 8]], expected, [0, 1, 2])


@pytest.mark.parametrize("workers", [0, 2])
def test_samplers_of_torch_draw_from_it(cache, workers):
    loader = in_order(cache, windows={name: WINDOWS[name] for name in ("state", "force")})
    expected = whole(loader)
    generator = torch.Generator().manual_seed(1)
    numbers = list(WeightedRandomSampler(torch.arange(len(loader.dataset)) % 3, 24, generator=generator))
    batches = list(DataLoader(loader.dataset, 8, sampler=numbers, num_workers=workers))
    assert len(batches) == 3
    for i, batch in enumerate(batches):
        assert_rows(batch, expected, numbers[8 * i : 8 * i + 8])
    sampler = BatchSampler(RandomSampler(loader.dataset, generator=torch.Generator().manual_seed(2)), 10, False)
    drawn = list(BatchSampler(RandomSampler(loader.dataset, generator=torch.Generator().manual_seed(2)), 10, False))
    for got in (
        DataLoader(loader.dataset, batch_sampler=drawn, num_workers=workers),
        DataLoader(loader.dataset, sampler=sampler, batch_size=None, num_workers=workers),
    ):
        for numbers, batch in zip(drawn, got, strict=True):
            assert_rows(batch, expected, numbers)


def test_numbers_go_on_through_the_caches_of_a_mixture(tmp_path):
    caches = [make_cache(tmp_path / str(i), episodes=3, seed=i) for i in range(3)]
    windows = {"state": WINDOWS["state"]}
    parts = [whole(in_order(c, windows=windows)) for c in caches]
    loader = Loader(Mixture([(c, i + 1.0) for i, c in enumerate(caches)]), 4, windows, return_index=True)
    state = torch.cat([p["state"] for p in parts])
    source = torch.cat([torch.full_like(p["source_index"], i) for i, p in enumerate(parts)])
    assert len(loader.dataset) == len(state)
    got = loader.dataset[range(len(state))]
    assert torch.equal(got["state"], state)
    assert torch.equal(got["source_index"], source)


@pytest.mark.parametrize("method", ["cubic", "mean"])
def test_windows_that_are_read_step_by_step_have_numbers_too(cache, method):
    for tier in ("memory", "mmap"):
        loader = in_order(cache, tier, windows={"state": Window(past=0.02, rate_hz=100, method=method)})
        expected = whole(loader)
        assert_rows(loader.dataset[[40, 1, 1, 22]], expected, [40, 1, 1, 22])


def test_features_and_texts_are_in_the_items(cache):
    features = {
        "observation": Feature(["state", "force"], rate_hz=100, past=0.01),
        "action": Feature("state", future=0.02, rate_hz=100, relative_to="anchor", normalize="mean_std"),
        "task": Feature("task"),
    }
    loader = Loader(cache, 6, features=features, shuffle=False, drop_last=False)
    expected = whole(loader)
    assert_rows(loader.dataset[[2, 60, 2]], expected, [2, 60, 2])
    assert loader.dataset[60]["task"] == expected["task"][60]


def test_random_edits_are_those_of_an_epoch_in_order(tmp_path):
    pil = pytest.importorskip("PIL.Image")
    spec = StreamSpec("cam", "uint8", (24, 32, 3), "image", codec="jpeg")
    rng = np.random.default_rng(0)
    pictures = []
    for _ in range(9):
        data = io.BytesIO()
        pil.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)).save(data, "JPEG")
        pictures.append(data.getvalue())
    writer = CacheWriter(tmp_path / "c", {"cam": spec})
    times = np.arange(9, dtype=np.int64) * 10**8
    writer.add(Episode(0, {"cam": EpisodeStream(spec, pictures, times)}))
    windows = {"cam": Window(image=Image(crop=RandomCrop(0.5), flip=0.5))}
    loader = Loader(writer.commit(), 4, windows, anchors="cam", shuffle=False, drop_last=False)
    for epoch in (0, 3):
        loader.set_epoch(epoch)
        expected = torch.cat([loader.batch(step)["cam"] for step in range(len(loader))])
        assert torch.equal(loader.dataset[[7, 0, 7]]["cam"], expected[[7, 0, 7]])
    assert not torch.equal(loader.batch(0, 0)["cam"], loader.batch(0, 3)["cam"])


def test_a_dataset_is_pickled_with_its_loader(cache):
    loader = in_order(cache, windows={"state": WINDOWS["state"]})
    copy = pickle.loads(pickle.dumps(loader.dataset))
    assert torch.equal(copy[4]["state"], loader.dataset[4]["state"])
    assert repr(copy).endswith(".dataset")


@pytest.mark.parametrize(
    ("index", "error", "words"),
    [
        (10**6, IndexError, r"Loader.dataset: sample must be from -\d+ to \d+, got 1000000"),
        ([0, -(10**6)], IndexError, "got -1000000"),
        (0.5, TypeError, "Loader.dataset: a sample must be a whole number, got 0.5"),
        ("state", TypeError, "Loader.dataset: a sample must be a whole number, got 's'"),
    ],
)
def test_samples_that_are_not_there_are_refused(cache, index, error, words):
    with pytest.raises(error, match=words):
        in_order(cache, windows={"state": WINDOWS["state"]}).dataset[index]


def test_the_native_reader_refuses_numbers_of_no_sample(cache):
    table = _core.AnchorTable(torch.tensor([0, 4]), torch.arange(4), 4, 0.0, 1)
    out = torch.empty((2, 2), dtype=torch.int64)

    def draw(numbers, first=0):
        order = _core.SampleOrder(0, 0, 0, True, torch.tensor(numbers))
        _core.sample_anchors([table, table], order, first, out[0], out[1])
        return out.tolist()

    assert draw([7, 2, 4], 0) == [[1, 0], [3, 2]]
    assert draw([7, 2, 4], 1) == [[0, 1], [2, 0]]
    for numbers, words in (([0, 8], r"numbers\[1\] must be from 0 to 7, got 8"), ([-1, 0], r"numbers\[0\] must be")):
        with pytest.raises(ValueError, match=words):
            draw(numbers)
    with pytest.raises(ValueError, match="numbers must have 3 entries, got"):
        draw([1, 2], 1)
    with pytest.raises(ValueError, match="numbers must have dtype int64"):
        draw([1.0, 2.0])


def test_the_specs_of_the_cases_have_what_is_read():
    assert set(WINDOWS) <= set(SPECS)
