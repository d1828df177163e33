"""End the worker processes of a DataLoader when its iterator is dropped: at once, and wherever that happens.

torch's own shutdown asks each worker through a queue, and waits 5 s for it, then another 5 s. In a reference cycle the
garbage collector finalizes the queues first, and no worker is asked. In a forked child torch asks the parent's workers.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

KILL_WAIT_S = 1.0  # for the kernel to end a killed process; one that hangs in a file system ends later


def own_workers(iterator: Any) -> None:
    """Replace the shutdown of a DataLoader's iterator; an iterator without worker processes stays as it is.

    Workers that are idle end as torch ends them. All others are killed, since nobody wants what they make. No queue and
    no lock is used for that, because a garbage collection can begin anywhere, even in a thread that holds the lock.

    An iterator with a thread for pinned memory keeps torch's shutdown, which alone can end this thread.
    """
    workers = getattr(iterator, "_workers", None)
    if not workers or "_shutdown_workers" in vars(iterator):
        return
    if hasattr(iterator, "_pin_memory_thread"):
        # Finalizing the queues after the iterator is all that can be done from outside.
        queues = (iterator._index_queues, iterator._worker_result_queue, iterator._workers_done_event)
        weakref.finalize(iterator, lambda *_: None, *queues).atexit = False
        return
    from torch._C import _remove_worker_pids  # torch raises an error when a worker that it knows is killed

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
    if os.getpid() != pid:  # a forked child has a copy of the iterator, but the workers are the parent's
        return
    forget()
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join(KILL_WAIT_S)
