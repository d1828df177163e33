"""What a conversion says: while it runs, and when it is done."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dbloader.sources.base import readable
from dbloader.stores import open_store

if TYPE_CHECKING:
    import os
    from pathlib import Path
from typing import NamedTuple


class Progress(NamedTuple):
    """How far a conversion has come.

    Attributes:
        found: Files found so far; all of them once ``done`` is not None.
        done: Files converted or rejected, those of an earlier run included; None while the source is scanned.
        nbytes: Bytes read in this run.
    """

    found: int
    done: int | None
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a conversion did.

    Attributes:
        place: The store.
        digest: Content digest of the store, as in its manifest.
        records: Records in the store.
        files: Files found.
        repaired: JPEG files that lacked only their end marker, which they have in the store.
        rejected: Files that are not in the store.
        damaged: Files in the store of which data is missing (``on_damaged="keep"``).
        resized: Images that were made smaller.
        reencoded: JPEGs that were encoded anew in their own size (``tile`` with a ``quality``).
        untiled: Images that could not be tiled (``tile``).
        resumed_at: Files that an earlier, interrupted run had done.
        bytes_read: Bytes of the files read in this run.
        image_bytes: Bytes of all images in the store.
        seconds: Duration of this run.
        warnings: What a person should know of the source as a whole.
        skipped: Files left out because they are no images, by extension, the most frequent first.
        hidden: Files and folders left out because their name begins with a dot.
        report_file: JSON lines, one for each repaired, rejected, damaged or untiled file, two for one that is repaired
            and untiled: ``name``, ``event``, ``reason``. Beside an LMDB store, in the working directory for one in
            MongoDB; "" if the file could not be written, of which ``warnings`` tells.
    """

    place: str
    digest: str
    records: int
    files: int
    repaired: int = 0
    rejected: int = 0
    damaged: int = 0
    resized: int = 0
    reencoded: int = 0
    untiled: int = 0
    resumed_at: int = 0
    bytes_read: int = 0
    image_bytes: int = 0
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    skipped: dict[str, int] = field(default_factory=dict)
    hidden: int = 0
    report_file: str = ""


def write_report(place: str | os.PathLike[str], path: Path) -> tuple[str, list[str]]:
    """Writes the report's events to a file, whole or not at all; gives the file's path, and a warning if not.

    The store is made by now and has the events too, so that nothing fails with the file.
    """
    aside = path.with_name(path.name + ".partial")
    try:
        with open_store(place) as store, aside.open("w", encoding="utf-8") as file:
            for event in store.events():
                file.write(json.dumps(event, ensure_ascii=False) + "\n")
        aside.replace(path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        return "", [
            f"{readable(path)} cannot be written: {error.strerror}; the report is in the store too "
            "(dbloader info with --report)"
        ]
    return str(path), []
