"""Plan, make and publish the parts of a store on a disk that all machines see, or in object storage."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from dbloader.conversion.parts import in_bucket, make_plan, part, publish
from dbloader.conversion.parts.plan import target_of
from dbloader.errors import OptionError
from dbloader.remote.places import is_remote
from dbloader.stores.lmdb import objects
from dbloader.stores.lmdb.publish_shards import check_target

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from dbloader.conversion.parts.part import PartReceipt, Parts
    from dbloader.conversion.parts.plan import Plan
    from dbloader.conversion.report import Report
    from dbloader.conversion.settings import Settings

Place = str | os.PathLike[str]


def plan_parts(
    settings: Settings,
    destination: Place,
    shards: int,
    *,
    append: bool = False,
    overwrite: bool = False,
    progress: Callable[[int], object] = lambda _: None,
) -> Plan:
    """Plan a conversion; see `make_plan.make_plan`."""
    make = in_bucket.plan_in_bucket if is_remote(destination) else make_plan.make_plan
    return make(settings, os.fspath(destination), shards, append=append, overwrite=overwrite, progress=progress)


def make_part(destination: Place, number: int, *, workers: int = 1, scratch: str | None = None) -> PartReceipt:
    """Make a part of a planned conversion; see `part.convert_part`."""
    make = in_bucket.convert_part_in_bucket if is_remote(destination) else part.convert_part
    return make(os.fspath(destination), number, workers=workers, scratch=scratch)


def list_parts(destination: Place) -> Parts:
    """Return which parts of a planned conversion are made; see `part.list_parts`."""
    find = in_bucket.list_parts_in_bucket if is_remote(destination) else part.list_parts
    return find(os.fspath(destination))


def publish_parts(destination: Place, *, overwrite: bool = False, keep_hours: float | None = None) -> Report:
    """Make one store of the parts of a conversion; see `publish.publish` and `in_bucket.publish_in_bucket`."""
    if is_remote(destination):
        hours = in_bucket.KEEP_HOURS if keep_hours is None else keep_hours
        return in_bucket.publish_in_bucket(os.fspath(destination), overwrite=overwrite, keep_hours=hours)
    if keep_hours is not None:
        raise OptionError("keep_hours (--keep-hours) is for stores in object storage: leave it out")
    return publish.publish(destination, overwrite=overwrite)


def check_free(destination: Place, *, overwrite: bool) -> None:
    """Raise StoreExistsError if a store is at the destination, unless it may be replaced."""
    if is_remote(destination):
        objects.check_target(objects.open_target(os.fspath(destination)), overwrite=overwrite)
    else:
        check_target(target_of(destination), overwrite=overwrite)


def adding_to(destination: Place) -> AbstractContextManager[Any]:
    """Keep other processes from adding to a store on a disk; object storage has no locks."""
    return nullcontext() if is_remote(destination) else make_plan.adding_to(destination)
