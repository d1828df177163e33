"""A loader whose workers are processes. Each worker makes a whole batch, and idle workers help with a late batch."""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import os
import pickle
import selectors
import signal
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch._utils import ExceptionWrapper
from typing_extensions import override

from dbloader.batches.shared_memory import SharedBatchPool
from dbloader.batches.timed import TimedBatch, now
from dbloader.errors import LoaderError
from dbloader.loading.board import Board
from dbloader.loading.threads import Batches, PartSize, ThreadLoader
from dbloader.loading.torch_workers import KILL_WAIT_S
from dbloader.loading.worker_process import Task, run_worker
from dbloader.loading.worker_start import WorkerStart
from dbloader.sampling.ranks import is_distributed
from dbloader.sampling.rng import derive_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.process import BaseProcess

    from dbloader.batches.base import BatchFetcher, Finish
    from dbloader.loading.worker_process import Reply

# Batches that have left the workers but still use shared memory. The PrefetchLoader has three. The training has two:
# its current batch and the previous batch.
_HELD_BATCHES = 5
# Largest number of samples in a part of a batch, if the fetcher releases the GIL.
_LARGEST_PART = 16
# Samples in each part, if the fetcher runs Python code. The size is fixed: each part seeds the random generators of
# this code, so another size would give other random numbers. Handing over a part takes 30 us, and seeding 15 us.
_SEEDED_PART = 2


class ProcessLoader(ThreadLoader):
    """Like a ThreadLoader, but the workers are processes. They make the batches in memory shared with this process.

    The workers are at most ``num_workers * prefetch_factor`` batches ahead of the batch that the consumer takes. They
    start with the first ``iter()``. ``end_workers()`` ends them, and they also end when nothing refers to this object
    and its iterators. A forked child starts its own workers. Without workers, the caller's thread makes the batches.
    """

    advice = None

    def __init__(
        self, fetcher: BatchFetcher, batch_sampler: Any, num_workers: int, *, dataset: Any, prefetch_factor: int
    ) -> None:
        self.persistent_workers = num_workers > 0  # as in a DataLoader
        super().__init__(fetcher, batch_sampler, num_workers, dataset=dataset, prefetch_factor=prefetch_factor)
        self._team: _Team | None = None

    @property
    @override
    def batches_ahead(self) -> int:
        return max(1, self.num_workers) * self.prefetch_factor

    @override
    def __iter__(self) -> Iterator[TimedBatch]:
        if not self.num_workers:
            return super().__iter__()
        order = iter(self.batch_sampler)
        team = self._team
        if team is None or team.failed or team.pid != os.getpid():
            # As in a DataLoader, torch.manual_seed decides the workers' seed. Ranks other than 0 derive their own seed.
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
            if is_distributed() and torch.distributed.get_rank():
                seed = int(derive_keys(1, "rank", seed, torch.distributed.get_rank())[0])
            ahead = 1 + self.batches_ahead  # plus the batch that the consumer waits for
            team = _Team(self._fetcher, self.num_workers, ahead, self.batch_sampler.batch_size, seed)
        run = Batches(_Run(team), order, team.ahead - 1)
        run.begin()
        team.start()
        self._team = team
        return run

    def end_workers(self) -> None:
        """End the worker processes, and all iterators. The next ``iter()`` starts new workers."""
        team, self._team = self._team, None
        if team is not None:
            team.end()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_team": None}


@dataclasses.dataclass
class _Pending:
    """A batch that has been sent to the workers."""

    cell: int  # on the Board
    slot: int | None  # in the SharedBatchPool; None without shared memory
    parts: int  # number of its parts
    messages: int = 0  # number of messages about this batch that no worker has answered
    finished: bool = False
    outcome: TimedBatch | ExceptionWrapper | None = None


class _Team:
    """The worker processes of a ProcessLoader.

    Args:
        fetcher: Makes the batches, in each worker.
        workers: The number of workers.
        ahead: Largest number of batches that are in production or wait for the consumer.
        largest: The number of samples in the largest batch.
        seed: The seed of the workers' global random generators.
    """

    def __init__(self, fetcher: BatchFetcher, workers: int, ahead: int, largest: int, seed: int) -> None:
        self.ahead = ahead
        self.pid = os.getpid()
        self.failed = False
        self.run = 0
        self._workers, self._seed = workers, seed
        # A finished batch keeps its cell until all messages about it are answered: one more cell for each worker.
        cells = ahead + workers
        self._free_cells = deque(range(cells))
        self._pending: dict[int, _Pending] = {}  # the batches whose cells are in use, in the order of the iteration
        self._part_size = PartSize(workers, _LARGEST_PART)
        self._sent = 0  # batches of this run
        self._fetcher = fetcher
        self._pool: SharedBatchPool | None = None
        if fetcher.image_nbytes is not None:
            self._pool = SharedBatchPool(ahead + _HELD_BATCHES, largest * fetcher.image_nbytes)
        # Make the board after the pool: if the pool raised an error, no finalizer would close the board.
        self._board = Board(multiprocessing.get_context(), cells)
        self._selector = selectors.DefaultSelector()
        self._processes: list[BaseProcess] = []
        self._busy = [0]  # number of unanswered messages; the finalizer has the same list
        self.end = weakref.finalize(self, _end, self.pid, self._processes, self._board, self._busy)

    def start(self) -> None:
        """Start the workers that have not started yet. The first workers make batches while others start."""
        context = multiprocessing.get_context()
        for number in range(len(self._processes), self._workers):
            reading, writing = context.Pipe(duplex=False)
            seed = self._seed + number
            start = WorkerStart(
                run_worker, self._board, self._fetcher, self._pool, number, self._workers, seed, writing
            )
            process = context.Process(target=start, daemon=True)
            process.start()
            writing.close()
            self._processes.append(process)
            self._selector.register(reading, selectors.EVENT_READ, process)
            self._selector.register(process.sentinel, selectors.EVENT_READ, process)
        if self._pool is not None:
            self._pool.close_files()

    @property
    def _free_workers(self) -> int:
        """Number of workers that have no message to answer."""
        return max(0, self._workers - self._busy[0])

    def begin_run(self) -> int:
        """End the previous iteration, and wait for its unfinished parts. Return the number of the new iteration."""
        self.end_run(self.run)
        self.run += 1
        self._sent = 0
        while self._pending:
            self._receive()
        self._board.run[0] = self.run
        return self.run

    def end_run(self, run: int) -> None:
        """Let the workers skip the rest of an iteration: all parts that no worker has begun."""
        if run == self.run and self.pid == os.getpid():
            self._board.run[0] = 0

    def send(self, indices: Sequence[int]) -> _Pending:
        """Let the next free worker make a batch."""
        slot = None if self._pool is None else self._pool.reserve()
        size, seed = self._part_size.most, None
        if not self._fetcher.releases_gil:
            size, seed = _SEEDED_PART, int(derive_keys(1, "batch", self._seed, self.run, self._sent)[0])
        self._sent += 1
        pending = _Pending(self._free_cells.popleft(), slot, -(-len(indices) // size))
        self._pending[pending.cell] = pending
        self._board.put(
            pending.cell, pending.parts, pickle.dumps(Task(self.run, indices, size, slot, seed), protocol=5)
        )
        self._send(pending)
        return pending

    def finish(self, pending: _Pending) -> TimedBatch:
        """Wait for a batch. Meanwhile let free workers make parts of the oldest unfinished batches."""
        idle_s = 0.0
        while not pending.finished:
            for late in self._pending.values():
                if self._free_workers and not late.finished:
                    for _ in range(min(self._free_workers, self._board.parts_left(late.cell))):
                        if late.messages <= late.parts:
                            self._send(late)
            began, free = now(), self._free_workers
            self._receive()
            idle_s += free * (now() - began)
        self._part_size.adapt(idle_s)
        if isinstance(pending.outcome, ExceptionWrapper):
            pending.outcome.reraise()  # type: ignore[no-untyped-call]
        batch: TimedBatch = pending.outcome  # type: ignore[assignment] # not None, because the batch is wanted
        return batch

    def _send(self, pending: _Pending) -> None:
        pending.messages += 1
        self._busy[0] += 1
        self._board.send(pending.cell)

    def _receive(self) -> None:
        """Wait for answers of the workers.

        Raises:
            LoaderError: A worker process has ended.
        """
        ended: BaseProcess | None = None
        for key, _ in self._selector.select():
            connection: Any = key.fileobj
            if isinstance(connection, int):
                ended = ended or key.data
                continue
            try:
                reply: Reply = connection.recv()
            except (EOFError, OSError) as error:
                self._fail(key.data, error)
            self._take(reply)
        if ended is not None:
            self._fail(ended)

    def _take(self, reply: Reply) -> None:
        pending = self._pending[reply.cell]
        pending.messages -= 1
        self._busy[0] -= 1
        if reply.finished:
            pending.finished, pending.outcome = True, reply.outcome
            if not isinstance(reply.outcome, TimedBatch) and pending.slot is not None and self._pool is not None:
                self._pool.free(pending.slot)
        if pending.finished and not pending.messages:
            del self._pending[reply.cell]
            self._free_cells.append(reply.cell)

    def _fail(self, process: BaseProcess, error: Exception | None = None) -> None:
        self.failed = True
        self._busy[0] = 1
        process.join(1.0)  # a killed worker may take a moment to show an exit code
        code = process.exitcode
        how = f"is killed by signal: {signal.strsignal(-code)}" if code and code < 0 else "exited unexpectedly"
        raise LoaderError(f"DataLoader worker (pid {process.pid}) {how}") from error


def _end(pid: int, processes: list[BaseProcess], board: Board, busy: list[int]) -> None:
    """End the worker processes. Kill busy workers at once, because nobody will receive their batches.

    Garbage collection can call this function at any point of any thread, so the function takes no lock.
    """
    board.close()
    if os.getpid() != pid:  # a forked child has a copy of the team, but the workers belong to the parent
        return
    if not busy[0]:
        for process in processes:
            process.join(KILL_WAIT_S)
    for process in processes:
        process.kill()
    for process in processes:
        process.join(KILL_WAIT_S)


class _Run:
    """One iteration over a ProcessLoader."""

    def __init__(self, team: _Team) -> None:
        self._team = team
        self._run = team.begin_run()

    def begin(self, indices: Sequence[int]) -> Finish:
        self._check()
        return functools.partial(self._finish, self._team.send(indices))

    def _finish(self, pending: _Pending) -> TimedBatch:
        self._check()
        return self._team.finish(pending)

    def _check(self) -> None:
        if not self._team.end.alive or self._team.pid != os.getpid():
            raise LoaderError("the workers of this iterator ended, or belong to another process: call iter() again")
        if self._run != self._team.run:
            raise LoaderError("ended by a new iterator over the same loader: its workers make one epoch at a time")

    def close(self, *, wait: bool) -> None:
        """End the iteration. The workers finish the parts that they have begun, and wait for the next iteration."""
        self._team.end_run(self._run)
