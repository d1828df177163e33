"""Convert into several shards at once, in processes of this machine or wherever an executor runs its tasks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader._spawn import shielded
from dbloader.conversion.make_plan import plan_conversion
from dbloader.conversion.plan import target_of
from dbloader.conversion.publish import list_parts, publish
from dbloader.conversion.report import Progress
from dbloader.conversion.run_parts import check_executor, run_parts
from dbloader.errors import StoreExistsError
from dbloader.stores.lmdb.publish_shards import check_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.conversion.plan import Plan
    from dbloader.conversion.report import Report


def convert_shards(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    shards: int,
    *,
    workers: int,
    executor: Any,
    append: bool,
    overwrite: bool,
    resume: bool,
    progress: Callable[[Progress], object],
    **options: Any,
) -> Report:
    """Plan, make all parts that are missing, and publish; see `convert`."""
    started = time.monotonic()
    if executor is not None:
        check_executor(executor)
    if not append:
        check_target(target_of(destination), overwrite=overwrite)
    plan = plan_conversion(
        source,
        destination,
        shards,
        append=append,
        overwrite=overwrite and not resume,
        progress=lambda count: progress(Progress(count, None, 0)),
        **options,
    )
    found, receipts, missing = list_parts(destination)
    _check_same(plan, found.id)
    done = [plan.part_length(receipt.part) for receipt in receipts]
    resumed_at, nbytes = sum(done), 0
    progress(Progress(plan.files, resumed_at, 0))
    own = None
    if executor is None:
        # Not forked: the calling program may have threads.
        processes = min(workers, plan.parts)
        executor = own = _Workers(processes, multiprocessing.get_context("spawn"), _begin_worker)
        workers = max(1, workers // plan.parts)
    place = os.path.abspath(destination)  # noqa: PTH100 - tasks may run in another working directory
    try:
        with closing(run_parts(place, missing, executor, workers)) as receipts_made:
            for receipt in receipts_made:
                _check_same(plan, receipt.plan)
                done.append(plan.part_length(receipt.part))
                nbytes += receipt.bytes_read
                progress(Progress(plan.files, sum(done), nbytes))
    finally:
        if own is not None:
            own.shutdown(cancel_futures=True)
    report = publish(destination, overwrite=overwrite)
    return replace(report, resumed_at=resumed_at, bytes_read=nbytes, seconds=time.monotonic() - started)


def _check_same(plan: Plan, plan_id: str) -> None:
    """Raise StoreExistsError if a plan has another id than that which this conversion has made."""
    if plan_id != plan.id:
        raise StoreExistsError(
            f"{plan.folder} has another plan than before: another conversion to the same place has replaced it"
        )


class _Workers(ProcessPoolExecutor):
    """Processes that are started, with all that belongs to them, before Ctrl-C can interrupt that."""

    @override
    def submit(self, *call: Any, **options: Any) -> Any:
        with shielded():
            return super().submit(*call, **options)


def _begin_worker() -> None:
    """End this process, without a word, at Ctrl-C; and when its parent is gone: it would wait for parts forever."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # for one that came while this process imported
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, lambda *_: sys.exit(1))  # removes what a part has written aside
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
