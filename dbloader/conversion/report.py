"""What a conversion says: while it runs, and when it is done."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from dbloader.sources.base import readable
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from dbloader.records.manifest import Manifest

REMARKS = ("untiled", "deep", "frames")
"""Events of files that are stored whole."""


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
        deep: Images with values of more than 8 bits, or of no known range: gray of 16 bits, floats, signed values.
        frames: Files of several frames or pages, of which the first is decoded.
        resumed_at: Files that an earlier, interrupted run had done.
        bytes_read: Bytes of the files read in this run.
        image_bytes: Bytes of all images in the store.
        seconds: Duration of this run.
        warnings: What a person should know of the source as a whole.
        skipped: Files left out because they are no images, by extension, the most frequent first.
        hidden: Files and folders left out because their name begins with a dot.
        report_file: JSON lines, one for each event of a file that was repaired, rejected, damaged, untiled, deep or of
            several frames: ``name``, ``event``, ``reason``. Beside an LMDB store, in the working directory for one in
            MongoDB; "" if there is nothing to report, or the file could not be written, of which ``warnings`` tells.
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
    deep: int = 0
    frames: int = 0
    resumed_at: int = 0
    bytes_read: int = 0
    image_bytes: int = 0
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    skipped: dict[str, int] = field(default_factory=dict)
    hidden: int = 0
    report_file: str = ""


def write_report(place: str | os.PathLike[str], path: Path) -> tuple[str, list[str]]:
    """Write the report's events to a file, whole or not at all; return the file's path, and a warning if that failed.

    Without events there is no file, and one that an earlier conversion left is removed. The store is made by now and
    has the events too, so that nothing fails with the file.
    """
    aside = path.with_name(path.name + ".partial")
    try:
        with open_store(place) as store:
            events = store.events()
            first = next(events, None)
            if first is None:
                path.unlink(missing_ok=True)
                return "", []
            with aside.open("w", encoding="utf-8") as file:
                for event in chain([first], events):
                    file.write(json.dumps(event) + "\n")
        aside.replace(path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        return "", [
            f"{readable(path)} cannot be written: {error.strerror}; the report is in the store too "
            "(dbloader info with --report)"
        ]
    return str(path), []


def image_warnings(manifest: Manifest, *, raw: bool) -> list[str]:
    """Return the warnings about images that samples show only in part: deep values, several frames.

    Args:
        manifest: That of the store.
        raw: Whether pixels are stored.
    """
    warnings = []
    if deep := manifest.outcome.get("deep", 0):
        images = f"{deep:,} image{' has' if deep == 1 else 's have'}"
        if raw:
            warnings.append(
                f"{images} more than 8 bits a value, of which the stored pixels are the upper 8: "
                "leave raw out to keep all of them"
            )
        else:
            depths = ", ".join(f"{count:,} of {name}" for name, count in manifest.depths.items())
            warnings.append(
                f"{images} values of more than 8 bits, or of no known range (the store has {depths}): of 16 bits the "
                "upper 8 are decoded; floats, signed values and 32 bits are not decoded at all; give the dataset a "
                "decode= of your own to get all of them"
            )
    if frames := manifest.outcome.get("frames", 0):
        what = f"{frames:,} file{' has' if frames == 1 else 's have'} several frames or pages"
        warnings.append(f"{what}, of which the first is decoded; pixels, and images made smaller, are the first alone")
    return warnings
