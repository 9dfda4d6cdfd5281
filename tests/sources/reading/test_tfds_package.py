"""What TensorFlow Datasets writes is read here as it reads it itself: values, dtypes, order, tasks.

It wants more than a machine for tests has, so this is skipped where it is missing:
pip install tensorflow-cpu tensorflow-datasets google-crc32c
"""

import numpy as np
import pytest
import robocache

tfds = pytest.importorskip("tensorflow_datasets")
pytest.importorskip("tensorflow")
pytest.importorskip("google_crc32c")

PICTURE = (32, 40, 3)


def step_of(rng, t, length, task):
    return {
        "observation": {
            "image": rng.integers(0, 256, PICTURE, np.uint8),
            "wrist": np.full(PICTURE, 13 * t % 256, np.uint8),
            "state": rng.normal(size=8).astype(np.float32),
            "nested": {"matrix": rng.normal(size=(2, 3)), "count": np.int16(t - 5), "flags": np.uint8(t)},
        },
        "action": rng.normal(size=7).astype(np.float32),
        "reward": np.float32(t == length - 1),
        "is_first": t == 0,
        "is_last": t == length - 1,
        "language_instruction": f"pick {task}",
    }


def builder(folder, rng):
    """RLDS as Open X has it: a dataset of steps in each example, two splits."""
    features = tfds.features

    class Toy(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            step = {
                "observation": features.FeaturesDict({
                    "image": features.Image(shape=PICTURE, dtype=np.uint8, encoding_format="png"),
                    "wrist": features.Image(shape=PICTURE, dtype=np.uint8, encoding_format="jpeg"),
                    "state": features.Tensor(shape=(8,), dtype=np.float32),
                    "nested": features.FeaturesDict({
                        "matrix": features.Tensor(shape=(2, 3), dtype=np.float64),
                        "count": features.Scalar(dtype=np.int16),
                        "flags": features.Scalar(dtype=np.uint8),
                    }),
                }),
                "action": features.Tensor(shape=(7,), dtype=np.float32),
                "reward": features.Scalar(dtype=np.float32),
                "is_first": features.Scalar(dtype=np.bool_),
                "is_last": features.Scalar(dtype=np.bool_),
                "language_instruction": features.Text(),
            }  # fmt: skip
            told = features.FeaturesDict({"file_path": features.Text(), "number": features.Scalar(dtype=np.int64)})
            return tfds.core.DatasetInfo(
                builder=self,
                features=features.FeaturesDict({"steps": features.Dataset(step), "episode_metadata": told}),
            )

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(range(3)), "val": self._generate_examples(range(3, 5))}

        def _generate_examples(self, episodes):
            for e in episodes:
                length = 12 + 3 * e
                steps = [step_of(rng, t, length, e % 3) for t in range(length)]
                yield f"episode {e}", {"steps": steps, "episode_metadata": {"file_path": f"/x/{e}.h5", "number": e}}

    made = Toy(data_dir=folder)
    made.download_and_prepare()
    return made


def test_it_is_read_as_it_reads_itself(tmp_path, rng):
    made = builder(tmp_path, rng)
    source = robocache.open(tmp_path / "toy" / "1.0.0", rate_hz=10)
    expected = [(split, example) for split in ("train", "val") for example in tfds.as_numpy(made.as_dataset(split))]
    assert len(source) == len(expected) == 5
    for episode, (split, example) in zip(source, expected, strict=True):
        steps = list(example["steps"])
        assert episode.meta["split"] == split
        assert episode.meta["episode_metadata/number"] == example["episode_metadata"]["number"]
        assert episode.task == steps[0]["language_instruction"].decode()
        assert len(episode.streams) == 10
        for name, stream in episode.streams.items():
            rows = []
            for row in steps:
                for key in name.split("/"):
                    row = row[key]
                rows.append(row)
            assert stream.values.dtype == np.stack(rows).dtype
            if name == "observation/wrist":  # decoders of JPEG differ
                assert np.abs(stream.values.astype(np.int16) - np.stack(rows)).max() <= 2
            else:
                np.testing.assert_array_equal(stream.values, np.stack(rows), name)
