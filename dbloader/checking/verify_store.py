"""Verify a store: find all damage, decode its images, and compare it with its source."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader.checking.compare_files import compare_files
from dbloader.checking.compare_stores import compare_stores
from dbloader.checking.findings import Findings
from dbloader.checking.stored_images import examine_images
from dbloader.conversion.parallel import return_large_blocks
from dbloader.errors import DamagedRecordError, DamagedStoreError, OptionError
from dbloader.sources.open import find_lmdb, open_source
from dbloader.sources.other_lmdb import is_store
from dbloader.stores.damage import find_damage
from dbloader.stores.lmdb.publish_shards import unnamed_warning
from dbloader.stores.lmdb.shard_table import is_sharded
from dbloader.stores.mongo.uri import is_mongo
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of verifying a store.

    Attributes:
        place: The store.
        digest: Its content digest.
        records: Its records.
        problems: Problems by kind: ``damaged`` (a record, a column, the report or the manifest), ``undecodable``, and
            of a comparison ``missing``, ``extra``, ``bytes``, ``label``, and with a store ``fields`` and ``classes``.
        first: The first thousand: ``index``, ``name``, ``difference`` (the kind), ``reason``.
        compared: Files of a comparison: ``same``, ``repaired`` (the same but for the end marker), ``rejected`` (not
            stored, as the store's report says), ``damaged`` (the record), ``changed`` (resized, tiled or raw: only
            names and labels are compared) and ``moved`` (the same record at another index of the other store).
        notes: Sentences about a folder of shards, for people: files that its manifest does not name.
    """

    place: str
    digest: str
    records: int
    problems: dict[str, int]
    first: list[dict[str, Any]] = field(default_factory=list)
    compared: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


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
    """Read a whole store, and report all that is wrong with it.

    A damaged LMDB file can make LMDB end the process. ``dbloader verify`` reads it in a process of its own.

    Args:
        place: Place of the store.
        decode: Decode every image too, and the images in file fields, such as masks.
        against: The source that the store was converted from, of any kind that ``convert`` takes, whose files are
            compared with the records of the same names. Or another store: only records whose checksums differ are
            read there.
        listing: Listing of that source, if it needs one.
        output: New file of JSON lines, one for each problem.
        found: Called with each of the first thousand problems, when it is found.
        progress: Called with what is done, the number of records or files, and of all of them.

    Raises:
        OptionError: ``output`` exists, or ``listing`` is given without ``against``.
        StoreError: The store cannot be opened.
        SourceError: The source cannot be read.
    """
    if listing is not None and against is None:
        raise OptionError("listing (--listing) belongs to a source to compare with: give that too (--against)")
    return_large_blocks()
    with ExitStack() as opened:
        store = opened.enter_context(open_store(place))
        compare, source_place = None, ""
        # The source is opened first: a misspelled place should be an error at once.
        if against is not None and listing is None and _is_store(against):
            other = opened.enter_context(open_store(against))
            len(other)
            compare, source_place = partial(compare_stores, store, other), other.place
        elif against is not None:
            files = store.manifest.file_fields if listing is not None else ()
            source = opened.enter_context(
                closing(open_source(against, listing, name_field=None, image_field=None, file_fields=files))
            )
            compare, source_place = partial(compare_files, store, source), source.place
        findings = opened.enter_context(Findings(output, found))
        total, done = len(store), 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            progress("Verifying", done, total)

        for damage in find_damage(store, count):
            findings.add("damaged", index=damage.index, name=damage.name, reason=str(damage.error))
        readable = done == total  # or its length is not to be believed
        for batch in examine_images(store) if decode and readable else ():
            for image in batch:
                if image.reason:
                    reason = f"record {image.index} ({image.name or 'without a name'}) of {store.place} {image.reason}"
                    findings.add("undecodable", index=image.index, name=image.name, reason=reason)
            progress("Decoding", batch[-1].index + 1, total)
        compared = {}
        if readable and compare is not None:
            try:
                compared = compare(findings, partial(progress, "Comparing"))
            except (DamagedRecordError, DamagedStoreError) as error:  # the problems so far must not be lost
                what = f"{store.place} could not be compared with {source_place}"
                findings.add("damaged", index=None, name=None, reason=f"{what}: {error}")
    return VerifyReport(
        place=store.place,
        digest=store.manifest.digest,
        records=total,
        problems=dict(findings.counts),
        first=findings.first,
        compared=compared,
        notes=unnamed_warning(Path(place)) if is_sharded(place) else [],
    )


def _is_store(place: str | os.PathLike[str]) -> bool:
    if is_mongo(place) or is_sharded(place):
        return True
    file = find_lmdb(Path(place))
    return file is not None and is_store(file)
