"""Make the parts of a conversion as tasks of Ray (https://docs.ray.io)."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from dbloader._machine import cpu_count
from dbloader.conversion.part import convert_part
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from dbloader.conversion.part import Receipt

# Of a task whose worker or node is gone. A part may be made any number of times.
_RETRIES = 10


def submit_to_ray(
    place: str, parts: Sequence[int], workers: int, patience: float
) -> Generator[tuple[int, Callable[[], Receipt]], None, None]:
    """Yield the number of each part that is finished, and what returns its receipt or raises its error.

    Ray is used as the program has initialized it; else the cluster that runs here or that RAY_ADDRESS names; else a
    new one on this machine. Each part takes as many CPUs as it has threads. A cluster that grows by itself has
    ``patience`` seconds to start a node with so many.

    Raises:
        OptionError: Ray is not installed, no cluster is at RAY_ADDRESS, or no node has the CPUs for a part.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise OptionError("making parts with Ray needs Ray: pip install 'dbloader[ray]'") from error
    connected = _connect(ray, workers)
    running: dict[Any, int] = {}
    try:
        task = ray.remote(num_cpus=workers, max_retries=_RETRIES)(convert_part)
        for part in parts:
            running[task.remote(place, part, workers=workers)] = part
        while running:
            done, _ = ray.wait([*running], timeout=patience)
            if not done:
                _check_cpus(ray, workers)
            for finished in done:
                yield running.pop(finished), partial(_receipt, ray, finished)
    finally:
        for unfinished in running:  # after an error
            ray.cancel(unfinished)
        if connected:
            ray.shutdown()


def _connect(ray: Any, workers: int) -> bool:
    """Connect to Ray unless the program has, and return whether it had not."""
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


def _receipt(ray: Any, finished: Any) -> Receipt:
    """Return what a task has returned, or raise its error as it was raised there."""
    try:
        receipt: Receipt = ray.get(finished)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause or error) from error
    return receipt
