"""Time stamps of the honest inputs: two clean kinds, and recordings with the defects of real logs.

A kind is a pattern of gaps between samples, in units of the mean gap, and what is done to the stamps afterwards:

    ramp           1 1 1 1 1 1 …            evenly spaced
    random         .2 1.7 .4 2.1 …          exponential gaps, no two stamps equal
    jitter         .8 1.3 .9 1.1 …          every stamp within ±30 % of its place
    packets        7.9 .02 .02 .02 … 7.9    bursts of eight samples, then silence
    dropout        1 1 1 … 0.43 N … 1 1     nothing during 30 % of the recording, in the middle
    rounded        random, rounded to 1 ms or half the mean gap, the larger: many duplicate stamps
    one duplicate  ramp with exactly one stamp of the whole batch equal to the stamp before it
    outside        ramp, and the targets reach a quarter of the span beyond both ends

Rows with the same stamp have the same values. Which of them counts (for align the last, for a search in PyTorch either
end) then makes no difference, and the rivals do the same work in their usual form.
"""

from __future__ import annotations

import torch
from robocache.cli.workload import as_times, make_values
from torch import Tensor

RATE_HZ = 500
CLEAN = {"ramp": "ramp", "random": "random", "jitter": "ramp", "packets": "ramp", "dropout": "ramp",
         "rounded": "random", "one duplicate": "ramp", "outside": "ramp"}  # fmt: skip
"""The clean input that each input is compared with."""
KINDS = tuple(CLEAN)
DUPLICATED = ("rounded", "one duplicate")
PACKET = 8
WITHIN_PACKET = 0.02
DROPOUT = 0.3
ROUND_S = 1e-3
INSET, OUTSIDE = 0.01, -0.25  # where targets begin and end, as a share of the span

Ragged = tuple[Tensor, Tensor, Tensor, Tensor]


def make_gaps(num_rows: int, num_times: int, kind: str, device: str = "cpu", lengths: Tensor | None = None) -> Tensor:
    """(B, N) float64: the gap before each sample. `lengths` (B,): only so many samples of a row count (ragged)."""
    gaps = torch.ones(num_rows, num_times, dtype=torch.float64, device=device)
    number = torch.arange(num_times, device=device)
    if kind in ("random", "rounded"):
        gaps.exponential_().add_(1e-3)
    elif kind == "jitter":
        place = torch.rand_like(gaps) * 0.6 - 0.3
        gaps[:, 1:] += place.diff(dim=1)
    elif kind == "packets":
        gaps[:] = WITHIN_PACKET
        gaps[:, number % PACKET == 0] = PACKET - (PACKET - 1) * WITHIN_PACKET
    elif kind == "dropout":
        size = torch.full((num_rows,), num_times, device=device) if lengths is None else lengths
        gaps[torch.arange(num_rows, device=device), size // 2] = size.double() * (DROPOUT / (1 - DROPOUT))
    return gaps


def make_seconds(num_rows: int, num_times: int, kind: str, span_s: float | Tensor, device: str = "cpu",
                 lengths: Tensor | None = None) -> Tensor:  # fmt: skip
    """(B, N) float64 seconds in (0, span_s), nondecreasing. `span_s` and `lengths` may differ per row."""
    gaps = make_gaps(num_rows, num_times, kind, device, lengths)
    ticks = gaps.cumsum(1)
    if lengths is None:
        total, span = ticks[:, -1:], torch.as_tensor(span_s, dtype=torch.float64, device=device)
        counts: float | Tensor = num_times
    else:
        total, counts = ticks.gather(1, lengths.unsqueeze(1) - 1), lengths.unsqueeze(1)
        span = torch.as_tensor(span_s, dtype=torch.float64, device=device).view(-1, 1)
    seconds = (ticks - gaps[:, :1] / 2) / total * span
    if kind == "rounded":
        step = torch.clamp(span / counts / 2, min=ROUND_S)
        seconds = (seconds / step).round() * step
    if kind == "one duplicate":
        row = num_rows // 2
        at = (num_times if lengths is None else int(lengths[row])) // 2
        seconds[row, at] = seconds[row, at - 1]
    return seconds


def first_of_equal(times: Tensor) -> Tensor:
    """(B, N): the first row with the stamp of each row."""
    return torch.searchsorted(times, times)


def repeat_values(values: Tensor, times: Tensor, kind: str) -> Tensor:
    """values (B, S, D) with one value per stamp, for the kinds that have duplicate stamps."""
    if kind not in DUPLICATED:
        return values
    begin = torch.arange(0, times.numel(), times.shape[1], device=times.device).unsqueeze(1)
    index = (first_of_equal(times) + begin).view(-1)
    return values.view(-1, values.shape[2]).index_select(0, index).view(values.shape)


def make_targets(num_rows: int, num_targets: int, kind: str, span_s: float | Tensor, device: str = "cpu",
                 inset: float = INSET) -> Tensor:  # fmt: skip
    """(B, T) float64 seconds: random for random stamps, else evenly spaced, inside the span or beyond both ends."""
    order = "random" if kind in ("random", "rounded") else "ramp"
    fractions = make_seconds(num_rows, num_targets, order, 1.0, device)
    inset = OUTSIDE if kind == "outside" else inset
    return (inset + fractions * (1 - 2 * inset)) * span_s


def make_inputs(shape: tuple[int, int, int, int], dtype: str, times_dtype: str, kind: str,
                device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """values (B, S, D), times (B, S) at 500 Hz on average, targets (B, T); the same for every dtype of times."""
    num_rows, num_samples, num_targets, num_channels = shape
    torch.manual_seed(0)
    span_s = num_samples / RATE_HZ
    values = make_values(num_rows, num_samples, num_channels, dtype, device)
    times = as_times(make_seconds(num_rows, num_samples, kind, span_s, device), times_dtype)
    targets = as_times(make_targets(num_rows, num_targets, kind, span_s, device), times_dtype)
    return repeat_values(values, times, kind), times, targets


def make_streams(num_rows: int, sizes: list[tuple[int, int]], num_targets: int, dtype: str, times_dtype: str,
                 kind: str, device: str = "cpu") -> tuple[list[tuple[Tensor, Tensor]], Tensor]:  # fmt: skip
    """Streams (values, times) of `sizes` (samples, channels) over one second, and the targets. Every stream has the
    defect; the one duplicate is in the first."""
    torch.manual_seed(0)
    streams = []
    for i, (S, D) in enumerate(sizes):
        seconds = make_seconds(num_rows, S, "ramp" if i and kind == "one duplicate" else kind, 1.0, device)
        times = as_times(seconds, times_dtype)
        streams.append((repeat_values(make_values(num_rows, S, D, dtype, device), times, kind), times))
    return streams, as_times(make_targets(num_rows, num_targets, kind, 1.0, device, inset=0.05), times_dtype)


def make_ragged(num_episodes: int, mean_rows: int, num_targets: int, num_channels: int, dtype: str, times_dtype: str,
                kind: str, device: str = "cpu") -> Ragged:  # fmt: skip
    """Episodes of 10:1 in length, shuffled, at 500 Hz on average: values, times, offsets, targets."""
    torch.manual_seed(0)
    shortest = 2 * mean_rows / 11
    lengths = torch.linspace(shortest, 10 * shortest, num_episodes, dtype=torch.float64).round().long()
    lengths = lengths[torch.randperm(num_episodes)].to(device)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    longest = int(lengths.max())
    span_s = lengths.double() / RATE_HZ
    times = as_times(make_seconds(num_episodes, longest, kind, span_s, device, lengths), times_dtype)
    inside = torch.arange(longest, device=device) < lengths.unsqueeze(1)
    targets = make_targets(num_episodes, num_targets, kind, span_s.unsqueeze(1), device)
    values = torch.randn(int(offsets[-1]), num_channels, device=device).to(getattr(torch, dtype))
    if kind in DUPLICATED:
        values = values[(first_of_equal(times) + offsets[:-1].unsqueeze(1))[inside]]
    return values, times[inside], offsets, as_times(targets, times_dtype)
