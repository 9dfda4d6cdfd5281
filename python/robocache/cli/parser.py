"""Command-line parser: suggestions for misspelled words, and the option of each Python argument."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from ..text import did_you_mean, escaped_lines

ALIASES = {"methods": "method", "thresholds": "threshold", "shard_bytes": "shard_mib"}
"""{Python argument: name of the option}, where the two differ."""


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` whose errors suggest the nearest command, option or choice."""

    def flags(self) -> dict[str, str]:
        """``{"image_size": "--image-size"}``: the option for each argument of the Python function."""
        flags = {a.dest: a.option_strings[-1] for a in self._actions if a.option_strings}
        return flags | {name: flags[dest] for name, dest in ALIASES.items() if dest in flags}

    def options(self) -> Iterator[str]:
        """All options, including those of the commands."""
        for action in self._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser.options()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Rejects unknown arguments here, so that the usage of the command is printed."""
        result, unknown = super().parse_known_args(args, namespace)
        if unknown:
            wrong = next((arg for arg in unknown if arg.startswith("-")), unknown[0])
            near = did_you_mean(wrong.partition("=")[0], self.options())
            self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return result, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = did_you_mean(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}{near}") from None

    def error(self, message: str) -> NoReturn:
        super().error(escaped_lines(message))
