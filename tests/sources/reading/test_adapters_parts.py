"""The readers that adapters bring along: CRC32C, varints, and the language of CALVIN without unpickling."""

import io

import adapter_logs as logs
import numpy as np
import pytest
import robocache
from robocache import _core
from robocache.sources.calvin import language as calvin_language
from robocache.sources.rlds import rates, tfrecord

LENGTHS = [0, 1, 9, 1000, 65535, 65536, 65537, 131072, 200_001, 1 << 20]


def test_crc32c_of_known_bytes():
    assert _core.crc32c(b"123456789") == 0xE3069283
    assert _core.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert _core.crc32c(b"\xff" * 32) == 0x62A8AB43


@pytest.mark.parametrize("length", LENGTHS)
def test_crc32c_is_that_of_its_reference(rng, length):
    reference = pytest.importorskip("google_crc32c", reason="the reference for CRC32C")
    data = rng.bytes(length)
    assert _core.crc32c(data) == reference.value(data)


def test_examples_are_read_as_protobuf_wrote_them(rng):
    pytest.importorskip("google.protobuf", reason="Examples are written with protobuf")
    values = {
        "i": np.concatenate([[0, 1, 127, 128, -1, 2**63 - 1, -(2**63)], rng.integers(-(2**63), 2**63 - 1, 500)]),
        "f": rng.standard_normal(300).astype(np.float32),
        "b": [b"", b"x", bytes(300)],
        "none": np.empty(0, np.float32),
    }
    found = tfrecord.read_example(logs.make_example(values), "x")
    np.testing.assert_array_equal(found["i"], values["i"])
    np.testing.assert_array_equal(found["f"], values["f"])
    assert found["b"] == values["b"]
    assert len(found["none"]) == 0


def test_numbers_that_are_not_packed_are_read():
    """Field 3 (Int64List) with two values one by one, as old writers had it."""
    feature = b"\x1a\x05\x08\x07\x08\x80\x01"
    entry = b"\x0a\x01a\x12" + bytes([len(feature)]) + feature
    features = b"\x0a" + bytes([len(entry)]) + entry
    example = b"\x0a" + bytes([len(features)]) + features
    np.testing.assert_array_equal(tfrecord.read_example(example, "x")["a"], [7, 128])


def test_plain_things_are_read_as_numpy_saved_them(rng):
    """np.save writes the dict as a program; the reader gives the same without running it."""
    things = {
        "array": rng.standard_normal((3, 4)),
        "fortran": np.asfortranarray(rng.integers(0, 9, (3, 4))),
        "big endian": np.arange(5, dtype=">i4"),
        "texts": ["ä", "", "x" * 1000],
        "tuple": (1, -1, 2**40, 2**80, 1.5, True, None, b"\x00\xff"),
        "scalar": np.float32(2.5),
        "objects": np.array([1, "two", (3,)], dtype=object),
        "nested": {"a": [[{}]]},
    }
    file = io.BytesIO()
    np.save(file, things)
    data = file.getvalue()
    found = calvin_language.read_plain(data[data.index(b"\n") + 1 :], "x")[0]
    for name in ("array", "fortran", "big endian"):
        np.testing.assert_array_equal(found[name], things[name])
        assert found[name].dtype == things[name].dtype
    assert found["objects"] == [1, "two", (3,)]
    for name in ("texts", "tuple", "scalar", "nested"):
        assert found[name] == things[name]


def test_an_array_that_contains_itself_is_refused():
    data = b"(lp0\ng0\na."
    with pytest.raises(robocache.FormatError, match="nested more than 32 deep"):
        calvin_language.read_plain(data, "x")


def test_rates_of_open_x():
    assert rates.open_x_rate("fractal20220817_data") == 3
    assert rates.open_x_rate("asu_table_top_converted_externally_to_rlds") == 12.5
    assert rates.open_x_rate("stanford_mask_vit_converted_externally_to_rlds") is None
    assert all(rate > 0 for rate in rates.OPEN_X_RATES_HZ.values())
