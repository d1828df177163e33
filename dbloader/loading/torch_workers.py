"""End the worker processes of a DataLoader when its iterator is dropped, and find a worker that was killed.

torch's own shutdown sends each worker a request through a queue, and may wait 10 s. If the iterator is in a reference
cycle, Python finalizes the queues first. Then torch cannot send the request. In a forked child, torch would end the
parent's workers.
"""

from __future__ import annotations

import functools
import os
import traceback
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

KILL_WAIT_S = 1.0  # time for the kernel to end a killed process; a process that hangs in a file system takes longer


def own_workers(iterator: Any) -> None:
    """Replace the shutdown of a DataLoader's iterator, if it has worker processes.

    The new shutdown lets torch end idle workers, and kills workers that are making a batch. Killing needs no queue and
    no lock. A lock could block forever: garbage collection may call the shutdown in a thread that holds the lock.

    An iterator with a thread for pinned memory keeps torch's shutdown, because only torch can end this thread.
    """
    workers = getattr(iterator, "_workers", None)
    if not workers or "_shutdown_workers" in vars(iterator):
        return
    if hasattr(iterator, "_pin_memory_thread"):
        # These queues must outlive the iterator, because its shutdown needs them to end the workers.
        queues = (iterator._index_queues, iterator._worker_result_queue, iterator._workers_done_event)
        weakref.finalize(iterator, lambda *_: None, *queues).atexit = False
        return
    from torch._C import _remove_worker_pids  # without this call, torch would raise an error for killed workers

    kill = weakref.finalize(
        iterator, _kill, os.getpid(), [*workers], functools.partial(_remove_worker_pids, id(iterator))
    )
    iterator._shutdown_workers = functools.partial(_shut_down, weakref.ref(iterator), os.getpid(), kill)


def _shut_down(reference: weakref.ref[Any], pid: int, kill: weakref.finalize[..., Any]) -> None:
    iterator = reference()
    if iterator is None or iterator._tasks_outstanding:
        kill()
    elif os.getpid() == pid:
        kill.detach()
        type(iterator)._shutdown_workers(iterator)


def _kill(pid: int, workers: list[BaseProcess], forget: Callable[[], None]) -> None:
    forget()
    if os.getpid() != pid:  # a forked child has a copy of the iterator, but the workers belong to the parent
        return
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join(KILL_WAIT_S)


def close_iterator(iterator: Any) -> None:
    """Close a loader's iterator, and end its workers. Persistent workers of a DataLoader continue."""
    if hasattr(iterator, "close"):
        iterator.close()
    elif hasattr(iterator, "_shutdown_workers") and not getattr(iterator, "_persistent_workers", False):
        # A DataLoader's iterator has no close(). After an error, a reference cycle would keep its workers alive.
        iterator._shutdown_workers()


def end_workers(loader: Any, *, only_inherited: bool = False) -> None:
    """End the workers that a loader keeps between iterations. In a forked child, forget the workers of the parent."""
    # A PrefetchLoader or a loader that Accelerate has prepared contains another loader.
    inner = getattr(loader, "wrapped_loader", getattr(loader, "base_dataloader", None))
    if inner is not None:
        end_workers(inner, only_inherited=only_inherited)
        return
    if hasattr(loader, "end_workers") and not only_inherited:
        loader.end_workers()
    iterator: Any = getattr(loader, "_iterator", None) if getattr(loader, "persistent_workers", False) else None
    if workers := getattr(iterator, "_workers", None):
        if workers[0]._parent_pid != os.getpid():
            if "_shutdown_workers" not in vars(iterator):  # torch's shutdown would end the parent's workers
                from torch._C import _remove_worker_pids  # without this, a later iterator with the same id() fails

                iterator._shutdown_workers = functools.partial(_remove_worker_pids, id(iterator))
            loader._iterator = None
        elif not only_inherited and not hasattr(loader, "state_dict"):  # StatefulDataLoader needs its iterator's state
            loader._iterator = None
            iterator._shutdown_workers()


def find_killed_worker(iterator: Any, error: BaseException) -> BaseProcess | None:
    """If this error is from the connection to a killed DataLoader worker, return the worker's process, else None."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    if not any(module.startswith("multiprocessing.") for module in modules):
        return None  # a sample raised the error
    workers: list[BaseProcess] = getattr(iterator, "_workers", [])
    for worker in workers:
        worker.join(1.0 / len(workers))  # at most 1 s in all: a killed worker shows its exit code a little later
    return next((worker for worker in workers if worker.exitcode), None)
