"""Verify a store: find all damage, decode the images, and compare the store with its source."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader._describe import print_pretty, report_in_lines
from dbloader._extensions import extension
from dbloader._machine import cpu_count
from dbloader._parallel import return_large_blocks, work_in_order
from dbloader.checking.findings import collect_findings
from dbloader.errors import DamagedRecordError, DamagedStoreError, ImageError, OptionError
from dbloader.images.check import check_file_fields, check_image
from dbloader.stores.base import find_damage
from dbloader.stores.lmdb.files import unnamed_warning
from dbloader.stores.lmdb.shard_table import is_sharded
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from dbloader._parallel import Hold
    from dbloader.stores.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of verifying a store.

    Attributes:
        place: Place of the store.
        digest: Content digest of the store.
        records: Number of records in the store.
        problems: Number of problems of each kind: ``damaged`` (a record or another part of the store) and
            ``undecodable`` (an image). A comparison adds ``missing`` (not in the store, or unreadable in the source),
            ``extra`` (not in the source), ``bytes`` (different bytes) and ``label`` (a different label). A comparison
            with a store also adds ``fields`` and ``classes``.
        first: The first thousand problems, each with ``index``, ``name``, ``difference`` (its kind) and ``reason``.
        compared: Number of records and files for which a comparison adds no problem, by kind. ``same``: equal.
            ``moved``: equal, but with another index in the other store. ``repaired``: the conversion appended an end
            marker to the JPEG. ``rejected``: the conversion rejected the file. ``damaged``: the damaged record was not
            compared. ``changed``: the image was not compared, because it was resized, tiled or stored as pixels.
        notes: Remarks that are not problems: files of a source that a comparison ignores, and files in a folder of
            shards that do not belong to the store.
    """

    place: str
    digest: str
    records: int
    problems: dict[str, int]
    first: list[dict[str, Any]] = field(default_factory=list)
    compared: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    __str__, _repr_pretty_ = report_in_lines, print_pretty


def verify_store(
    place: str | os.PathLike[str],
    *,
    decode: bool = False,
    against: str | os.PathLike[str] | None = None,
    listing: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    found: Callable[[dict[str, Any]], object] = lambda problem: None,
    progress: Callable[[str, int, int], object] = lambda title, done, total: None,
) -> VerifyReport:
    """Read a whole store, and report every problem.

    Reading a damaged LMDB file can crash this process. ``dbloader verify`` calls this function in another process.

    Args:
        place: Place of the store.
        decode: Also decode every image, and the images in file fields, such as masks.
        against: A source of any kind that ``convert`` accepts, or another store. Each record is compared with the file
            or record of the same name.
        listing: File that lists the files of the source, as for ``convert``.
        output: New file of JSON lines, one line for each problem.
        found: Called with each of the first thousand problems when it is found.
        progress: Called with the step, the number of finished records or files, and the total.

    Raises:
        OptionError: ``output`` exists, or ``listing`` is given without ``against``.
        StoreError: The store cannot be opened.
        SourceError: The source cannot be read.
    """
    if listing is not None and against is None:
        raise OptionError("listing (--listing) belongs to a source: give the source too (--against)")
    return_large_blocks()
    with ExitStack() as opened:
        store = opened.enter_context(open_store(place))
        compare: Any = None
        source_place = ""
        notes = unnamed_warning(Path(place)) if is_sharded(place) else []
        if against is not None:  # open the source first, so a misspelled place fails at once
            compare, source_place = extension("open_against")(store, against, listing, notes, opened)
        findings = opened.enter_context(collect_findings(output, found))
        total, done = len(store), 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            progress("Verifying", done, total)

        for damage in find_damage(store, count):
            findings.add("damaged", index=damage.index, name=damage.name, reason=str(damage.error))
        readable = done == total  # find_damage stops early if a shard or a chunk of a column is missing
        for batch in _decode_images(store) if decode and readable else ():
            for index, name, problem in batch:
                if problem:
                    reason = f"record {index} ({name or 'without a name'}) of {store.place} {problem}"
                    findings.add("undecodable", index=index, name=name, reason=reason)
            progress("Decoding", batch[-1][0] + 1, total)
        compared = {}
        if readable and compare is not None:
            try:
                compared = compare(findings, partial(progress, "Comparing"))
            # Do not raise the error, because the report should contain the earlier problems too.
            except (DamagedRecordError, DamagedStoreError) as error:
                what = f"{store.place} could not be compared with {source_place}"
                findings.add("damaged", index=None, name=None, reason=f"{what}: {error}")
    return VerifyReport(
        place=store.place,
        digest=store.manifest.digest,
        records=total,
        problems=dict(findings.counts),
        first=findings.first,
        compared=compared,
        notes=notes,
    )


def _decode_images(store: Store) -> Iterator[list[tuple[int, str | None, str]]]:
    """Yield (index, name, problem) of all records in order. The problem is "" if all images of the record decode."""

    def work(part: slice, hold: Hold) -> list[tuple[int, str | None, str]]:
        return [(index, *_decode_image(store, index, hold)) for index in range(part.start, part.stop)]

    return work_in_order(work, len(store), cpu_count())


def _decode_image(store: Store, index: int, hold: Hold) -> tuple[str | None, str]:
    try:
        (record,) = store.read([index])
    except (DamagedRecordError, DamagedStoreError):
        return None, ""  # find_damage has already reported that this record is damaged
    files = [name for name in store.manifest.file_fields if name in record.fields]
    images = (record.image, *(record.fields[name] for name in files))
    hold(2 * sum(len(image) for image in images if isinstance(image, bytes)))
    repaired = ""
    try:
        if isinstance(record.image, bytes):
            repaired = check_image(record.image, hold).repaired
        _, more = check_file_fields(record.fields, files, hold, {})
    except ImageError as error:
        return record.name, str(error)
    return record.name, "; ".join(filter(None, (repaired, more)))
