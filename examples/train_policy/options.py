"""Numbers on the command line that the parts have in common."""

from __future__ import annotations

import argparse


def checked(parser: argparse.ArgumentParser, options: argparse.Namespace, *counts: str) -> argparse.Namespace:
    """The options, after the counts among them and the seed have been looked at; ends the program where one is bad."""
    for name in counts:
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")
    if options.seed < 0:
        parser.error(f"--seed must not be negative, got {options.seed}")
    return options
