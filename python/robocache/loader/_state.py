"""Whether the state of a loader is one that this loader can go on from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SAME = {
    "version": "the version of the state",
    "fingerprint": "cache, episodes, anchors and shuffle",
    "seed": "seed",
}


def check_state(state: Mapping[str, Any], own: Mapping[str, Any], num_steps: int) -> None:
    """Throws what differs. World size and batch size may, if their product does not."""
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
    batches = [told["batch_size"] * told["world_size"] for told in (own, state)]
    if batches[0] != batches[1]:
        raise ValueError(
            f"load_state_dict: batch_size * world_size must be {own['batch_size']} * {own['world_size']} = "
            f"{batches[0]}, got {state['batch_size']} * {state['world_size']} = {batches[1]}"
        )
    if state["epoch"] < 0:
        raise ValueError(f"load_state_dict: epoch must be 0 or above, got {state['epoch']}")
    if not 0 <= state["step"] <= num_steps:
        raise ValueError(f"load_state_dict: step must be from 0 to {num_steps}, got {state['step']}")
