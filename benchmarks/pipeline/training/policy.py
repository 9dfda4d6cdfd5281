"""The policy of bench_training.py: a transformer that predicts a chunk of actions, and what one step of training is."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

OBSERVED, ACTION = ("state", "force"), "action"
Batch = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
"""Of each stream in a batch: (moments, channels)."""


class ChunkPolicy(nn.Module):
    """A token for each observed moment and a learned query for each action of the chunk, through one encoder."""

    def __init__(self, shapes: Shapes, width: int, layers: int) -> None:
        super().__init__()
        self.inputs = nn.ModuleDict({name: nn.Linear(shapes[name][1], width) for name in OBSERVED})
        seen = sum(shapes[name][0] for name in OBSERVED)
        self.places = nn.Parameter(torch.randn(seen, width) * 0.02)
        self.queries = nn.Parameter(torch.randn(shapes[ACTION][0], width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, shapes[ACTION][1])

    def forward(self, batch: Batch) -> Tensor:
        seen = torch.cat([self.inputs[name](batch[name]) for name in OBSERVED], 1) + self.places
        asked = self.queries.expand(len(seen), -1, -1)
        return self.output(self.body(torch.cat([seen, asked], 1))[:, seen.shape[1] :])

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())


class Step:
    """One step of training: forward, loss of what is not padding, backward, AdamW. Nothing in it waits for the GPU."""

    def __init__(self, shapes: Shapes, width: int, layers: int, device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        self.policy = ChunkPolicy(shapes, width, layers).to(device)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-4, fused=True, capturable=device == "cuda")
        self.loss = torch.zeros((), device=device)

    def __call__(self, batch: Batch) -> None:
        mixed = torch.autocast("cuda", torch.bfloat16) if self.device == "cuda" else contextlib.nullcontext()
        self.optimizer.zero_grad(set_to_none=True)
        with mixed:
            error = (self.policy(batch) - batch[ACTION]).abs().mean(-1)
            kept = ~batch[f"{ACTION}_is_pad"]
            loss = (error * kept).sum() / kept.sum()
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach())


class GraphStep:
    """The same step as one CUDA graph: the batch is copied to where the graph reads it."""

    def __init__(self, step: Step, batch: Batch) -> None:
        self.policy, self.loss = step.policy, step.loss
        self.batch = {name: x.clone() for name, x in batch.items()}
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            for _ in range(3):
                step(self.batch)
        torch.cuda.current_stream().wait_stream(warm)
        step.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        # Loaders that read ahead have threads of their own, which may go on.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            step(self.batch)

    def __call__(self, batch: Batch) -> None:
        for name, x in self.batch.items():
            x.copy_(batch[name])
        self.graph.replay()
