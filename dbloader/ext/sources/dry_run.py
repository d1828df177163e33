"""List the files of a conversion without reading images or writing anything."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader.conversion.report import left_out
from dbloader.conversion.settings import Settings
from dbloader.ext.sources.boxes import LABELS
from dbloader.ext.sources.classes import numbered
from dbloader.records.manifest import CLASS_LISTS, MAX_COUNTED_LABELS
from dbloader.sources.base import Entries, Problem

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

_MAX_NAMED = 1000  # problems that are listed; further problems are only counted


class DryRun(NamedTuple):
    """The result of a dry run. The class Report describes the attributes that are not listed here.

    Attributes:
        source: Place of the source.
        files: Number of files that would be read.
        boxes: Number of boxes of objects in these files.
        labels: {class name: number of its files, or of its boxes}. If the labels have no names, the keys are the
            labels. None for over 65,536 different labels.
        rejected: Number of files, and of rows in a listing, that ``convert`` would reject before it reads an image.
        problems: Names of the first 1,000 of these files and rows, with the reasons.
    """

    source: str
    files: int
    boxes: int
    labels: dict[str, int] | None
    rejected: int
    problems: list[dict[str, str]]
    understood: list[str]
    warnings: tuple[str, ...]
    skipped: dict[str, int]
    hidden: int


def dry_run(
    source: str | os.PathLike[str], *, progress: Callable[[int], object] = lambda _: None, **options: Any
) -> DryRun:
    """Return what ``convert`` would find in a source.

    ``options`` are the arguments of ``convert`` that affect records. ``progress`` is called with the number of
    files found so far.
    """
    files = boxes = rejected = 0
    labels: Counter[Any] = Counter()
    problems = []
    with closing(Settings(source=source, **options).open()) as found:
        entries = Entries(found.entries())
        for item in entries:
            if isinstance(item, Problem):
                rejected += 1
                if rejected <= _MAX_NAMED:
                    problems.append(item._asdict())
                continue
            files += 1
            if found.target == CLASS_LISTS:
                labels_here = [numbered(found, label) for label in item.fields.get(CLASS_LISTS) or []]
            elif item.boxes_in is None:
                labels_here = [numbered(found, item.label)]
            else:
                labels_here = [numbered(found, label) for label in item.fields[LABELS].tolist()]
                boxes += len(labels_here)
            if len(labels) <= MAX_COUNTED_LABELS:
                labels.update(labels_here)
            progress(files)
        named = [*enumerate(found.stored_classes)] or [(label, str(label)) for label in sorted(labels.keys() - {None})]
        counts = {name: labels[label] for label, name in named} if len(labels) <= MAX_COUNTED_LABELS else None
        return DryRun(found.place, files, boxes, counts, rejected, problems, **left_out(found, entries.tally))
