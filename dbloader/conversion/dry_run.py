"""Say what a conversion would convert, without reading an image or writing anything."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader.records.manifest import MAX_COUNTED_LABELS
from dbloader.sources.base import Problem
from dbloader.sources.boxes import LABELS
from dbloader.sources.open import open_source

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

_MAX_NAMED = 1000  # problems, of which all are counted


class DryRun(NamedTuple):
    """What a conversion would find.

    Attributes:
        source: Where the files are.
        files: Files that would be read.
        boxes: Boxes of objects in them.
        labels: Files by class, or by label if labels have no names; or boxes by class. None if there are too many.
        rejected: Problems that are known before a file is read.
        problems: Name and reason of the first 1,000 of them.
        warnings: Sentences about the source as a whole, for people.
        skipped: Files left out because they are no images, by extension, the most frequent first.
        hidden: Files and folders left out because their name begins with a dot.
    """

    source: str
    files: int
    boxes: int
    labels: dict[str, int] | None
    rejected: int
    problems: list[dict[str, str]]
    warnings: tuple[str, ...]
    skipped: dict[str, int]
    hidden: int


def dry_run(
    source: str | os.PathLike[str],
    *,
    listing: str | os.PathLike[str] | None = None,
    name_field: str | None = None,
    image_field: str | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> DryRun:
    """Return what ``convert`` with the same arguments would find; SourceError or OptionError like it.

    ``progress`` is called with the number of files found so far, every thousand files.
    """
    files = boxes = rejected = 0
    labels: Counter[Any] = Counter()
    problems = []
    with closing(open_source(source, listing, name_field=name_field, image_field=image_field)) as found:
        for item in found.entries():
            if isinstance(item, Problem):
                rejected += 1
                if rejected <= _MAX_NAMED:
                    problems.append(item._asdict())
                continue
            files += 1
            some = [item.label] if item.boxes_in is None else item.fields[LABELS].tolist()
            boxes += 0 if item.boxes_in is None else len(some)
            if len(labels) <= MAX_COUNTED_LABELS:
                labels.update(some)
            if files % 1000 == 0:
                progress(files)
        named = [*enumerate(found.classes)] or [(label, str(label)) for label in sorted(labels.keys() - {None})]
        counts = {name: labels[label] for label, name in named}
        skipped = dict(sorted(found.skipped.items(), key=lambda item: (-item[1], item[0])))
        few = counts if len(labels) <= MAX_COUNTED_LABELS else None
        return DryRun(found.place, files, boxes, few, rejected, problems, tuple(found.warnings), skipped, found.hidden)
