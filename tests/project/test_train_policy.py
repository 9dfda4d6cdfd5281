"""examples/train_policy: the simulated arm, its logs, and that a policy sees in rollout what it saw in training."""

import base64
import itertools
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import robocache
from paths import ROOT

pytest.importorskip("gymnasium_robotics", reason="pip install -r examples/train_policy/requirements.txt")
pytest.importorskip("mcap_ros2.writer")
pytest.importorskip("matplotlib")
torch = pytest.importorskip("torch")
EXAMPLE = ROOT / "examples" / "train_policy"
sys.path.insert(0, str(EXAMPLE))

import camera  # noqa: E402
import expert  # noqa: E402
import page  # noqa: E402
import policy  # noqa: E402
import record  # noqa: E402
import rollout  # noqa: E402
import run  # noqa: E402
import simulate  # noqa: E402
import train  # noqa: E402
import windows  # noqa: E402
from drawing import picture  # noqa: E402

RATES_HZ = {
    "/arm/joint_states/position": 250,
    "/arm/pose/position": 125,
    "/arm/wrench/force": 125,
    "/gripper/state/position": 50,
    "/block/pose/position": 30,
    "/arm/command/position": 25,
    "/camera/depth": 15,
    "/wrist/image/compressed": 25,
    "/goal/pose/position": 5,
}


@pytest.fixture(scope="module")
def arm():
    return simulate.Arm()


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    out = tmp_path_factory.mktemp("policy") / "logs"
    record.record(out, episodes=3, seed=7)
    return out


@pytest.fixture(scope="module")
def cache(logs):
    return robocache.ingest(logs, logs.parent / "cache", dtype="float32", clock=windows.CLOCK)


@pytest.fixture(scope="module")
def made(cache):
    return policy.Policy.for_loader(windows.load(cache, "train", 0.8, batch_size=1))


def first_episode(cache):
    """All samples of the episode with the seed 7: of three episodes it alone is in this part."""
    (batch,) = windows.load(cache, "validation", 0.2, batch_size=1000)
    return batch


def drive(arm, seed, act=None, disturbance_m=0.0):
    """An episode, with the observation before each command."""
    arm.reset(seed, disturbance_m)
    live, seen = windows.Live(), []
    for _ in range(simulate.EPISODE_COMMANDS):
        seen.append(live.observe(arm.messages, arm.anchor_ns))
        arm.command(*(expert.act(arm.state) if act is None else act(arm)))
    return {name: torch.cat([x[name] for x in seen]) for name in seen[0]}


def test_a_seed_decides_every_bit_of_a_recording(logs, tmp_path):
    """In another process, without the episodes before it, and by other workers."""
    script = [
        sys.executable,
        str(EXAMPLE / "record.py"),
        "--episodes",
        "2",
        "--seed",
        "8",
        "--out",
        str(tmp_path / "b"),
    ]
    subprocess.run([*script, "--workers", "2"], check=True, timeout=120, stdout=subprocess.DEVNULL)
    first, again = ((x / "episode_00001.mcap").read_bytes() for x in (logs, tmp_path / "b"))
    assert (logs / "episode_00002.mcap").read_bytes() == again
    assert (logs / "episode_00001.mcap").read_bytes() == (tmp_path / "b" / "episode_00000.mcap").read_bytes()
    assert first != again


def test_robocache_reads_what_the_robot_said(logs, arm):
    source = robocache.open(logs, clock="header.stamp")
    assert (source.format, len(source)) == ("mcap", 3)
    drive(arm, 8, disturbance_m=record.DISTURBANCE_M)
    streams = source.episode(1).streams
    for name, stream in streams.items():
        said = [m for m in arm.messages if name.startswith(m.topic)]
        part = name.removeprefix(said[0].topic).removeprefix("/")
        np.testing.assert_array_equal(stream.times, [m.stamp_ns for m in said])
        if said[0].kind != "picture":
            np.testing.assert_array_equal(stream.values, [m.parts[part] for m in said])
    jpegs = robocache.open(logs, clock="header.stamp", encoded=True).episode(1).streams[windows.WRIST].pictures
    assert [*jpegs] == [m.parts[""].tobytes() for m in arm.messages if m.kind == "picture"]
    assert source.specs["/camera/depth"].kind == "depth"
    assert source.specs["/arm/joint_states/position"].names == simulate.JOINTS


def test_the_command_line_ingests_the_logs_and_finds_every_rate(logs, tmp_path):
    command = [sys.executable, "-m", "robocache", "ingest", str(logs), str(tmp_path / "cache"), "--json"]
    done = subprocess.run([*command, "--option", "clock=log_time"], check=True, capture_output=True, timeout=120)
    streams = json.loads(done.stdout)["streams"]
    assert {name: streams[name]["measured_hz"] for name in RATES_HZ} == pytest.approx(RATES_HZ, rel=0.01)
    assert robocache.Cache(tmp_path / "cache").verify() == []


def test_messages_arrive_after_they_are_measured_and_stamps_jitter(arm):
    drive(arm, 3)
    for topic in {m.topic for m in arm.messages} - {"/arm/command", "/gripper/command"}:
        said = [m for m in arm.messages if m.topic == topic]
        stamps, arrivals = (np.array([getattr(m, name) for m in said]) for name in ("stamp_ns", "log_ns"))
        ticks = np.round((stamps - simulate.START_NS) / simulate.TICK_NS).astype(np.int64)
        assert (np.diff(stamps) > 0).all()
        assert (np.diff(arrivals) > 0).all()
        assert len(np.unique(np.diff(stamps))) > len(said) // 2
        assert (arrivals - simulate.START_NS > ticks * simulate.TICK_NS).all()
        assert (arrivals > stamps).all()


def test_a_sensor_says_the_same_whoever_else_is_heard(arm):
    few = simulate.Arm(topics={"/arm/pose", "/block/pose"})
    for robot in (arm, few):
        robot.reset(4)
        for _ in range(5):
            robot.command(*expert.act(robot.state))
    topics = {m.topic for m in few.messages}
    assert topics == {"/arm/pose", "/block/pose", "/arm/command", "/gripper/command"}
    same = [m for m in arm.messages if m.topic in topics]
    for ours, theirs in zip(few.messages, same, strict=True):
        assert (ours.topic, ours.stamp_ns, ours.log_ns) == (theirs.topic, theirs.stamp_ns, theirs.log_ns)
        np.testing.assert_array_equal(ours.parts["position"], theirs.parts["position"])


def test_the_expert_reaches_the_goal_also_when_it_is_pushed(arm):
    reached = []
    for seed in range(6):
        drive(arm, seed, disturbance_m=record.DISTURBANCE_M)
        reached.append(arm.success)
    assert [rollout.run_episode("expert", seed) for seed in range(6)] == [True] * 6
    assert reached == [True] * 6


def test_the_wrench_feels_the_weight_of_the_block(arm):
    drive(arm, 1)  # the goal is in the air
    force = np.array([m.parts["force"] for m in arm.messages if m.topic == "/arm/wrench"])
    before, after = force[:20].mean(0), force[-20:].mean(0)
    assert np.linalg.norm(after) - np.linalg.norm(before) == pytest.approx(2 * 9.81, abs=1.0)


def test_the_camera_sees_the_table_where_it_is(arm):
    arm.reset(0)
    depth_mm = next(m.parts[""] for m in arm.messages if m.kind == "depth")
    rays, along = arm.rays
    corner = -1 - simulate.CAMERA_SIZE[1] // 2  # above the middle of the lowest row: nothing but table
    to_table_m = (0.4 - simulate.CAMERA_AT_M[2]) / rays[corner, 2] * along[corner]
    assert depth_mm.ravel()[corner] == pytest.approx(to_table_m * 1e3, rel=0.01)
    assert depth_mm.shape == simulate.CAMERA_SIZE
    assert depth_mm.dtype == np.uint16


def test_a_rollout_sees_bit_for_bit_what_training_sees(arm, cache, made):
    seen, batch = drive(arm, 7, disturbance_m=record.DISTURBANCE_M), first_episode(cache)
    assert set(seen) == {*windows.OBSERVED, windows.WRIST}
    for name, values in seen.items():
        known = values if name == windows.WRIST else made.normalized(name, values)
        assert torch.equal(known, batch[name]), name
    assert batch[windows.WRIST].shape[1:] == (1, 3, 36, 48)
    assert batch[windows.WRIST].std() > 0.1


def test_the_cache_keeps_the_pictures_as_they_were_recorded(cache, arm):
    drive(arm, 7, disturbance_m=record.DISTURBANCE_M)
    assert cache.specs[windows.WRIST].codec == "jpeg"
    sent = [m.parts[""].tobytes() for m in arm.messages if m.topic == windows.WRIST]
    assert [*cache.episode(0).streams[windows.WRIST].pictures] == sent


def test_training_sees_other_edits_in_each_epoch_and_the_same_again(cache):
    loaders = [windows.load(cache, "train", 0.8, 50, seed=1) for _ in range(2)]
    first, again = (loader.batch(0, 0) for loader in loaders)
    assert torch.equal(first[windows.WRIST], again[windows.WRIST])
    plain = windows.load(cache, "validation", 0.2, 50)
    assert torch.equal(plain.batch(0, 0)[windows.WRIST], plain.batch(0, 5)[windows.WRIST])
    pictures = [loaders[0].batch(0, epoch)[windows.WRIST] for epoch in range(2)]
    assert not torch.equal(*pictures)


def test_the_wrist_camera_sees_the_block_where_it_is(arm):
    """The center of the orange pixels is where the block projects to."""
    arm.reset(3)
    turn = arm.grip.xmat.reshape(3, 3)
    at_m, to_m = arm.grip.xpos + turn @ camera.WRIST_AT_M, arm.grip.xpos + turn @ camera.WRIST_TO_M
    rays, _ = camera.camera_rays(camera.WRIST_SIZE, at_m, to_m, camera.WRIST_FOV_RAD)
    way = arm.state.block - at_m
    place = np.unravel_index(np.argmax(rays @ (way / np.linalg.norm(way))), camera.WRIST_SIZE)
    scene = (arm.model, arm.data, arm.mocap)
    red, green, blue = (
        camera.wrist_picture(scene, arm.colors, arm.grip, np.random.default_rng(0)).astype(int).transpose(2, 0, 1)
    )
    orange = (red > 1.5 * green) & (green > 1.5 * blue)
    assert orange.sum() > 10
    assert np.abs(np.argwhere(orange).mean(0) - place).max() < 3


def test_what_a_policy_sees_does_not_depend_on_the_future(arm):
    whole = drive(arm, 5)
    command = [m for m in arm.messages if m.topic == "/arm/command"][20]
    heard = [m for m in arm.messages if m.log_ns <= command.log_ns]
    now = windows.Live().observe(heard, command.log_ns)
    assert all(torch.equal(now[name][0], whole[name][20]) for name in now)


def test_a_chunk_is_the_commands_that_were_given_from_then_on(arm, cache, made):
    drive(arm, 7, disturbance_m=record.DISTURBANCE_M)
    batch, last = first_episode(cache), simulate.EPISODE_COMMANDS - 1
    for topic, name in (("/arm/command", windows.SETPOINT), ("/gripper/command", windows.OPENING)):
        given = np.array([m.parts["position"] for m in arm.messages if m.topic == topic], np.float32)
        for k in (0, 17, last - 2):
            rows = np.minimum(np.arange(k, k + windows.CHUNK), last)
            assert torch.equal(batch[name][k], made.normalized(name, torch.from_numpy(given[rows])))
        assert not batch[f"{name}_is_pad"][: last - windows.CHUNK].any()
        assert batch[f"{name}_is_pad"][last, 1:].all()


def test_every_command_is_once_in_training_or_in_validation_and_the_seed_decides_the_order(cache):
    def commands(part, share, seed=0, num_epochs=1):
        loader = windows.load(cache, part, share, 50, seed)
        made = itertools.islice(windows.epochs(loader), num_epochs * len(loader))
        return torch.cat([batch[windows.SETPOINT][:, 0] for batch in made])

    first, again, other = (commands("train", 0.8, seed, num_epochs=2) for seed in (1, 1, 2))
    count = 2 * simulate.EPISODE_COMMANDS
    assert len(first) == 2 * count
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[:count], first[count:])
    assert torch.equal(torch.unique(first[:count], dim=0), torch.unique(first[count:], dim=0))
    held = commands("validation", 0.2)
    assert len(held) == simulate.EPISODE_COMMANDS
    assert len(torch.unique(torch.cat([first[:count], held]), dim=0)) == 3 * simulate.EPISODE_COMMANDS


def test_act_gives_metres_for_what_is_not_normalized(cache, made):
    batch = first_episode(cache)
    seen = {name: made.measured(name, batch[name]) for name in windows.NUMBERS} | {windows.WRIST: batch[windows.WRIST]}
    acting = policy.Policy.for_loader(windows.load(cache, "validation", 0.2, batch_size=1))
    acting.forward = lambda batch: (acting.targets(batch), None)  # a policy that does what the expert did
    done = torch.cat([seen[windows.SETPOINT], seen[windows.OPENING]], -1)
    torch.testing.assert_close(acting.act(seen), done, atol=1e-6, rtol=0)


def test_a_saved_policy_acts_the_same(arm, made, tmp_path):
    made.save(tmp_path / "policy.safetensors")
    seen = drive(arm, 5)
    assert torch.equal(policy.Policy.load(tmp_path / "policy.safetensors").act(seen), made.act(seen))


def test_training_with_a_seed_repeats_and_learns(cache):
    (first, told), (again, _), (other, _) = (train.train(cache, 40, 50, s, validation=0.2) for s in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    assert told["curve"][-1]["training_loss"] < 0.7 * told["curve"][0]["training_loss"]


def test_padding_does_not_count_in_the_loss(cache, made):
    batch = first_episode(cache)
    loss = train.loss_of(made, batch)
    for name in windows.COMMANDS:
        batch[name][batch[f"{name}_is_pad"]] = 1e6
    assert torch.equal(train.loss_of(made, batch), loss)
    batch[windows.SETPOINT][0, 0] = 1e6
    assert train.loss_of(made, batch) > 2 * loss


@pytest.mark.parametrize(
    ("successes", "count", "interval"),
    [(0, 10, (0.0, 0.2775)), (10, 10, (0.7225, 1.0)), (50, 100, (0.4038, 0.5962)), (81, 263, (0.2553, 0.3662))],
)
def test_the_interval_is_wilsons(successes, count, interval):
    assert rollout.wilson(successes, count) == pytest.approx(interval, abs=5e-5)


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        (record, ["--out", "x", "--episodes", "0"], "--episodes must be at least 1, got 0"),
        (record, ["--out", "x", "--seed", "-1"], "--seed must not be negative, got -1"),
        (train, ["x", "--out", "y", "--steps", "0"], "--steps must be at least 1, got 0"),
        (train, ["x", "--out", "y", "--batch-size", "-3"], "--batch-size must be at least 1, got -3"),
        (rollout, ["nobody"], "who must be expert, random or a file, got 'nobody'"),
        (rollout, ["expert", "--seed", "-2"], "--seed must not be negative, got -2"),
        (run, ["--out", "x", "--workers", "0"], "--workers must be at least 1, got 0"),
        (run, ["--out", "x", "--demo", "--small"], "not allowed with argument --demo"),
        (page, ["nowhere"], "out must be a folder that run.py wrote, got nowhere"),
    ],
)
def test_bad_arguments_are_named(script, arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        script.parse(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_recording_does_not_mix_with_what_is_there(tmp_path):
    (tmp_path / "episode_00000.mcap").touch()
    with pytest.raises(FileExistsError, match="out must be an empty folder, got"):
        record.record(tmp_path, episodes=1, seed=0)
    assert [*tmp_path.iterdir()] == [tmp_path / "episode_00000.mcap"]


def test_the_result_that_is_kept_is_that_of_the_demo_and_the_readme_says_it():
    result = json.loads((EXAMPLE / "result.json").read_text())
    assert {name: result[name] for name in run.DEMO} == run.DEMO
    assert not result["commit"].endswith("-dirty")
    assert result["success"]["expert"]["success_rate"] >= 0.95
    assert result["policy_over_expert"] >= 0.8
    rates = {name: f"| {name} | {x['successes']} of {x['episodes']} |" for name, x in result["success"].items()}
    readme = (EXAMPLE / "README.md").read_text()
    assert [name for name, row in rates.items() if row not in readme] == []


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """In this process: to import everything again, in three of them, takes as long as the rest."""
    out = tmp_path_factory.mktemp("small") / "out"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "argv", ["run.py", "--small", "--workers", "1", "--out", str(out)])
        assert run.main() == 0
    return out


def test_the_whole_way_in_small_ends_with_a_policy_that_has_learned(small):
    """Not with one that finds the block: that takes more pictures than a test has time for."""
    result = json.loads((small / "result.json").read_text())
    success = {name: x["success_rate"] for name, x in result["success"].items()}
    assert success["expert"] == 1.0
    assert success["random"] <= success["policy"]
    curve = result["training"]["curve"]
    assert curve[-1]["validation_loss"] < 0.7 * curve[0]["validation_loss"]
    assert robocache.Cache(small / "cache").verify() == []


def test_the_page_is_one_file_with_every_plot(small, monkeypatch):
    monkeypatch.setattr(page, "picture", lambda robot: picture.picture(robot, (12, 13), finer=1))
    result = json.loads((small / "result.json").read_text())
    text = page.write(small, result).read_text()
    images = [base64.b64decode(x) for x in re.findall(r'src="data:image/png;base64,([^"]+)"', text)]
    assert [x[:8] for x in images] == [b"\x89PNG\r\n\x1a\n"] * 5
    assert text.count("<img ") == len(images)
    assert "http" not in text
    assert f"{result['success']['policy']['success_rate']:.0%} at the goal" in text


def test_the_page_shows_an_episode_that_only_the_policy_solved():
    failed = {"policy": [1_000_000, 1_000_002, 1_000_003], "random": [1_000_000, 1_000_001, 1_000_002, 1_000_003]}
    success = {name: {"first_seed": 1_000_000, "episodes": 4, "failed_seeds": x} for name, x in failed.items()}
    assert page.telling_seed(success) == 1_000_001
    success["policy"]["failed_seeds"] = failed["random"]
    assert page.telling_seed(success) == 1_000_000


def test_the_picture_shows_block_and_goal_where_they_are(arm):
    arm.reset(1_000_001)  # the goal is on the table, and nothing in front of it
    shown = picture.picture(arm, (66, 72), finer=1).astype(int)
    rays, _ = camera.camera_rays((66, 72), picture.AT_M, picture.TO_M, picture.FOV_RAD)

    def at(point_m):
        way = point_m - picture.AT_M
        return shown.reshape(-1, 3)[np.argmax(rays @ (way / np.linalg.norm(way)))]

    red, green, blue = at(arm.env.goal)
    assert red > 100 > 2 * max(green, blue)
    red, green, blue = at(arm.state.block)
    assert red > 1.5 * green > 3 * blue
    arm.env.goal[:] = 2 * picture.AT_M - arm.env.goal  # behind the camera
    changed = (picture.picture(arm, (66, 72), finer=1) != shown).any(-1)
    assert 0 < changed.sum() < 60
