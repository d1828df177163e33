"""Run the parts of a conversion by an executor or by Ray, and say which part an error is of."""

from __future__ import annotations

import secrets
import time
import warnings
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from dbloader._describe import counted, short_repr
from dbloader.conversion.part import Receipt, convert_part
from dbloader.conversion.plan import Plan
from dbloader.errors import ConversionError, DBLoaderError, OptionError, StoreNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Sequence

_LOOK_S = 0.2  # how often futures are asked that cannot be waited for
_PATIENCE_S = 300.0
_STARTS_WORKERS = (ProcessPoolExecutor, ThreadPoolExecutor)


def check_executor(executor: Any) -> None:
    """Raise OptionError or TypeError unless parts can be given to an executor."""
    if executor != "ray" and not callable(getattr(executor, "submit", None)):
        error = OptionError if isinstance(executor, str) else TypeError
        raise error(f'executor must be "ray" or an object with submit(), got {short_repr(executor)}')


def run_parts(
    place: str, parts: Sequence[int], executor: Any, workers: int, *, patience: float = _PATIENCE_S
) -> Generator[Receipt, None, None]:
    """Yield the receipts of parts as they are made.

    When one fails, those that have not begun are canceled. Parts wait for a free worker without limit, as a cluster may
    grow; a warning says so if none is made for some time. Ray's parts end when no node could take them.

    Args:
        place: Absolute path of the destination.
        parts: Numbers of the parts.
        executor: ``"ray"``, or anything with ``submit``; it is not shut down.
        workers: Threads of each part.
        patience: Seconds until that warning, and for which Ray may look for a node that is large enough.

    Raises:
        DBLoaderError: A part failed: its error, after the number of the part.
        ConversionError: A part failed with another error, or what was to make it is gone.
        OptionError: The executor does not return what a part returns, or no node of Ray has the CPUs for a part.
    """
    if executor == "ray":
        from dbloader.conversion.ray_parts import submit_to_ray

        results = submit_to_ray(place, parts, workers, patience)
    else:
        results = _submit(place, parts, executor, workers, patience)
    part = None
    with closing(results):
        try:
            for part, result in results:
                receipt = result()
                part = None
                yield receipt
        except Exception as error:
            raise _told(part, place, error) from error


def _submit(
    place: str, parts: Sequence[int], executor: Any, workers: int, patience: float
) -> Generator[tuple[int, Callable[[], Receipt]], None, None]:
    running: dict[Any, int] = {}
    try:
        for part in parts:
            running[executor.submit(_make_part, place, part, workers, secrets.token_hex(8))] = part
        while running:
            done = _finished(running, patience)
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


def _make_part(place: str, part: int, workers: int, _attempt: str) -> Receipt:
    """Make a part.

    Only positional arguments: Dask takes ``workers=`` for those that a task may run on. No two calls are equal: Dask
    would answer the second with what the first has returned or raised.
    """
    return convert_part(place, part, workers=workers)


def _receipt(future: Any) -> Receipt:
    """Return the receipt of a part, or raise its error."""
    receipt = future.result()
    if not isinstance(receipt, Receipt):
        raise OptionError(f"executor must return what the function returns, got {short_repr(receipt)}")
    return receipt


def _finished(running: Collection[Any], seconds: float) -> Collection[Any]:
    """Wait until one of some futures is done, but not longer than some seconds, and return those that are."""
    if all(isinstance(future, Future) for future in running):
        return wait(running, seconds, FIRST_COMPLETED).done
    # Such as submitit's jobs, which look for a file.
    deadline = time.monotonic() + seconds
    while not (done := [future for future in running if future.done()]) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return done


def _told(part: int | None, place: str, error: Exception) -> DBLoaderError:
    """Return an error that says which part it is of, None if of no single one, and what to do."""
    if isinstance(error, StoreNotFoundError):
        folder = Plan.open(place).folder  # raises if the plan is gone here too
        return ConversionError(
            f"part {part} ran where {folder} is not to be seen: source and destination must be folders that all "
            "machines have at the same path"
        )
    which = "the parts" if part is None else f"part {part}"
    if isinstance(error, DBLoaderError):
        return type(error)(str(error) if part is None else f"{which}: {error}")
    told = next(iter(str(error).splitlines()), "")
    return ConversionError(
        f"{which} could not be made: {type(error).__name__}{': ' if told else ''}{told}; the parts that are made are "
        "kept: the same conversion goes on with the others"
    )
