"""Features: what a policy calls a key of a batch, made of one or several streams. The guide: docs/features.md."""
