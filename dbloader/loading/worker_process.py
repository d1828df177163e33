"""The program of a worker process of a ProcessLoader.

Usually one worker makes all parts of a batch. If the training already waits for the batch, free workers make some of
the parts. A worker marks a part as taken before it reads the part's records. This protects the records: a cache may
remove them only after all taken parts are made. Workers write images into the shared memory of the batch. The worker
that finishes last joins all parts. The other workers store everything but the images in the Board. The result is the
same as the batch of one worker.
"""

from __future__ import annotations

import dataclasses
import functools
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
from dbloader.batches.shared_memory import BatchPickler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from dbloader.batches.base import BatchFetcher, Finish
    from dbloader.batches.shared_memory import SharedBatchPool
    from dbloader.batches.timed import TimedBatch
    from dbloader.loading.board import Board


class Task(NamedTuple):
    """A batch to make."""

    run: int  # number of the iteration
    indices: Sequence[int]  # indices of the samples
    size: int  # number of samples in each part of the batch; the last part may have fewer
    slot: int | None  # slot of the SharedBatchPool for the images; None without shared memory
    seed: int | None  # seed of the global random generators; None if no transform draws from them


class Reply(NamedTuple):
    """A worker's answer to a message of the Board."""

    cell: int  # the cell in the message
    finished: bool  # whether this worker finished the batch
    outcome: TimedBatch | ExceptionWrapper | None = None  # the finished batch or its error; None if no longer wanted


def run_worker(
    board: Board,
    fetcher: BatchFetcher,
    pool: SharedBatchPool | None,
    number: int,
    workers: int,
    seed: int,
    connection: Connection,
) -> None:
    """Answer messages until the training's process ends or closes the board."""
    torch.set_num_threads(1)
    _seed_generators(seed)
    # The dataset may call torch.utils.data.get_worker_info().
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=number, num_workers=workers, seed=seed, dataset=fetcher.dataset
    )
    where = f"in DataLoader worker process {number}"
    with suppress(KeyboardInterrupt, BrokenPipeError):  # the training's process has ended or will end
        for cell in board.messages():
            reply = _reply(board, fetcher, pool, cell, where)
            try:
                data = BatchPickler.dumps(reply)
            except Exception as error:  # the batch cannot be pickled
                data = ForkingPickler.dumps(reply._replace(outcome=_wrapped(error, where)))
            connection.send_bytes(data)
            del reply


def _reply(board: Board, fetcher: BatchFetcher, pool: SharedBatchPool | None, cell: int, where: str) -> Reply:
    """Make parts of a batch until none is left, and join all parts if this worker finishes last."""
    task: Task = ForkingPickler.loads(board.task(cell))
    # Without shared memory for images, or if damaged samples may be replaced, one worker makes the whole batch.
    whole = fetcher.check_skipped is not None or (fetcher.image_nbytes is not None and task.slot is None)
    taken = board.take(cell, task.run, all_parts=whole)
    if not taken:  # other workers have taken all parts, or the batch is no longer wanted
        return Reply(cell, finished=board.finish(cell, 0))
    slot = None if pool is None else functools.partial(pool.allocate, task.slot)
    parts = _Parts(where, task.seed)
    finish: Finish | None = None
    try:
        # The worker that takes the first part makes most of the other parts too, so it reads the whole batch at once.
        finish = fetcher.begin(task.indices, parts.submit, task.size, read=taken.start == 0, slot=slot)
    except Exception as failure:
        parts.fail(taken.start, failure)
    parts.has_all = True
    if not whole:
        made: list[int] = []
        while taken:
            [part] = taken
            made.append(part)
            if not parts.make(part):
                board.skip(cell)
            taken = board.take(cell, task.run)
        if not board.finish(cell, len(made)) and not board.store_parts(cell, len(made), parts.dump(made)):
            return Reply(cell, finished=False)
        if not board.is_wanted(task.run):
            return Reply(cell, finished=True)
        for stored in board.stored_parts(cell):
            parts.load(stored)
    outcome: TimedBatch | ExceptionWrapper | None = parts.first_error()
    if finish is not None and outcome is None:
        outcome = parts.finish(finish)
    return Reply(cell, finished=True, outcome=outcome)


class _Parts:
    """The parts of a batch. A part is a call that a BatchFetcher submits."""

    def __init__(self, where: str, seed: int | None) -> None:
        self.has_all = False  # whether the fetcher has submitted all parts
        self._calls: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []
        self._where, self._seed = where, seed
        self._errors: dict[int, ExceptionWrapper] = {}

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Keep a part for ``make``. After the fetcher has submitted all parts, call other functions immediately."""
        if self.has_all:
            return call_now(function, *arguments)
        future: Future[Any] = Future()
        self._calls.append((future, function, arguments))
        return future

    def make(self, part: int) -> bool:
        """Make a part, unless it is already made. Return False if the part has an error."""
        if part in self._errors:
            return False
        future, function, arguments = self._calls[part]
        if not future.done():
            if self._seed is not None:
                _seed_generators(self._seed + part)  # so the part is the same in every worker
            try:
                future.set_result(function(*arguments))
            except Exception as error:
                self.fail(part, error)
                future.set_exception(error)
        return part not in self._errors

    def fail(self, part: int, error: Exception) -> None:
        """Keep the error of a part."""
        self._errors[part] = _wrapped(error, self._where)

    def finish(self, finish: Finish) -> TimedBatch | ExceptionWrapper:
        """Make the remaining parts, and join all parts. Return an error instead of raising it."""
        try:
            for part in range(len(self._calls)):
                self.make(part)
            # Other workers read and collate at the same time, so none of this work is serial.
            return dataclasses.replace(finish(), serial=0.0)
        except Exception as failure:
            return _wrapped(failure, self._where)

    def first_error(self) -> ExceptionWrapper | None:
        """Return the error of the first part that has one."""
        return self._errors[min(self._errors)] if self._errors else None

    def dump(self, made: list[int]) -> bytes:
        """Pickle the results and errors of some parts. If the results cannot be pickled, pickle only the errors."""
        errors = {part: self._errors[part] for part in made if part in self._errors}
        results = {part: self._calls[part][0].result() for part in made if part not in errors}
        try:
            return pickle.dumps((results, errors), protocol=5)
        except Exception:  # the worker that joins the batch makes these parts again
            return pickle.dumps(({}, errors), protocol=5)

    def load(self, stored: bytearray) -> None:
        """Add the stored parts of a worker, which may be this worker."""
        results, errors = ForkingPickler.loads(stored)
        self._errors.update(errors)
        if self._errors:  # after an error, results are not needed, and the fetcher may have submitted no parts
            return
        for part, result in results.items():
            if not self._calls[part][0].done():
                self._calls[part][0].set_result(result)


def _seed_generators(seed: int) -> None:
    """Seed the global random generators of this process, which transforms may use."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed % 2**63)
    np.random.seed(seed % 2**32)


def _wrapped(error: Exception, where: str) -> ExceptionWrapper:
    return ExceptionWrapper((type(error), error, error.__traceback__), where)  # type: ignore[no-untyped-call]
