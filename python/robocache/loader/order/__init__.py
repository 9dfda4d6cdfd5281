"""Which samples are in a batch: episodes, anchors, epochs, ranks, and where a loader stopped."""
