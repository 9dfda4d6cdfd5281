"""decode_images under jax.jit: the bits of the eager call, and what must be known while a function is traced."""

import io

import jax
import numpy as np
import pytest
import robocache
from jax_calls import needs_handlers, without_x64
from PIL import Image

pytestmark = needs_handlers


def pictures_of(rng, sizes=((48, 64), (48, 64), (48, 64))):
    """(bytes, offsets) and the index of JPEGs."""
    files = []
    for height, width in sizes:
        pixels = rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90)
        files.append(np.frombuffer(file.getvalue(), np.uint8))
    offsets = np.cumsum([0, *(len(f) for f in files)]).astype(np.int64)
    data = np.concatenate(files)
    return data, offsets, robocache.index_pictures((data, offsets))


STYLES = {
    "plain": {},
    "resized": {"size": (24, 30), "layout": "CHW", "dtype": "float32", "normalize": "imagenet"},
    "edited": {
        "crop": [(0, 0, 32, 32), (8, 8, 40, 40)],
        "flip": [True, False],
        "color": (1.1, 0.9, 1.2),
        "rows": [2, 0],
    },
    "gray": {"channels": 1, "dtype": "bfloat16", "size": (9, 9), "filter": "area"},
}


@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize("style", STYLES)
def test_pixels_under_jit_have_the_bits_of_the_eager_call(style, x64, rng):
    data, offsets, index = pictures_of(rng)
    want = robocache.decode_images((data, offsets), index=index, **STYLES[style])

    def call(data):
        return robocache.decode_images((data, offsets), index=index, **STYLES[style])

    if x64:
        got = jax.jit(call)(data)
        np.testing.assert_array_equal(
            jax.jit(lambda d, o: robocache.decode_images((d, o), index=index, **STYLES[style]))(data, offsets), got
        )
    else:
        with without_x64():
            got = jax.jit(call)(data)
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.asarray(got).view(np.uint8), np.asarray(want).view(np.uint8))


def test_pixels_flow_into_the_rest_of_a_function(rng):
    data, offsets, index = pictures_of(rng)

    @jax.jit
    def brightness(data, gain):
        return (robocache.decode_images((data, offsets), index=index, dtype="float32") * gain).mean()

    want = robocache.decode_images((data, offsets), index=index, dtype="float32").mean()
    np.testing.assert_allclose(brightness(data, 1.0), want, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(brightness, argnums=1)(data, 1.0), want, rtol=1e-5)


def test_maps_decode_one_by_one(rng):
    data, offsets, index = pictures_of(rng)
    call = lambda d: robocache.decode_images((d, offsets), index=index)  # noqa: E731
    got = jax.jit(jax.vmap(call))(np.stack([data, data]))
    np.testing.assert_array_equal(got[1], call(data))


def test_bytes_that_do_not_fit_their_index_raise_with_the_message_of_the_eager_call(rng):
    data, offsets, index = pictures_of(rng)
    damaged = data.copy()
    damaged[offsets[1] + 600 : offsets[2]] = 0xFF
    with pytest.raises((ValueError, robocache.FormatError)) as eager:
        robocache.decode_images((damaged, offsets), index=index)
    with pytest.raises(Exception, match="decode_images") as error:
        jax.block_until_ready(jax.jit(lambda d: robocache.decode_images((d, offsets), index=index))(damaged))
    assert str(eager.value) in str(error.value)


def test_what_a_trace_cannot_know_is_refused(rng):
    data, offsets, index = pictures_of(rng, ((48, 64), (32, 64)))
    with pytest.raises(ValueError, match=r"index must be given in a traced call.*index_pictures before jax.jit"):
        jax.jit(lambda d: robocache.decode_images((d, offsets)))(data)
    with pytest.raises(ValueError, match="decode_images: "):  # pictures of two sizes would be a list
        jax.jit(lambda d: robocache.decode_images((d, offsets), index=index))(data)
    with pytest.raises(ValueError, match=r"pictures must be \(bytes, offsets\) in a traced call, got list"):
        jax.jit(lambda d: robocache.decode_images([d], index=index))(data)
    with pytest.raises(ValueError, match="offsets must have"):
        jax.jit(lambda d: robocache.decode_images((d, offsets[:-1]), index=index, size=(8, 8)))(data)
