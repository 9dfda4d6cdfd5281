"""From one form of a dataset to another: ingest into a cache, export to LeRobot, view in Rerun."""
