"""Convert in parts from one program: by an executor, by Ray (https://docs.ray.io) or in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader._describe import short_repr
from dbloader._machine import cpu_count, sigint_blocked
from dbloader._places import is_remote
from dbloader.conversion.file_list import FileList
from dbloader.conversion.report import Progress, write_events
from dbloader.errors import ConversionError, DBLoaderError, OptionError, StoreExistsError, StoreNotFoundError
from dbloader.ext.parts.make_plan import plan_parts
from dbloader.ext.parts.part import PartReceipt, convert_part, list_parts
from dbloader.ext.parts.plan import list_name, target_of
from dbloader.ext.parts.publish import publish
from dbloader.ext.publishing import objects
from dbloader.ext.publishing.publish_shards import check_target
from dbloader.ext.sources.open import open_with

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Sequence

    from dbloader.conversion.report import Report
    from dbloader.conversion.settings import Settings
    from dbloader.ext.parts.plan import Plan

_POLL_S = 0.2  # seconds between polls of futures that concurrent.futures.wait does not accept
# Number of times that Ray repeats a task after its worker or node has died. Repeating a part is safe.
_RAY_RETRIES = 10


def convert_in_parts(
    settings: Settings,
    destination: str | os.PathLike[str],
    shards: int,
    workers: int,
    executor: Any,
    progress: Callable[[Progress], object],
    *,
    append: bool,
    overwrite: bool,
    resume: bool,
) -> Report:
    """Plan a conversion, make all missing parts, and publish the store. `dbloader.convert` describes the arguments."""
    started = time.monotonic()
    if executor not in (None, "ray") and not callable(getattr(executor, "submit", None)):
        error = OptionError if isinstance(executor, str) else TypeError
        raise error(f'executor must be "ray" or an object with submit(), got {short_repr(executor)}')
    if not append:
        if is_remote(destination):
            objects.find_replaced(objects.open_target(os.fspath(destination)), overwrite=overwrite)
        else:
            check_target(target_of(destination), overwrite=overwrite)
    # Tasks may run in another working directory.
    place = os.fspath(destination) if is_remote(destination) else os.path.abspath(destination)  # noqa: PTH100
    plan = plan_parts(
        settings,
        destination,
        shards,
        append=append,
        overwrite=overwrite and not resume,
        progress=lambda count: progress(Progress(count, None, 0)),
    )
    parts = list_parts(destination)
    _check_same(plan, parts.plan.id)
    done = [plan.part_length(receipt.part) for receipt in parts.receipts]
    receipts, resumed_at, nbytes = parts.receipts, sum(done), 0
    progress(Progress(plan.files, resumed_at, 0, plan.left_out.get("understood", ())))
    running: Any = nullcontext(executor)
    if executor is None:
        running = _local_processes(min(workers, plan.parts))
        workers = max(1, workers // plan.parts)
    with running as executor, closing(run_parts(place, parts.missing, executor, workers)) as made:
        for receipt in made:
            _check_same(plan, receipt.plan)
            done.append(plan.part_length(receipt.part))
            nbytes += receipt.bytes_read
            receipts.append(receipt)
            progress(Progress(plan.files, sum(done), nbytes))
    late = _late_events(plan)
    report = publish(destination, overwrite=overwrite)
    # Count the files here, because the report counts none if another process has published the same parts.
    rejected = len(late) + max(report.rejected, sum(receipt.rejected for receipt in receipts))
    report = replace(report, files=plan.files + len(late), rejected=rejected)
    if late:  # write only to the report file, because all processes that publish a plan write the same index file
        path = Path(f"{target_of(destination)}.report.jsonl")
        problem = write_events(destination, path, late)
        file = report.report_file if problem else str(path)
        report = replace(report, report_file=file, warnings=(*report.warnings, *problem))
    return replace(report, resumed_at=resumed_at, bytes_read=nbytes, seconds=time.monotonic() - started)


def _late_events(plan: Plan) -> list[dict[str, str]]:
    # Late files were added to the source after the plan. Ignore errors, such as a removed source or a plan in a bucket.
    path, late = plan.folder / list_name(plan.token), list[dict[str, str]]()
    opened = partial(open_with, plan.settings, beside=False)
    with suppress(OSError, DBLoaderError), path.open("rb") as data, closing(opened()) as found:
        late += found.late(FileList.of_span(data, 0, path.stat().st_size))
    return late


def _check_same(plan: Plan, plan_id: str) -> None:
    """Raise StoreExistsError if a plan has another id than the plan of this conversion."""
    if plan_id != plan.id:
        raise StoreExistsError(
            f"another conversion has replaced the plan in {plan.where}: convert again after the other conversion"
        )


def run_parts(place: str, parts: Sequence[int], executor: Any, workers: int) -> Generator[PartReceipt, None, None]:
    """Make parts, and yield the receipt of each finished part.

    After an error, parts that have not begun are canceled. Its message contains the number of the failed part. The wait
    for free workers has no limit, because a cluster may grow. The executor is not shut down.
    """
    part, running = None, dict[Any, int]()
    try:
        with _ray_tasks(workers) if executor == "ray" else nullcontext(executor) as executor:
            try:
                for number in parts:
                    # All arguments are positional, because Dask would take ``workers=`` for the names of its own
                    # workers. A random argument makes each call different, because Dask answers an equal call with an
                    # old result.
                    running[executor.submit(_make_part, place, number, workers, secrets.token_hex(8))] = number
                while running:
                    for future in _wait_for_one(running):
                        part = running.pop(future)
                        receipt = future.result()
                        if not isinstance(receipt, PartReceipt):
                            got = short_repr(receipt)
                            raise OptionError(f"executor must return the result of the submitted function, got {got}")
                        part = None
                        yield receipt
            finally:
                for future in running:  # after an error
                    future.cancel()
    except Exception as error:  # executors, and tasks on other machines, raise errors of any kind
        raise _part_error(part, place, error) from error


def _make_part(place: str, part: int, workers: int, _attempt: str) -> PartReceipt:
    return convert_part(place, part, workers=workers)


def _wait_for_one(running: Collection[Any]) -> Collection[Any]:
    """Wait until at least one future is done, and return all finished futures."""
    if all(isinstance(future, Future) for future in running):
        return wait(running, return_when=FIRST_COMPLETED).done
    # Other futures can only be polled, and not too often: submitit's done(), for example, looks for a file.
    while not (done := [future for future in running if future.done()]):
        time.sleep(_POLL_S)
    return done


def _part_error(part: int | None, place: str, error: Exception) -> DBLoaderError:
    """Return an error with the remedy, and with the number of the failed part, if any."""
    if isinstance(cause := getattr(error, "cause", None), Exception):
        error = cause  # Ray raises a RayTaskError; its ``cause`` is the error of the task
    if isinstance(error, StoreNotFoundError):
        folder = list_parts(place).plan.where  # raises an error if this machine cannot find the plan either
        return ConversionError(
            f"part {part} ran on a machine that cannot see {folder}: all machines must see the source and the "
            "destination at the same paths"
        )
    which = "the parts" if part is None else f"part {part}"
    if isinstance(error, DBLoaderError):
        return type(error)(str(error) if part is None else f"{which}: {error}")
    message = next(iter(str(error).splitlines()), "").rstrip(".")
    hint = ""
    if isinstance(error, BrokenProcessPool):  # a spawned process imports the script, and would call convert again
        hint = "a process was killed, or a script calls convert outside of if __name__ == '__main__':; "
    return ConversionError(
        f"{which} could not be made: {type(error).__name__}{': ' if message else ''}{message}; {hint}finished "
        "parts are kept: repeat the conversion to make the remaining parts"
    )


# ---- Processes of this machine


@contextmanager
def _local_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield an executor with this many local processes. The processes end with the block."""
    # Not "fork", because the calling program may have threads.
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
    """End this process without a traceback at Ctrl-C, and also when its parent ends."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell's background jobs ignore SIGINT
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a Ctrl-C that came during the imports ends the process
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, lambda *_: sys.exit(1))  # exiting removes the partial files
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


# ---- Ray


@contextmanager
def _ray_tasks(workers: int) -> Iterator[_RayTasks]:
    """Yield an executor that runs calls as tasks of Ray. Each task reserves ``workers`` CPUs.

    If the program has initialized Ray, the tasks run in its cluster, which is not shut down. Otherwise dbloader
    connects to the cluster at RAY_ADDRESS or on this machine. Without RAY_ADDRESS, it starts a local cluster if needed.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise OptionError("making parts with Ray needs Ray: pip install 'dbloader[ray]'") from error
    is_ours = not ray.is_initialized()
    if is_ours:
        try:
            ray.init(address="auto")
        except ConnectionError as error:
            address = os.environ.get("RAY_ADDRESS")
            if address:
                raise OptionError(f"no Ray cluster answers at RAY_ADDRESS={address}: {error}") from error
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # the user has not agreed to send statistics
            ray.init(address="local", include_dashboard=False, num_cpus=max(workers, cpu_count()))
    tasks = _RayTasks(ray, workers)
    try:
        yield tasks
    except BaseException:
        tasks.cancel()
        raise
    finally:
        if is_ours:
            ray.shutdown()


class _RayTasks:
    """An executor whose calls are tasks of Ray."""

    def __init__(self, ray: Any, workers: int) -> None:
        self._ray = ray
        # Cached, because Ray sends the code of each new task to its cluster.
        self._task = cache(ray.remote(num_cpus=workers, max_retries=_RAY_RETRIES))
        self._results: list[Any] = []

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        self._results.append(self._task(function).remote(*arguments))
        future: Future[Any] = self._results[-1].future()
        return future

    def cancel(self) -> None:
        """Cancel all tasks that have not ended. Canceling a future would not cancel its task."""
        for result in self._results:
            self._ray.cancel(result)
