"""The command ``robocache``: one module per command."""
