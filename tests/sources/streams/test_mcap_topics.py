"""Topics to streams: no topic takes the place of another, and one without values is named. Names of bag files."""

import adapter_logs as logs
import numpy as np
import pytest
import robocache
from hostile import refused
from robocache import LeftOut

pytest.importorskip("mcap_ros2", reason="MCAP is written with mcap-ros2-support")
JOINTS, NUMBERS = "sensor_msgs/msg/JointState", "std_msgs/msg/Float64MultiArray"
CLOCK = {"clock": "log_time"}


def joints(position=(), velocity=(), name=()):
    return {"name": [*name], "position": [*position], "velocity": [*velocity], "effort": []}


def numbers(*values):
    return {"layout": {"dim": [], "data_offset": 0}, "data": [*values]}


def log_of(path, *topics):
    """``topics``: name, type and a message, which is written three times."""
    path.parent.mkdir(parents=True, exist_ok=True)
    log = logs.Log(path)
    for i in range(3):
        for topic, kind, message in topics:
            log.write(topic, kind, message, logs.START_NS + i)
    log.close()
    return path


TWO = (("/arm", JOINTS, joints([1.0, 2.0])), ("/arm/position", NUMBERS, numbers(8.0, 9.0)))


def test_topics_that_give_streams_of_one_name_are_an_error_that_names_them(tmp_path):
    path = log_of(tmp_path / "x.mcap", *TWO)
    message = "the topics /arm and /arm/position both give the stream /arm/position; leave one of them out"
    refused(path, message, **CLOCK)
    for topic, first in (("/arm", 1.0), ("/arm/position", 8.0)):
        values = robocache.open(path, topics=[topic], **CLOCK).episode(0).streams["/arm/position"].values
        assert values[:, 0].tolist() == [first] * 3


def test_topics_that_give_one_name_only_in_a_later_file_are_an_error_there(tmp_path):
    log_of(tmp_path / "a.mcap", ("/arm", JOINTS, joints([1.0, 2.0])))
    log_of(tmp_path / "b.mcap", ("/arm", JOINTS, joints([], [3.0])), ("/arm/velocity", NUMBERS, numbers(9.0)))
    source = robocache.open(tmp_path, **CLOCK)
    assert sorted(source.episode(0).streams) == ["/arm/position", "/arm/velocity"]
    with pytest.raises(robocache.FormatError, match="/arm/velocity and /arm both give the stream /arm/velocity"):
        source.episode(1)


def test_a_topic_whose_messages_have_no_values_is_told(tmp_path):
    path = log_of(tmp_path / "x.mcap", ("/arm", JOINTS, joints(name=["a"])), ("/force", NUMBERS, numbers(1.0)))
    source = robocache.open(path, **CLOCK)
    assert source.left_out == [LeftOut("/arm", "its messages have no values")]
    assert list(robocache.ingest(path, tmp_path / "cache", **CLOCK).specs) == ["/force"]


def test_a_topic_that_has_values_in_a_later_file_only_is_a_stream(tmp_path):
    log_of(tmp_path / "a.mcap", ("/arm", JOINTS, joints(name=["a"])), ("/force", NUMBERS, numbers(1.0)))
    log_of(tmp_path / "b.mcap", ("/arm", JOINTS, joints([2.0], name=["a"])), ("/force", NUMBERS, numbers(1.0)))
    cache = robocache.ingest(tmp_path, tmp_path / "cache", **CLOCK)
    assert not cache.left_out
    rows = [cache.episode(i).streams["/arm/position"].values.ravel().tolist() for i in range(2)]
    assert rows == [[], [2.0] * 3]


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("run #1.mcap", "\n    - 'run #1.mcap'\n"),
        ("run#1.mcap", "\n    - run#1.mcap # the first\n"),
        ("it's.mcap", "\n    - 'it''s.mcap'  # quoted\n"),
        ("it's.mcap", "\n    - it's.mcap\n"),
        ("'q'.mcap", "\n    - \"'q'.mcap\"\n"),
        ("tab\tü\n.mcap", '\n    - "tab\\t\\xfc\\n.mcap"\n'),
        ("猫.mcap", '\r\n  - "\\u732b.mcap"\r\n'),
        ("a, b].mcap", " ['a, b].mcap']\n"),
        ("a.mcap", " [\n    a.mcap,\n  ]\n  version: 5\n"),
    ],
)
def test_a_bag_may_name_its_file_in_any_way_of_yaml(tmp_path, name, listed):
    log_of(tmp_path / name, ("/force", NUMBERS, numbers(1.0)))
    with (tmp_path / "metadata.yaml").open("w", newline="") as file:
        file.write(f"rosbag2_bagfile_information:\n  relative_file_paths:{listed}  message_count: 3\n")
    episode = robocache.open(tmp_path, **CLOCK).episode(0)
    assert episode.meta["files"] == [name]
    assert np.array_equal(episode.streams["/force"].values, np.ones((3, 1)))


@pytest.mark.parametrize("listed", [" ['a.mcap\n", ' ["a.mcap', " [a.mcap\n", " [" + '"\\"' * 100_000, ' "' * 100_000])
def test_a_list_of_a_bag_that_does_not_end_is_refused(tmp_path, listed):
    log_of(tmp_path / "a.mcap", ("/force", NUMBERS, numbers(1.0)))
    (tmp_path / "metadata.yaml").write_text(f"x:\n  relative_file_paths:{listed}")
    refused(tmp_path, "cannot be read|lists no files", **CLOCK)


def test_a_changed_list_of_a_bag_is_another_state_of_it(tmp_path):
    """It says in which order the files are read."""
    prints = []
    for names in ("ab", "ba"):
        (tmp_path / "metadata.yaml").write_text(f"x:\n  relative_file_paths: [{names[0]}.mcap, {names[1]}.mcap]\n")
        for name in "ab":
            if not prints:
                log_of(tmp_path / f"{name}.mcap", ("/force", NUMBERS, numbers(1.0)))
        prints.append(robocache.open(tmp_path, **CLOCK).fingerprint())
    assert prints[0] != prints[1]
