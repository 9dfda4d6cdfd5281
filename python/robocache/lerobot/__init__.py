"""``LeRobotDataset``: the constructor and the items of LeRobot's own, read from a cache. docs/guides/lerobot.md."""

from .dataset import LeRobotDataset
from .metadata import LeRobotDatasetMetadata
from .videos import FrameTimestampError

__all__ = ["FrameTimestampError", "LeRobotDataset", "LeRobotDatasetMetadata"]
