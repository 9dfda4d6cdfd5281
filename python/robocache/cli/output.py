"""Output of the commands: names are escaped, and Python arguments in messages become command-line options."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from ..cache.episode import LeftOut
from ..sources import option_names
from ..text import escaped, escaped_lines


def print_escaped(text: str, file: TextIO | None = None) -> None:
    """Prints text that may contain names from files."""
    print(escaped_lines(text), file=file)


def failed(command: str, error: BaseException, code: int, args: argparse.Namespace) -> int:
    """Prints the error, as JSON too with ``--json``; returns the exit code."""
    text = str(error)
    if isinstance(error, OSError) and (error.strerror or "").startswith(f"{command}: "):  # omit the errno
        text = f"{error.strerror}: {error.filename}"
    message = in_options(text, args.flags).removeprefix(f"{command.replace('-', '_')}: ")
    if args.json:
        print(json.dumps({"error": message, "type": type(error).__name__}, indent=1))
    print_escaped(f"robocache {command}: {message}", sys.stderr)
    return code


def in_options(message: str, flags: Mapping[str, str]) -> str:
    """An error message of a Python function, with its arguments replaced by command-line options.

    >>> in_options("ingest: image_size must change a stream", {"image_size": "--image-size"})
    'ingest: --image-size must change a stream'
    >>> in_options("open: rate_hz is required for log.zarr", {"format": "--format"})
    'open: --option rate_hz is required for log.zarr'
    >>> in_options("wrist: a video; pass video=True to read it", {"streams": "--streams"})
    'wrist: a video; pass --option video=True to read it'
    >>> in_options("gripper: not selected; pass streams= to read it", {"streams": "--streams"})
    'gripper: not selected; pass --streams to read it'
    """
    of_source = sorted(option_names() - flags.keys() - {"format"})

    def subject(found: re.Match[str]) -> str:  # "op: argument must ..."
        name = found[0]
        if message.startswith("open: ") and name in option_names():
            return f"--option {name}"
        return flags.get(name, name)

    message = re.sub(r"(?<=: )\w+(?= (?:must|names|is|cannot|of)\b)", subject, message, count=1)
    for name, flag in flags.items():  # "rename it with streams="
        message = re.sub(rf"(?<![\w'\"./-]){name}=(?![\w'\"\[({{])", flag, message)
        if "_" in name:  # "pass skip_incomplete to skip it": not an English word
            message = re.sub(rf"(?<![\w'\"./=-]){name}\b(?!=)", flag, message)
    for name in of_source:  # "pass video=True to read it"
        message = re.sub(rf"(?<![\w'\"./-])(?<!--option ){name}=", f"--option {name}=", message)
    return message


def left_out_text(entries: Iterable[Mapping[str, Any]], flags: Mapping[str, str]) -> list[str]:
    """Lines that list what was left out; empty if nothing was."""
    lines = []
    for entry in entries:
        reason = LeftOut("", str(entry["reason"]), entry["option"])
        lines.append(f"  {escaped(str(entry['name']))}{in_options(str(reason), flags)}")
    return ["left out:", *lines] if lines else []
