"""What a worker process of a ProcessLoader does.

A worker makes all parts of its batch, unless the training waits for the batch and other workers are free: these then
take some of the parts. A worker reads records only after it has taken a part, because a cache may remove the shards of
a finished batch. Workers write images into the shared memory of the batch, and park everything else. The worker that
finishes last joins all parts. So the batch is the same as if one worker had made it.
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
        indices: The indices of the samples.
        size: The number of samples in each part; the last part may have fewer.
        slot: The slot for the images; None without shared memory.
        seed: The seed of the global random generators, for transforms in Python; None if nothing draws from them.
    """

    run: int
    indices: Sequence[int]
    size: int
    slot: int | None
    seed: int | None


class Reply(NamedTuple):
    """The answer to each message: whether this worker finished the batch, and then the batch or its error."""

    cell: int
    finished: bool
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
    task: Task = ForkingPickler.loads(board.task(cell))
    # One worker makes the whole batch if its images are not in shared memory, or if it may replace samples.
    whole = fetcher.check_skipped is not None or (fetcher.image_nbytes is not None and task.slot is None)
    taken = board.take(cell, task.run, all_parts=whole)
    if not taken:  # either others have taken all parts, or the training does not want the batch any more
        return Reply(cell, finished=board.finish(cell, 0))
    if fetcher.shared_pool is not None:
        fetcher.shared_pool.slot = task.slot
    parts = _Parts(where, task.seed)
    finish: Finish | None = None
    try:
        # The worker with the first part makes most of the others too, so it reads the whole batch at once.
        finish = fetcher.begin(task.indices, parts.submit, task.size, read=taken.start == 0)
    except Exception as failure:
        parts.fail(taken.start, failure)
    parts.are_complete = True
    if not whole:
        made: list[int] = []
        while taken:
            [part] = taken
            made.append(part)
            if not parts.make(part):
                board.skip(cell)
            taken = board.take(cell, task.run)
        if not board.finish(cell, len(made)) and not board.park(cell, len(made), parts.dump(made)):
            return Reply(cell, finished=False)
        if not board.is_wanted(task.run):
            return Reply(cell, finished=True)
        for parked in board.parked(cell):
            parts.load(parked)
    outcome: TimedBatch | ExceptionWrapper | None = parts.first_error()
    if finish is not None and outcome is None:
        outcome = parts.finish(finish)
    return Reply(cell, finished=True, outcome=outcome)


class _Parts:
    """The parts of a batch that a fetcher has submitted."""

    def __init__(self, where: str, seed: int | None) -> None:
        self.are_complete = False
        self._calls: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []
        self._where, self._seed = where, seed
        self._errors: dict[int, ExceptionWrapper] = {}

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Note a part; call a function at once that is submitted later, by the fetcher's ``finish``."""
        if self.are_complete:
            return call_now(function, *arguments)
        future: Future[Any] = Future()
        self._calls.append((future, function, arguments))
        return future

    def make(self, part: int) -> bool:
        """Make a part, unless that is done; return whether it has no error."""
        if part in self._errors:
            return False
        future, function, arguments = self._calls[part]
        if not future.done():
            if self._seed is not None:
                _seed_generators(self._seed + part)  # the same, whichever worker makes the part
            try:
                future.set_result(function(*arguments))
            except Exception as error:
                self.fail(part, error)
                future.set_exception(error)
        return part not in self._errors

    def fail(self, part: int, error: Exception) -> None:
        """Note the error of a part."""
        self._errors[part] = _wrapped(error, self._where)

    def finish(self, finish: Finish) -> TimedBatch | ExceptionWrapper:
        """Make the parts that are not made yet, and join all parts; return an error instead of raising it."""
        try:
            for part in range(len(self._calls)):
                self.make(part)
            # Workers read and collate in parallel.
            return dataclasses.replace(finish(), serial=0.0)
        except Exception as failure:
            return _wrapped(failure, self._where)

    def first_error(self) -> ExceptionWrapper | None:
        """Return the error of the first part that has one."""
        return self._errors[min(self._errors)] if self._errors else None

    def dump(self, made: list[int]) -> bytes:
        """Return the results and errors of some parts as bytes, of no part if their samples cannot be pickled."""
        errors = {part: self._errors[part] for part in made if part in self._errors}
        results = {part: self._calls[part][0].result() for part in made if part not in errors}
        try:
            return pickle.dumps((results, errors), protocol=5)
        except Exception:  # the worker that finishes last makes them again
            return pickle.dumps(({}, errors), protocol=5)

    def load(self, parked: bytes) -> None:
        """Add the parts that some worker has made, perhaps this one."""
        results, errors = ForkingPickler.loads(parked)
        self._errors.update(errors)
        if self._errors:  # the batch is an error then, and the calls may be missing
            return
        for part, result in results.items():
            if not self._calls[part][0].done():
                self._calls[part][0].set_result(result)


def _seed_generators(seed: int) -> None:
    """Seed the global generators of this process, which transforms draw from."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed % 2**63)
    np.random.seed(seed % 2**32)


def _wrapped(error: Exception, where: str) -> ExceptionWrapper:
    return ExceptionWrapper((type(error), error, error.__traceback__), where)  # type: ignore[no-untyped-call]
