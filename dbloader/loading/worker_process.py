"""What a worker process of a ProcessLoader does.

A worker makes all parts of its batch, unless the training waits for it and other workers are free: they then take some
of its parts. They write images into the shared memory of the batch, and park everything else. The worker that finishes
last makes the batch of all parts. So it is the batch that a single worker would make.
"""

from __future__ import annotations

import dataclasses
import pickle
import random
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_worker

from dbloader.batches.base import call_now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from dbloader.batches.base import BatchFetcher, Finish
    from dbloader.batches.timed import TimedBatch
    from dbloader.loading.board import Board


class Task(NamedTuple):
    """A batch to make.

    Attributes:
        run: The number of the iteration.
        indices: What the batch is made of.
        size: At most so many samples are in a part.
        slot: The slot for the images; None without shared memory.
        seed: Of the global random generators, which transforms in Python draw from; None if nothing draws from them.
    """

    run: int
    indices: Sequence[int]
    size: int
    slot: int | None
    seed: int | None


class Reply(NamedTuple):
    """The answer to each message: whether this worker finished the batch, and whether it made a part of it."""

    cell: int
    finished: bool
    helped: bool
    outcome: TimedBatch | ExceptionWrapper | None = None


def run_worker(
    board: Board, fetcher: BatchFetcher, number: int, workers: int, seed: int, connection: Connection
) -> None:
    """Answer messages until the training's process ends or closes the board."""
    torch.set_num_threads(1)
    _seed_generators(seed)
    # The dataset may call torch.utils.data.get_worker_info().
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=number, num_workers=workers, seed=seed, dataset=fetcher.dataset
    )
    with suppress(KeyboardInterrupt, BrokenPipeError):  # the training's process ends too
        for cell in board.messages():
            reply = _reply(board, fetcher, cell, f"in DataLoader worker process {number}")
            try:
                data = ForkingPickler.dumps(reply)
            except Exception as error:  # the batch cannot be pickled
                outcome = _wrapped(error, f"in DataLoader worker process {number}")
                data = ForkingPickler.dumps(reply._replace(outcome=outcome))
            connection.send_bytes(data)
            del reply


def _reply(board: Board, fetcher: BatchFetcher, cell: int, where: str) -> Reply:
    """Make the parts of a batch that no other worker makes; finish the batch if this worker is the last."""
    if board.parts_left(cell) == 0:
        return Reply(cell, finished=False, helped=False)
    task: Task = ForkingPickler.loads(board.task(cell))
    if fetcher.shared_pool is not None:
        fetcher.shared_pool.slot = task.slot
    parts = _Parts(where, task.seed)
    # One worker makes the whole batch if its images are not in shared memory, or if it may replace samples.
    whole = fetcher.check_skipped is not None or (fetcher.image_nbytes is not None and task.slot is None)
    finish: Finish | None = None
    error: ExceptionWrapper | None = None
    if board.is_wanted(task.run):
        try:
            finish = fetcher.begin(task.indices, parts.submit, task.size)
        except Exception as failure:
            error = _wrapped(failure, where)
    began = board.begin(cell, 0 if finish is None else len(parts.calls))
    if finish is None:
        return Reply(cell, began, began, error)
    parts.are_complete = True
    made: list[int] = []
    while taken := board.take(cell, task.run, all_parts=whole):
        for part in taken:
            made.append(part)
            if not parts.make(part) and not whole:
                board.skip(cell)
    if not made and not began:
        return Reply(cell, finished=False, helped=False)
    if not board.finish(cell, len(made)) and not (made and board.park(cell, len(made), parts.dump(made))):
        return Reply(cell, finished=False, helped=True)
    if not board.is_wanted(task.run):
        return Reply(cell, finished=True, helped=True)
    try:
        for parked in board.parked(cell):
            parts.load(parked)
        outcome: TimedBatch | ExceptionWrapper | None = None if whole else parts.first_error()
        if outcome is None:
            for part in range(len(parts.calls)):
                parts.make(part)  # that could not be parked
            # Workers read and collate in parallel.
            outcome = dataclasses.replace(finish(), serial=0.0)
    except Exception as failure:
        outcome = _wrapped(failure, where)
    return Reply(cell, finished=True, helped=True, outcome=outcome)


class _Parts:
    """The parts of a batch that a fetcher has submitted; ``calls`` are their futures, functions and arguments."""

    def __init__(self, where: str, seed: int | None) -> None:
        self.calls: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []
        self.are_complete = False
        self._where, self._seed = where, seed
        self._errors: dict[int, ExceptionWrapper] = {}

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Note a part; call a function at once that is submitted later, by the fetcher's ``finish``."""
        if self.are_complete:
            return call_now(function, *arguments)
        future: Future[Any] = Future()
        self.calls.append((future, function, arguments))
        return future

    def make(self, part: int) -> bool:
        """Make a part, unless that is done; return whether it has no error."""
        future, function, arguments = self.calls[part]
        if not future.done():
            if self._seed is not None:
                _seed_generators(self._seed + part)  # the same, whichever worker makes the part
            try:
                future.set_result(function(*arguments))
            except Exception as error:
                self._errors[part] = _wrapped(error, self._where)
                future.set_exception(error)
        return part not in self._errors

    def first_error(self) -> ExceptionWrapper | None:
        """Return the error of the first part that has one."""
        return self._errors[min(self._errors)] if self._errors else None

    def dump(self, made: list[int]) -> bytes:
        """Return the results and errors of some parts as bytes, of no part if their samples cannot be pickled."""
        errors = {part: self._errors[part] for part in made if part in self._errors}
        results = {part: self.calls[part][0].result() for part in made if part not in errors}
        try:
            return pickle.dumps((results, errors), protocol=5)
        except Exception:  # the worker that finishes last makes them again
            return pickle.dumps(({}, errors), protocol=5)

    def load(self, parked: bytes) -> None:
        """Add the parts that some worker has made, perhaps this one."""
        results, errors = ForkingPickler.loads(parked)
        self._errors.update(errors)
        for part, result in results.items():
            if not self.calls[part][0].done():
                self.calls[part][0].set_result(result)


def _seed_generators(seed: int) -> None:
    """Seed the global generators of this process, which transforms draw from."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed % 2**63)
    np.random.seed(seed % 2**32)


def _wrapped(error: Exception, where: str) -> ExceptionWrapper:
    return ExceptionWrapper((type(error), error, error.__traceback__), where)  # type: ignore[no-untyped-call]
