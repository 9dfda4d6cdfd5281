"""The robot: Fetch pick-and-place of gymnasium-robotics in MuJoCo, whose sensors have rates, clocks and delays.

Nothing here needs a GPU or a display: both cameras cast rays. A seed decides every bit.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import mujoco
import numpy as np
from camera import as_jpeg, camera_rays, colors, wrist_picture

with contextlib.redirect_stderr(io.StringIO()):  # it warns of environments that are not used here
    import gymnasium_robotics

TASK = "pick up the block and hold it at the goal"
CONTROL_HZ = 25
TICK_NS = 2_000_000  # one step of the physics: 500 Hz
TICKS_PER_COMMAND = 20
SETTLE_COMMANDS = 5  # the physics of a reset: the fingers jump open. Nobody listens
WARM_UP_COMMANDS = 8  # the arm rests until every sensor has been heard
EPISODE_COMMANDS = 50
REACH_M = 0.05  # how far from the gripper a setpoint may be: the environment's own limit for one command
OPEN_M = 0.1  # between the fingers
DOWN_XYZW = np.array([0.0, 0.5**0.5, 0.0, 0.5**0.5])  # the environment keeps the gripper like that
START_NS = 1_760_000_000_000_000_000
JOINTS = (
    *("torso_lift_joint", "shoulder_pan_joint", "shoulder_lift_joint", "upperarm_roll_joint", "elbow_flex_joint"),
    *("forearm_roll_joint", "wrist_flex_joint", "wrist_roll_joint"),
)
MAX_FORCE_N, MAX_TORQUE_NM = 200.0, 20.0  # of the sensor
FINGERS = ("r_gripper_finger_joint", "l_gripper_finger_joint")
CAMERA_SIZE = (24, 32)  # height, width
CAMERA_RANGE_M = 5.0
CAMERA_FOV_RAD = 0.6  # vertical
CAMERA_AT_M, CAMERA_TO_M = np.array([1.9, 0.75, 1.0]), np.array([1.3, 0.75, 0.47])


@dataclass
class Message:
    """What a sensor, or the controller, sent. A part of it is a stream of the log: `<topic>/<part>`, or `<topic>`."""

    topic: str
    kind: str  # joints | wrench | pose | depth | picture (encoded)
    stamp_ns: int  # when it was measured, by the clock of the sensor
    log_ns: int  # when it arrived
    parts: dict[str, np.ndarray]
    names: tuple[str, ...] = ()


@dataclass
class Sensor:
    """Measures every 1 / rate_hz. Stamps are off by up to 0.8 ms; messages arrive delay_ms later, or more than that."""

    topic: str
    kind: str
    rate_hz: float
    delay_ms: float
    measure: Callable[[Any], dict[str, np.ndarray]]
    names: tuple[str, ...] = ()
    count: int = 0
    last_log_ns: int = 0
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def start(self, rng: np.random.Generator) -> None:
        self.count, self.last_log_ns, self.rng = 0, 0, rng

    def poll(self, t_ns: int) -> Message | None:
        period_ns = 1e9 / self.rate_hz
        if t_ns < self.count * period_ns:
            return None
        self.count += 1
        jitter_ns = int(np.clip(self.rng.normal(scale=0.03), -0.1, 0.1) * min(period_ns, 8e6))
        delay_ns = int(self.delay_ms * 1e6 * (1 + self.rng.exponential(0.2)))  # never heard before it is measured
        log_ns = max(START_NS + t_ns + delay_ns, self.last_log_ns + 1)
        self.last_log_ns = log_ns
        parts = self.measure(self.rng)
        return Message(self.topic, self.kind, START_NS + t_ns + jitter_ns, log_ns, parts, self.names)


@dataclass(frozen=True)
class State:
    """What is true, without noise or delay: for the expert, and to judge success."""

    gripper: np.ndarray  # (3,) m
    block: np.ndarray  # (3,) m
    goal: np.ndarray  # (3,) m
    opening_m: float


class Arm:
    """`reset(seed)`, then `command(...)` EPISODE_COMMANDS times. `messages` is what was heard since the reset."""

    def __init__(self, topics: Collection[str] | None = None) -> None:
        """`topics`: sensors to listen to, all unless given. What a sensor says does not depend on the others."""
        gymnasium.register_envs(gymnasium_robotics)
        self.env: Any = gymnasium.make("FetchPickAndPlace-v4").unwrapped
        self.env._mujoco_step = lambda action: self._advance()
        self.model, self.data = self.env.model, self.env.data
        joints = [self.model.joint(f"robot0:{name}") for name in JOINTS]
        fingers = [self.model.joint(f"robot0:{name}") for name in FINGERS]
        self.joint_places = np.array([(j.qposadr[0], j.dofadr[0]) for j in joints])
        self.finger_places = np.array([j.qposadr[0] for j in fingers])
        self.finger_bodies = [int(self.model.jnt_bodyid[j.id]) for j in fingers]
        self.grip, self.block = self.data.site("robot0:grip"), self.data.site("object0")
        self.mocap = self.model.body("robot0:mocap").id  # what the environment pulls the arm with; it has a shape
        self.rays = camera_rays(CAMERA_SIZE, CAMERA_AT_M, CAMERA_TO_M, CAMERA_FOV_RAD)
        self.colors = colors(self.model)
        self.messages: list[Message] = []
        sensors = [
            Sensor("/arm/joint_states", "joints", 250, 1.0, self._joint_states, JOINTS),
            Sensor("/arm/pose", "pose", 125, 1.5, self._gripper_pose),
            Sensor("/arm/wrench", "wrench", 125, 1.5, self._wrench),
            Sensor("/gripper/state", "joints", 50, 3.0, self._fingers, FINGERS),
            Sensor("/block/pose", "pose", 30, 12.0, self._block_pose),
            Sensor("/camera/depth", "depth", 15, 25.0, self._depth),
            Sensor("/goal/pose", "pose", 5, 1.0, self._goal_pose),
            Sensor("/wrist/image/compressed", "picture", 25, 15.0, self._wrist),
        ]
        self.sensors = {i: s for i, s in enumerate(sensors, 1) if topics is None or s.topic in topics}

    def reset(self, seed: int, disturbance_m: float = 0.0) -> None:
        """`disturbance_m`: how far the arm is pushed off its setpoints, by a force that comes and goes."""
        self.env.reset(seed=seed)
        self.messages = []
        self.rng = np.random.default_rng([seed, 0])
        self.push, self.disturbance_m = np.zeros(3), 0.0
        self.ticks = -SETTLE_COMMANDS * TICKS_PER_COMMAND
        for i, sensor in self.sensors.items():
            sensor.start(np.random.default_rng([seed, i]))
        rest = self.state.gripper
        for _ in range(SETTLE_COMMANDS + WARM_UP_COMMANDS):
            self._execute(rest, OPEN_M)
        self.disturbance_m = disturbance_m
        self._next_command()

    @property
    def state(self) -> State:
        opening_m = float(self.data.qpos[self.finger_places].sum())
        return State(self.grip.xpos.copy(), self.block.xpos.copy(), self.env.goal.copy(), opening_m)

    @property
    def success(self) -> bool:
        """As the environment has it: the block is within 5 cm of the goal."""
        return bool(self.env._is_success(self.state.block, self.env.goal))

    def command(self, setpoint: np.ndarray, opening_m: float) -> None:
        """Sends the gripper to `setpoint` (at most REACH_M away on each axis) and lets 40 ms pass.

        The command is in the log as it was given: the disturbance is what happens to the arm, not what was asked.
        """
        at_ns = self.anchor_ns
        pose = {"position": np.asarray(setpoint, np.float64), "orientation": DOWN_XYZW}
        self.messages.append(Message("/arm/command", "pose", at_ns, at_ns, pose))
        opening = {"position": np.array([float(opening_m)])}
        self.messages.append(Message("/gripper/command", "joints", at_ns, at_ns, opening, ("opening",)))
        self._execute(setpoint, opening_m)
        self._next_command()

    def _next_command(self) -> None:
        """The controller wakes up a little late, but before the physics goes on."""
        self.anchor_ns = START_NS + self.ticks * TICK_NS + int(self.rng.uniform(0.1e6, 0.8e6))

    def _execute(self, setpoint: np.ndarray, opening_m: float) -> None:
        self.push = 0.7 * self.push + self.rng.normal(scale=1.0, size=3) * self.disturbance_m
        move = (np.asarray(setpoint, np.float64) + self.push - self.state.gripper) / REACH_M
        self.env.step(np.append(np.clip(move, -1, 1), np.clip(2 * opening_m / OPEN_M - 1, -1, 1)))

    def _advance(self) -> None:
        for _ in range(TICKS_PER_COMMAND):
            if self.ticks >= 0:
                heard = [sensor.poll(self.ticks * TICK_NS) for sensor in self.sensors.values()]
                self.messages.extend(message for message in heard if message is not None)
            mujoco.mj_step(self.model, self.data)
            self.ticks += 1

    def _joint_states(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        position, velocity = self.data.qpos[self.joint_places[:, 0]], self.data.qvel[self.joint_places[:, 1]]
        return {"position": position + rng.normal(scale=1e-4, size=len(JOINTS)), "velocity": velocity}

    def _gripper_pose(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return self._pose_of(self.grip, rng, 2e-4)

    def _block_pose(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return self._pose_of(self.block, rng, 1e-3)

    @staticmethod
    def _pose_of(site: Any, rng: np.random.Generator, noise_m: float) -> dict[str, np.ndarray]:
        wxyz = np.empty(4)
        mujoco.mju_mat2Quat(wxyz, site.xmat)
        return {"position": site.xpos + rng.normal(scale=noise_m, size=3), "orientation": wxyz[[1, 2, 3, 0]]}

    def _goal_pose(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"position": self.env.goal.copy(), "orientation": np.array([0.0, 0.0, 0.0, 1.0])}

    def _fingers(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"position": self.data.qpos[self.finger_places] + rng.normal(scale=1e-4, size=len(FINGERS))}

    def _wrench(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Between hand and fingers, at the grip and in its axes: what a sensor in the wrist feels of the load."""
        mujoco.mj_rnePostConstraint(self.model, self.data)
        total, part = np.zeros(6), np.empty(6)
        for body in self.finger_bodies:
            origin, inner = self.data.subtree_com[self.model.body_rootid[body]], self.data.cfrc_int[body]
            mujoco.mju_transformSpatial(part, inner, 1, self.grip.xpos, origin, self.grip.xmat)
            total += part
        noisy = total + rng.normal(size=6) * [0.01, 0.01, 0.01, 0.1, 0.1, 0.1]
        return {
            "force": np.clip(noisy[3:], -MAX_FORCE_N, MAX_FORCE_N),
            "torque": np.clip(noisy[:3], -MAX_TORQUE_NM, MAX_TORQUE_NM),
        }

    def _depth(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Millimeters along the axis of the camera, 0 where there is nothing; noise grows with the distance."""
        rays, along = self.rays
        distance, hit = np.empty(len(rays)), np.empty(len(rays), np.int32)
        scene = (self.model, self.data, CAMERA_AT_M, rays.ravel(), None, 1, self.mocap)
        mujoco.mj_multiRay(*scene, hit, distance, len(rays), CAMERA_RANGE_M)
        depth_mm = distance * along * 1e3
        noisy = np.round(depth_mm + rng.normal(scale=1e-3, size=len(rays)) * depth_mm)
        return {"": np.where(hit >= 0, noisy, 0).astype(np.uint16).reshape(CAMERA_SIZE)}

    def _wrist(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """A JPEG."""
        return {"": as_jpeg(wrist_picture((self.model, self.data, self.mocap), self.colors, self.grip, rng))}
