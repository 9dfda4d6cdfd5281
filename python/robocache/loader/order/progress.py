"""Which batch a loader reads next, in its own process and in workers of torch's ``DataLoader``."""

from __future__ import annotations

from dataclasses import dataclass

from ..workers import Worker, this_worker
from .epochs import Epochs, Position
from .state import require_same_batch


@dataclass
class NextBatch:
    epoch: int = 0
    step: int = 0
    resumed_from: tuple[int, int] | None = None
    """``batch_size`` and ``world_size`` of the state that was loaded, until the first batch after it was read."""
    version: int = 0
    """How often this was set, rather than reached by reading batches. Note [Epochs of workers]."""


class Progress:
    """The next batch, and the epochs that workers have begun. ``num_steps`` in calls: batches of an epoch, which is
    known only once the rank is known."""

    def __init__(self, next_batch: NextBatch | None = None, epochs: Epochs | None = None) -> None:
        self.next = next_batch or NextBatch()
        self.epochs = epochs or Epochs()
        self._begun_as_worker = 0
        """Iterations, by this process as a worker of a ``DataLoader``."""
        self._set_in_worker = False

    def set_epoch(self, epoch: int, num_steps: int) -> None:
        """An epoch that was resumed continues at its step if it is the one that is set."""
        same = epoch == self.next.epoch and not self._is_finished(num_steps)
        step, resumed_from = (self.next.step, self.next.resumed_from) if same else (0, None)
        self._set(NextBatch(epoch, step, resumed_from), num_steps)

    def resume(self, epoch: int, step: int, batch: tuple[int, int], num_steps: int) -> None:
        """``batch``: ``batch_size`` and ``world_size`` of the state."""
        self._set(NextBatch(epoch, step, batch), num_steps)

    def begin(self, worker: Worker, batch: tuple[int, int], num_steps: int) -> tuple[int, int]:
        """Epoch and first step of an iteration. ``batch``: ``batch_size`` and ``world_size`` of the loader."""
        if worker.is_one:
            return self._begin_in(worker, batch, num_steps)
        found = self._begin(batch, num_steps)
        self.next.version += 1
        return found

    def read(self, epoch: int, step: int) -> None:
        """An iteration reads the batch before ``step``."""
        self.next.epoch, self.next.step = epoch, step

    def finish(self, worker: Worker, epoch: int) -> None:
        """An iteration read its last batch."""
        self.next.epoch, self.next.step = epoch + 1, 0
        self.next.version += not worker.is_one

    def _is_finished(self, num_steps: int) -> bool:
        """Whether the last batch of the epoch was returned to a loop that did not request another one."""
        return self.next.step == num_steps and self.next.resumed_from is None

    def _position(self, num_steps: int) -> Position:
        """Where a worker that is a copy of this loader begins."""
        following = self.next
        if self._is_finished(num_steps):
            return Position(following.version, following.epoch + 1, 0)
        return Position(following.version, following.epoch, 0 if following.resumed_from is None else following.step)

    def _set(self, following: NextBatch, num_steps: int) -> None:
        worker = this_worker()
        following.version = self.next.version + (not worker.is_one)
        self.next = following
        if worker.is_one:
            self._set_in_worker = True
            then = following.epoch + (following.step > 0)
            self.epochs.resumed(self._iteration_of(worker), self._position(num_steps), then)
        else:
            self.epochs.set(self._position(num_steps))

    def _begin(self, batch: tuple[int, int], num_steps: int) -> tuple[int, int]:
        if self.next.resumed_from is not None:
            require_same_batch(self.next.resumed_from, batch)
        version, epoch, step = self._position(num_steps)
        self.next = NextBatch(epoch, step, None, version)
        return epoch, step

    def _iteration_of(self, worker: Worker) -> str:
        return f"{worker.base_seed}/{self._begun_as_worker}"

    def _begin_in(self, worker: Worker, batch: tuple[int, int], num_steps: int) -> tuple[int, int]:
        """The same in a worker of a ``DataLoader``. Note [Epochs of workers]."""
        iteration, position = self._iteration_of(worker), self._position(num_steps)
        self._begun_as_worker += 1
        if self._set_in_worker:
            self._set_in_worker = False
            epoch, step = self._begin(batch, num_steps)
            self.epochs.resumed(iteration, position, epoch + 1)
            return epoch, step
        epoch, step = self.epochs.begin(iteration, worker.id, position)
        if step > 0 and self.next.resumed_from is not None:
            require_same_batch(self.next.resumed_from, batch)
        self.next = NextBatch(epoch, step, None, position.version)
        return epoch, step
