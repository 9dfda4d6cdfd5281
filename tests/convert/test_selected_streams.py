"""Export, check and view read only the streams that are selected, and name those that turn up later."""

import adapter_logs as logs
import pytest
import robocache
from cache_cases import SPECS, MadeSource
from robocache import FormatError, LeftOut
from robocache.cache.episode import Episode
from robocache.cli.facts import facts


class Damaged(MadeSource):
    """Its stream ``arm`` can be read, the others cannot."""

    def __init__(self):
        super().__init__({name: SPECS[name] for name in ("arm", "camera/wrist")}, 2)

    def episode(self, index, streams=None):
        if streams is None or set(streams) != {"arm"}:
            raise FormatError(f"the camera of episode {index} is damaged")
        whole = MadeSource({"arm": SPECS["arm"]}, 2).episode(index)
        return Episode(index, {"arm": whole.streams["arm"]}, None, {})


def test_a_damaged_stream_that_is_not_selected_stops_nothing(tmp_path):
    source = Damaged()
    with pytest.raises(FormatError, match="the camera of episode 0 is damaged"):
        robocache.export(source, tmp_path / "out", fps=30)
    assert robocache.export(source, tmp_path / "out", fps=30, streams=["arm"]).episodes == 2
    assert {finding.kind for finding in robocache.check(source).findings} == {"unreadable"}
    kinds = {finding.kind for finding in robocache.check(source, streams=["arm"]).findings}
    assert "unreadable" not in kinds


def test_view_reads_only_the_streams_that_are_selected(tmp_path):
    pytest.importorskip("rerun")
    assert robocache.view(Damaged(), streams=["arm"], save=tmp_path / "x.rrd") == [0]


def test_streams_that_turn_up_in_later_episodes_are_told(tmp_path):
    """ingest refuses them; the others said nothing."""
    pytest.importorskip("mcap_ros2", reason="MCAP is written with mcap-ros2-support")
    for name, effort in (("a", []), ("b", [9.0]), ("c", [8.0])):
        log = logs.Log(tmp_path / f"{name}.mcap")
        message = {"header": logs.stamp(logs.START_NS), "name": ["j"], "position": [1.0], "velocity": []}
        log.write("/arm", "sensor_msgs/msg/JointState", {**message, "effort": effort}, logs.START_NS)
        log.close()
    options = {"clock": "log_time"}
    reason = "only in 2 episodes, the first is 1: the source did not have it when it was opened"
    late = [LeftOut("/arm/effort", reason)]
    assert robocache.export(tmp_path, tmp_path / "out", fps=10, **options).left_out == late
    assert robocache.check(tmp_path, **options).left_out == [
        LeftOut("out", "neither an MCAP file nor a folder of a bag"),
        *late,
    ]
    assert facts(robocache.open(tmp_path, **options))["left_out"][1:] == [late[0].to_json()]
