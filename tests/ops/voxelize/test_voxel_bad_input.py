"""Bad input of voxelization: the documented exception, and a message with argument, rule and what was given."""

import re

import numpy as np
import pytest
import robocache
import torch
from arrays import BFLOAT16, on, to_numpy
from voxel_cases import OF_FEATURES

POINTS, FEATURES = np.full((5, 3), 0.5, np.float32), np.ones((5, 2), np.float32)
DEPTH, CAMERA, POSE = np.full((3, 4, 6), 900, np.uint16), np.eye(3, dtype=np.float32), np.eye(4, dtype=np.float32)
CUBE = {"grid_min": (0, 0, 0), "voxel_size": 1.0, "grid_size": (4, 4, 4)}
GOOD = {
    "voxelize_pointcloud": {"points": POINTS, **CUBE},
    "voxelize_sparse": {"points": POINTS, "features": FEATURES, **CUBE},
    "voxelize_depth": {"depth": DEPTH, "intrinsics": CAMERA, "pose": POSE, **CUBE},
}
MEAN = {"mode": "mean", "features": FEATURES}

# what is wrong: (changes to a good call, the argument that is named, what was given)
GRID = {
    "a voxel size of 0": ({"voxel_size": 0.0}, "voxel_size", "0"),
    "a negative voxel size": ({"voxel_size": -0.1}, "voxel_size", "-0.1"),
    "a NaN voxel size": ({"voxel_size": np.nan}, "voxel_size", "nan"),
    "an infinite voxel size": ({"voxel_size": np.inf}, "voxel_size", "inf"),
    "a voxel size of 0 on one axis": ({"voxel_size": (0.1, 0.1, 0)}, "voxel_size", "0"),
    "a negative voxel size on one axis": ({"voxel_size": (0.1, -0.25, 1)}, "voxel_size", "-0.25"),
    "two voxel sizes": ({"voxel_size": (0.1, 0.1)}, "voxel_size", "(0.1, 0.1)"),
    "four voxel sizes": ({"voxel_size": (1, 1, 1, 1)}, "voxel_size", "(1, 1, 1, 1)"),
    "a voxel size that is a name": ({"voxel_size": "small"}, "voxel_size", "'small'"),
    "no voxel size": ({"voxel_size": None}, "voxel_size", "None"),
    "a voxel size that is 0 in float32": ({"voxel_size": 1e-50}, "voxel_size", "1e-50"),
    "a voxel size past float32": ({"voxel_size": 1e39}, "voxel_size", "1e+39"),
    "a NaN origin": ({"grid_min": (0, np.nan, 0)}, "grid_min", "nan"),
    "an infinite origin": ({"grid_min": (0, 0, -np.inf)}, "grid_min", "-inf"),
    "an origin past float32": ({"grid_min": (0, 0, 1e39)}, "grid_min", "1e+39"),
    "an origin of two numbers": ({"grid_min": (0, 0)}, "grid_min", "(0, 0)"),
    "an origin of one number": ({"grid_min": 0.0}, "grid_min", "0.0"),
    "a grid without cells": ({"grid_size": (4, 0, 4)}, "grid_size", "(4, 0, 4)"),
    "a grid of negative size": ({"grid_size": (4, 4, -1)}, "grid_size", "(4, 4, -1)"),
    "a grid of two axes": ({"grid_size": (4, 4)}, "grid_size", "(4, 4)"),
    "a grid of parts of cells": ({"grid_size": (4, 4, 4.5)}, "grid_size", "4.5"),
    "more cells than 2^63": ({"grid_size": (2**31, 2**31, 2**31)}, "grid_size", "2147483648"),
    "more cells than 2^64": ({"grid_size": (2**40, 2**40, 2**40)}, "grid_size", "1099511627776"),
    "a size past int64": ({"grid_size": (4, 4, 2**70)}, "grid_size", "1180591620717411303424"),
    "an unknown mode": ({"mode": "median"}, "mode", "median"),
    "a mode in capitals": ({"mode": "Count"}, "mode", "Count"),
    "a mode that is a number": ({"mode": 3}, "mode", "3"),
    "a deterministic that is a name": ({"deterministic": "yes"}, "deterministic", "'yes'"),
}
CLOUD = {
    "one point": ({"points": np.zeros(3, np.float32)}, "points", "(3,)"),
    "a batch of clouds": ({"points": np.zeros((2, 5, 3), np.float32)}, "points", "(2, 5, 3)"),
    "points of two numbers": ({"points": POINTS[:, :2]}, "points", "(5, 2)"),
    "points of four numbers": ({"points": np.zeros((5, 4), np.float32)}, "points", "(5, 4)"),
    "points without dimensions": ({"points": np.array(1.0, np.float32)}, "points", "()"),
    "int32 points": ({"points": POINTS.astype(np.int32)}, "points", "int32"),
    "bfloat16 points": ({"points": POINTS.astype(BFLOAT16)}, "points", "bfloat16"),
    "complex points": ({"points": POINTS.astype(np.complex64)}, "points", "complex64"),
    "features of other points": ({**MEAN, "features": FEATURES[:4]}, "features", "(4, 2)"),
    "features without channels": ({**MEAN, "features": FEATURES[:, 0]}, "features", "(5,)"),
    "features of images": ({**MEAN, "features": FEATURES[:, :, None]}, "features", "(5, 2, 1)"),
    "float64 features": ({**MEAN, "features": FEATURES.astype("f8")}, "features", "float64"),
    "int32 features": ({**MEAN, "features": FEATURES.astype("i4")}, "features", "int32"),
    "bool features": ({**MEAN, "features": FEATURES.astype(bool)}, "features", "bool"),
    "features to count": ({"mode": "count", "features": FEATURES}, "mode", "count"),
    "features to see": ({"mode": "occupancy", "features": FEATURES}, "mode", "occupancy"),
    "offsets that begin late": ({"offsets": np.array([1, 5])}, "offsets", "1"),
    "offsets that end early": ({"offsets": np.array([0, 3, 4])}, "offsets", "4"),
    "offsets that end late": ({"offsets": np.array([0, 3, 6])}, "offsets", "6"),
    "offsets that decrease": ({"offsets": np.array([0, 7, 5])}, "offsets", "5 after 7"),
    "negative offsets": ({"offsets": np.array([0, -1, 5])}, "offsets", "-1"),
    "int32 offsets": ({"offsets": np.array([0, 5], np.int32)}, "offsets", "int32"),
    "float offsets": ({"offsets": np.array([0.0, 5.0])}, "offsets", "float64"),
    "offsets with two dimensions": ({"offsets": np.array([[0, 5]])}, "offsets", "(1, 2)"),
    "no offsets at all": ({"offsets": np.array([], np.int64)}, "offsets", "(0,)"),
}
DENSE = {
    "no grid size": ({"grid_size": None}, "grid_size", "None"),
    "occupancy as int64": ({"dtype": "int64"}, "dtype", "int64"),
    "occupancy as float16": ({"dtype": "float16"}, "dtype", "float16"),
    "counts as float32": ({"mode": "count", "dtype": "float32"}, "dtype", "float32"),
    "counts as bool": ({"mode": "count", "dtype": "bool"}, "dtype", "bool"),
    "an unknown dtype": ({"dtype": "float8"}, "dtype", "float8"),
    "float32 features as float16": ({**MEAN, "dtype": "float16"}, "dtype", "float16"),
    "features as int32": ({**MEAN, "dtype": "int32"}, "dtype", "int32"),
    "features as float64": ({**MEAN, "dtype": "float64"}, "dtype", "float64"),
    "bytes as bytes": ({**MEAN, "features": FEATURES.astype("u1"), "dtype": "uint8"}, "dtype", "uint8"),
    "a fill that is a name": ({**MEAN, "mode": "max", "fill": "nothing"}, "fill", "'nothing'"),
}
SPARSE = {
    "no room for voxels": ({"max_voxels": 0}, "max_voxels", "0"),
    "negative room": ({"max_voxels": -3}, "max_voxels", "-3"),
    "room for half a voxel": ({"max_voxels": 1.5}, "max_voxels", "1.5"),
    "the first 0 points": ({"max_points": 0}, "max_points", "0"),
    "the first -1 points": ({"max_points": -1}, "max_points", "-1"),
    "padding without an end": ({"padded": True}, "max_voxels", "None"),
    "an axis past int32": ({"grid_size": (1, 1, 2**31 + 1)}, "grid_size", "2147483649"),
    "a grid without any cells": ({"grid_size": (0, 0, 0)}, "grid_size", "(0, 0, 0)"),
}
IMAGES = {
    "a depth scale past float32": ({"depth_scale": 1e39}, "depth_scale", "1e+39"),
    "a depth scale that is 0 in float32": ({"depth_scale": 1e-50}, "depth_scale", "1e-50"),
    "a row of pixels": ({"depth": DEPTH[0, 0]}, "depth", "(6,)"),
    "views that are not said to be views": ({"depth": DEPTH[None]}, "depth", "(1, 3, 4, 6)"),
    "an image as views": ({"depth": DEPTH[0], "views": True}, "depth", "(4, 6)"),
    "batches of batches": ({"depth": DEPTH[None, None], "views": True}, "depth", "(1, 1, 3, 4, 6)"),
    "float64 depth": ({"depth": DEPTH.astype("f8")}, "depth", "float64"),
    "int32 depth": ({"depth": DEPTH.astype("i4")}, "depth", "int32"),
    "uint8 depth": ({"depth": DEPTH.astype("u1")}, "depth", "uint8"),
    "a camera of 3 x 4": ({"intrinsics": np.eye(3, 4, dtype="f4")}, "intrinsics", "(3, 4)"),
    "four numbers for a camera": ({"intrinsics": np.ones(4, "f4")}, "intrinsics", "(4,)"),
    "two cameras for three images": ({"intrinsics": np.stack([CAMERA] * 2)}, "intrinsics", "(2, 3, 3)"),
    "a bool camera": ({"intrinsics": np.eye(3, dtype=bool)}, "intrinsics", "bool"),
    "a camera with a hole": ({"intrinsics": [[1, 0, 0], [0, None, 0], [0, 0, 1]]}, "intrinsics", "object"),
    "rows of several lengths": ({"intrinsics": [[1, 0, 0], [0, 1], [0, 0, 1]]}, "intrinsics", "[[1, 0, 0], [0, 1]"),
    "a pose of several lengths": ({"pose": [[1.0], [0.0, 1.0]]}, "pose", "[[1.0], [0.0, 1.0]]"),
    "a pose of 3 x 4": ({"pose": POSE[:3]}, "pose", "(3, 4)"),
    "two poses for three images": ({"pose": np.stack([POSE] * 2)}, "pose", "(2, 4, 4)"),
    "colors of other pixels": ({"mode": "max", "features": np.zeros((3, 6, 4, 3), "u1")}, "features", "(3, 6, 4, 3)"),
    "colors of one image": ({"mode": "max", "features": np.zeros((4, 6, 3), "u1")}, "features", "(4, 6, 3)"),
    "int32 colors": ({"mode": "max", "features": np.zeros((3, 4, 6, 3), "i4")}, "features", "int32"),
    "colors to count": ({"mode": "count", "features": np.zeros((3, 4, 6, 3), "u1")}, "mode", "count"),
    "a depth scale of 0": ({"depth_scale": 0}, "depth_scale", "0"),
    "a negative depth scale": ({"depth_scale": -0.001}, "depth_scale", "-0.001"),
    "a NaN depth scale": ({"depth_scale": np.nan}, "depth_scale", "nan"),
    "a deepest depth of 0": ({"max_depth": 0.0}, "max_depth", "0.0"),
    "a negative deepest depth": ({"max_depth": -2}, "max_depth", "-2"),
    "a NaN deepest depth": ({"max_depth": np.nan}, "max_depth", "nan"),
}
TABLES = {
    "voxelize_pointcloud": {**GRID, **CLOUD, **DENSE},
    "voxelize_sparse": {**GRID, **CLOUD, **SPARSE},
    "voxelize_depth": {**GRID, **{k: v for k, v in DENSE.items() if "features" not in v[0]}, **IMAGES},
}
BAD = [(op, what) for op, table in TABLES.items() for what in table]


def call(op, changes, backend):
    given = {**GOOD[op], **changes}
    arrays = {name: on(backend, x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    return getattr(robocache, op)(**arrays, backend=backend, **({} if op == "voxelize_depth" else {"check": True}))


@pytest.mark.parametrize("op", GOOD)
def test_the_good_calls_that_the_bad_ones_change_are_good(op, backend):
    call(op, {}, backend)


@pytest.mark.parametrize(("op", "what"), BAD, ids=lambda x: x)
def test_bad_input_is_refused_with_a_message(op, what, backend):
    changes, argument, given = TABLES[op][what]
    form = rf"^{op}: {argument}\b.* must .*got .*{re.escape(given)}"
    with pytest.raises(ValueError, match=form):
        call(op, changes, backend)


@pytest.mark.parametrize("mode", OF_FEATURES)
@pytest.mark.parametrize("op", ["voxelize_pointcloud", "voxelize_depth"])
def test_features_must_be_there_to_be_reduced(op, mode, backend):
    with pytest.raises(ValueError, match=rf"^{op}: features must be given for mode '{mode}'"):
        call(op, {"mode": mode}, backend)


def test_an_unknown_mode_is_answered_with_the_choices(backend):
    with pytest.raises(ValueError, match="occupancy, count, sum, mean, min, max or std"):
        call("voxelize_pointcloud", {"mode": "median"}, backend)


@pytest.mark.parametrize("op", GOOD)
def test_a_grid_that_cannot_fit_is_a_memory_error_that_names_the_bytes(op, backend):
    if op == "voxelize_sparse":
        points = np.full((5, 3), 0.5)  # an output of max_voxels rows is what does not fit here
        with pytest.raises(MemoryError, match=rf"^{op}: no memory for .*, {4 * 4 * 10**14} bytes"):
            call(op, {"points": points, "features": None, "max_voxels": 10**14, "padded": True}, backend)
        return
    cells = 10**15 * (len(DEPTH) if op == "voxelize_depth" else 1)
    with pytest.raises(MemoryError, match=rf"^{op}: no memory for a grid of .*, {4 * cells} bytes"):
        call(op, {"grid_size": (10**5,) * 3}, backend)
    with pytest.raises(MemoryError, match=rf"^{op}: no memory for a grid of .*, {cells} bytes"):
        call(op, {"grid_size": (10**5,) * 3, "dtype": "uint8"}, backend)


def test_after_a_grid_that_cannot_fit_the_next_one_is_made(backend):
    with pytest.raises(MemoryError):
        call("voxelize_pointcloud", {"grid_size": (10**5,) * 3}, backend)
    assert int(to_numpy(call("voxelize_pointcloud", {"mode": "count"}, backend)).sum()) == 5


@pytest.mark.parametrize("offsets", [[0, 5, 99], [-7, 5, 5], [0, 4, 2], [3, 3, 3], [2**62, -(2**62), 5], [0, 1, 1]])
@pytest.mark.parametrize("mode", ["count", "mean", "max"])
def test_without_a_check_bad_offsets_read_no_foreign_memory(mode, offsets, backend):
    given = {**GOOD["voxelize_pointcloud"], "mode": mode, "backend": backend, "check": False, "return_info": True}
    given["points"], given["offsets"] = on(backend, POINTS), on(backend, np.array(offsets))
    given["features"] = None if mode == "count" else on(backend, FEATURES)
    grid, info = robocache.voxelize_pointcloud(**given)
    assert grid.shape[:4] == (len(offsets) - 1, 4, 4, 4)
    grid = to_numpy(grid)
    assert set(np.unique(grid)) <= ({0, 1, 2, 3, 4, 5} if mode == "count" else {0.0, 1.0})
    assert not grid[:, 1:].any()  # all points are in cell 0
    assert to_numpy(info.counts).sum() <= 2 * len(POINTS)
    for name in ("mode", "return_info"):
        given.pop(name)
    voxels = robocache.voxelize_sparse(**{**given, "features": on(backend, FEATURES)})
    assert not to_numpy(voxels.coordinates)[:, 1:].any()
    assert set(np.unique(to_numpy(voxels.features))) <= {1.0}


def test_offsets_are_checked_on_the_cpu_if_nothing_is_said():
    with pytest.raises(ValueError, match="offsets must end with"):
        robocache.voxelize_pointcloud(POINTS, offsets=np.array([0, 4]))
    with pytest.raises(ValueError, match="offsets must end with"):
        robocache.voxelize_sparse(POINTS, offsets=np.array([0, 4]))


# ---- what is no array, and where it is -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [None, "torch"])
@pytest.mark.parametrize("name", ["points", "features", "offsets", "depth", "intrinsics", "pose"])
def test_a_mask_is_refused_because_nothing_would_read_it(name, backend):
    given = {"points": POINTS, "features": FEATURES, "offsets": np.array([0, 5]), "mode": "mean"}
    op = robocache.voxelize_pointcloud
    if name in ("depth", "intrinsics", "pose"):
        op, given = robocache.voxelize_depth, {"depth": DEPTH, "intrinsics": CAMERA, "pose": POSE}
    given[name] = np.ma.masked_array(given[name], mask=given[name] == 0)
    with pytest.raises(ValueError, match=rf"^{op.__name__}: {name} must be an array without a mask, .*MaskedArray"):
        op(**given, **CUBE, backend=backend)


def test_lengths_are_not_said_to_be_allowed_to_be_0():
    with pytest.raises(ValueError, match=r"depth_scale must be positive and finite in float32, got 1e\+39$"):
        robocache.voxelize_depth(DEPTH, CAMERA, depth_scale=1e39)


@pytest.mark.parametrize("op", ["voxelize_pointcloud", "voxelize_sparse"])
def test_a_list_is_no_array(op):
    with pytest.raises((TypeError, ValueError), match=f"^{op}: points must"):
        getattr(robocache, op)([[0.0, 0.0, 0.0]])


def test_points_that_want_a_gradient_are_refused():
    points = torch.full((5, 3), 0.5, requires_grad=True)
    for call_ in (robocache.voxelize_pointcloud, robocache.voxelize_sparse):
        with pytest.raises(NotImplementedError, match=r"points must not require grad.*only features"):
            call_(points)
        with torch.no_grad():
            call_(points)
    depth = torch.ones(4, 6, requires_grad=True)
    with pytest.raises(NotImplementedError, match="depth must not require grad"):
        robocache.voxelize_depth(depth, torch.eye(3))


def test_a_backend_that_is_not_there_is_refused():
    with pytest.raises((NotImplementedError, ValueError), match=r"^voxelize_pointcloud: backend .*cuda"):
        robocache.voxelize_pointcloud(POINTS, backend="cuda")
    with pytest.raises((NotImplementedError, ValueError), match=r"^voxelize_sparse: backend .*cuda"):
        robocache.voxelize_sparse(POINTS, backend="cuda")
    with pytest.raises((NotImplementedError, ValueError), match=r"^voxelize_depth: backend .*cuda"):
        robocache.voxelize_depth(DEPTH, CAMERA, backend="cuda")


def test_tensors_of_two_devices_are_refused():
    points, features = torch.from_numpy(POINTS), torch.from_numpy(FEATURES).to("meta")
    with pytest.raises((ValueError, NotImplementedError), match=r"^voxelize_pointcloud: features"):
        robocache.voxelize_pointcloud(points, features, mode="mean")
