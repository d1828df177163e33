"""Make the parts of a conversion by an executor, by Ray (https://docs.ray.io) or in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import sys
import threading
import time
import warnings
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader._describe import counted, short_repr
from dbloader._machine import cpu_count, sigint_blocked
from dbloader.conversion.parts.part import PartReceipt, convert_part
from dbloader.conversion.parts.plan import Plan
from dbloader.errors import ConversionError, DBLoaderError, OptionError, StoreNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Sequence

    # The number of a part that has ended, and a function that returns its receipt or raises its error.
    Ended = tuple[int, Callable[[], PartReceipt]]

_POLL_S = 0.2  # seconds between two looks at futures that cannot be waited for
_PATIENCE_S = 300.0
_STARTS_WORKERS = (ProcessPoolExecutor, ThreadPoolExecutor)

# How often Ray runs a task again whose worker or node is gone. A part may be made any number of times.
_RAY_RETRIES = 10


def check_executor(executor: Any) -> None:
    """Raise OptionError or TypeError unless an executor can make parts."""
    if executor != "ray" and not callable(getattr(executor, "submit", None)):
        error = OptionError if isinstance(executor, str) else TypeError
        raise error(f'executor must be "ray" or an object with submit(), got {short_repr(executor)}')


def run_parts(
    place: str, parts: Sequence[int], executor: Any, workers: int, *, patience: float = _PATIENCE_S
) -> Generator[PartReceipt, None, None]:
    """Make parts, and yield the receipt of each one as soon as it is made.

    After an error, parts that have not begun are canceled. An executor may wait for free workers without limit, since
    a cluster may grow; a warning is issued if no part is made for some time. Ray fails if no node is large enough.

    Args:
        place: Absolute path of the destination.
        parts: Numbers of the parts.
        executor: ``"ray"``, or anything with ``submit``. It is not shut down.
        workers: Threads of each part.
        patience: Seconds without a part until the warning, or until Ray fails.

    Raises:
        DBLoaderError: A part failed: its error, which begins with the number of the part.
        ConversionError: A part failed with another error, or the process that was to make it is gone.
        OptionError: The executor does not return what a part returns, or no node of Ray has the CPUs for a part.
    """
    submit = _submit_to_ray if executor == "ray" else partial(_submit, executor)
    part = None
    with closing(submit(place, parts, workers, patience)) as results:
        try:
            for part, result in results:
                receipt = result()
                part = None
                yield receipt
        except Exception as error:  # executors, and tasks on other machines, raise errors of any kind
            raise _part_error(part, place, error) from error


def _part_error(part: int | None, place: str, error: Exception) -> DBLoaderError:
    """Return an error that names its part, if it has one, and the remedy."""
    if isinstance(error, StoreNotFoundError):
        folder = Plan.open(place).folder  # raises if the plan is gone here too
        return ConversionError(
            f"part {part} ran where {folder} is not to be seen: source and destination must be folders that all "
            "machines have at the same path"
        )
    which = "the parts" if part is None else f"part {part}"
    if isinstance(error, DBLoaderError):
        return type(error)(str(error) if part is None else f"{which}: {error}")
    message = next(iter(str(error).splitlines()), "")
    return ConversionError(
        f"{which} could not be made: {type(error).__name__}{': ' if message else ''}{message}; the parts that are made "
        "are kept: the same conversion goes on with the others"
    )


# ---- Executors


def _submit(
    executor: Any, place: str, parts: Sequence[int], workers: int, patience: float
) -> Generator[Ended, None, None]:
    running: dict[Any, int] = {}
    try:
        for part in parts:
            running[executor.submit(_make_part, place, part, workers, secrets.token_hex(8))] = part
        while running:
            done = _wait_for_one(running, patience)
            if not done and not isinstance(executor, _STARTS_WORKERS):
                warnings.warn(
                    f"no part was made for {patience:.0f} s: see whether the executor has workers that are free, and "
                    f"whether they have {counted(workers, 'CPU')} for a part; the conversion goes on waiting",
                    stacklevel=1,
                )
            for future in done:
                yield running.pop(future), partial(_receipt, future)
    finally:
        for future in running:  # after an error
            future.cancel()


def _make_part(place: str, part: int, workers: int, _attempt: str) -> PartReceipt:
    """Make a part.

    All arguments are positional: Dask takes ``workers=`` for the workers that a task may run on. ``_attempt`` makes
    every call different: Dask would answer an equal call with the result or the error of the first one.
    """
    return convert_part(place, part, workers=workers)


def _receipt(future: Any) -> PartReceipt:
    """Return the receipt of a part, or raise its error."""
    receipt = future.result()
    if not isinstance(receipt, PartReceipt):
        raise OptionError(f"executor must return what the function returns, got {short_repr(receipt)}")
    return receipt


def _wait_for_one(running: Collection[Any], seconds: float) -> Collection[Any]:
    """Wait until at least one future is done, or until the seconds have passed; return all that are done."""
    if all(isinstance(future, Future) for future in running):
        return wait(running, seconds, FIRST_COMPLETED).done
    # Futures of another kind, such as submitit's jobs, which look for a file.
    deadline = time.monotonic() + seconds
    while not (done := [future for future in running if future.done()]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return done


# ---- Processes of this machine


@contextmanager
def local_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield an executor with this many local processes. The processes end with the block."""
    # Not forked: the calling program may have threads.
    executor = _Processes(count, multiprocessing.get_context("spawn"), _begin_process)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


class _Processes(ProcessPoolExecutor):
    """Processes that Ctrl-C cannot interrupt while they start."""

    @override
    def submit(self, *call: Any, **options: Any) -> Any:
        with sigint_blocked():
            return super().submit(*call, **options)


def _begin_process() -> None:
    """End this process at Ctrl-C, without a traceback, and when its parent is gone: it would wait for parts forever."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # for one that came while this process imported
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, lambda *_: sys.exit(1))  # removes what a part has written aside
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


# ---- Ray


def _submit_to_ray(place: str, parts: Sequence[int], workers: int, patience: float) -> Generator[Ended, None, None]:
    """Make each part as a task of Ray, with as many CPUs as it has threads.

    A program that has initialized Ray keeps its cluster. Otherwise the cluster is the one that runs here or at
    RAY_ADDRESS, and without either a new one on this machine.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise OptionError("making parts with Ray needs Ray: pip install 'dbloader[ray]'") from error
    connected = _connect(ray, workers)
    running: dict[Any, int] = {}
    try:
        task = ray.remote(num_cpus=workers, max_retries=_RAY_RETRIES)(convert_part)
        for part in parts:
            running[task.remote(place, part, workers=workers)] = part
        while running:
            done, _ = ray.wait([*running], timeout=patience)
            if not done:
                _check_cpus(ray, workers)
            for finished in done:
                yield running.pop(finished), partial(_receipt_of_ray, ray, finished)
    finally:
        for unfinished in running:  # after an error
            ray.cancel(unfinished)
        if connected:
            ray.shutdown()


def _connect(ray: Any, workers: int) -> bool:
    """Connect to Ray unless the program has done so; return whether this call has connected."""
    if ray.is_initialized():
        return False
    try:
        ray.init(address="auto")
    except ConnectionError as error:
        address = os.environ.get("RAY_ADDRESS")
        if address:
            raise OptionError(f"no Ray cluster answers at RAY_ADDRESS={address}: {error}") from error
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # this program's user was not asked
        ray.init(address="local", include_dashboard=False, num_cpus=max(workers, cpu_count()))
    return True


def _check_cpus(ray: Any, workers: int) -> None:
    """Raise OptionError unless a node has the CPUs that a part takes."""
    largest = max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
    if workers > largest:
        raise OptionError(
            f"workers (--workers) must be at most {largest:g}, the CPUs of the largest node of the Ray cluster, got "
            f"{workers}"
        )


def _receipt_of_ray(ray: Any, finished: Any) -> PartReceipt:
    """Return the receipt that a task has returned, or raise the task's own error."""
    try:
        receipt: PartReceipt = ray.get(finished)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause or error) from error
    return receipt
