"""Dataset classes of other projects over a cache. That of LeRobot is ``robocache.lerobot``."""
