"""Whether a loader can continue from the state of another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SAME = {
    "version": "the version of the state",
    "fingerprint": "cache, episodes, anchors, weights and shuffle",
    "seed": "seed",
}
MOST_EPOCHS = 2**62
"""So that one more is an int64 too."""


def check_state(state: Mapping[str, Any], own: Mapping[str, Any], steps_of: Callable[[int], int], known: bool) -> None:
    """Raises what differs. World size and batch size may, if their product does not. ``steps_of``: steps of an epoch
    for a batch of all ranks. ``known``: whether this process knows its world size; else the state of several ranks is
    taken, and its batch compared before the first batch."""
    if not isinstance(state, Mapping):
        raise ValueError(f"load_state_dict: state must be a dict, got {type(state).__name__}")
    missing = [name for name in own if name not in state]
    if missing:
        raise ValueError(f"load_state_dict: state must have {', '.join(own)}, got none of {missing[0]!r}")
    for name in own:
        if name != "fingerprint" and (not isinstance(state[name], int) or isinstance(state[name], bool)):
            raise ValueError(f"load_state_dict: {name} must be a whole number, got {state[name]!r}")
    for name, what in SAME.items():
        if state[name] != own[name]:
            raise ValueError(
                f"load_state_dict: {name} ({what}) must be that of this loader, {own[name]!r}, got {state[name]!r}"
            )
    for name in ("batch_size", "world_size"):
        if not 1 <= state[name] <= 2**31 - 1:
            raise ValueError(f"load_state_dict: {name} must be from 1 to {2**31 - 1}, got {state[name]}")
    if known or state["world_size"] == 1 or state["batch_size"] * state["world_size"] % own["batch_size"] != 0:
        require_same_batch((state["batch_size"], state["world_size"]), (own["batch_size"], own["world_size"]))
    if not 0 <= state["epoch"] <= MOST_EPOCHS:
        raise ValueError(f"load_state_dict: epoch must be from 0 to {MOST_EPOCHS}, got {state['epoch']}")
    num_steps = steps_of(state["batch_size"] * state["world_size"])
    if not 0 <= state["step"] <= num_steps:
        raise ValueError(f"load_state_dict: step must be from 0 to {num_steps}, got {state['step']}")


def require_same_batch(state: tuple[int, int], own: tuple[int, int]) -> None:
    """``(batch_size, world_size)`` of both."""
    if state[0] * state[1] != own[0] * own[1]:
        raise ValueError(
            f"load_state_dict: batch_size * world_size must be {own[0]} * {own[1]} = {own[0] * own[1]}, got "
            f"{state[0]} * {state[1]} = {state[0] * state[1]}"
        )
