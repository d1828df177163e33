"""Define the progress and the report of a conversion."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader._describe import counted, print_pretty, report_in_lines
from dbloader.sources.base import readable
from dbloader.stores.lmdb.growing_file import sync_folder
from dbloader.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from dbloader.conversion.meter import Meter
    from dbloader.records.manifest import Manifest
    from dbloader.sources.base import Source, Tally

REMARKS = ("untiled", "deep", "frames", "transparent", "turned", "flat", "mismatched")
"""Events of undamaged files whose stored or decoded form may surprise a user."""

_FILE_COUNTS = ("repaired", "rejected", "damaged", "resized", "reencoded", "unchanged", *REMARKS)


class Progress(NamedTuple):
    """The progress of a conversion.

    Attributes:
        found: Number of files found so far; the final number, if ``done`` is not None.
        done: Number of files converted or rejected, in this or an earlier run; None while the source is scanned.
        nbytes: Bytes read in this run.
        understood: How the files are read (see `Report`). Only the first Progress after the scan has these lines.
    """

    found: int
    done: int | None
    nbytes: int
    understood: Sequence[str] = ()

    def show(self, meter: Meter) -> None:
        """Show the progress."""
        if self.done is None:
            meter.update(self.found, None)
        else:
            meter.update(self.done, self.found, title="Converting", nbytes=self.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a conversion.

    Attributes:
        place: Place of the store.
        digest: Content digest of the store.
        records: Number of records in the store.
        files: Number of files found.
        repaired: Number of JPEG files that lacked only their end marker, which was appended.
        rejected: Number of files that are not in the store.
        damaged: Number of truncated images in the store (``on_damaged="keep"``).
        resized: Number of images that were made smaller.
        reencoded: Number of JPEGs that were encoded again in their own size (``tile`` with a ``quality``).
        untiled: Number of images that could not be tiled (``tile``).
        deep: Number of images with values of more than 8 bits or of unknown range, such as 16-bit gray or floats.
        frames: Number of files with several frames or pages. Only the first is decoded.
        transparent: Number of images with pixels that are not opaque. Decoding drops the opacity.
        turned: Number of images that EXIF turns, and whose boxes or masks fit both before and after turning. dbloader
            assumes that the boxes were drawn on the image before turning (see ``boxes`` of `convert`).
        flat: Number of images that had boxes without an area. The images are stored without these boxes.
        unchanged: Number of files left out because the store has an equal record (``new_only``).
        mismatched: Number of files in object storage whose bytes do not match the MD5 that the server states.
        resumed_at: Number of files that an earlier, interrupted run has converted.
        bytes_read: Bytes of the files that this run has read.
        image_bytes: Bytes of all images in the store.
        seconds: Duration of this run in seconds.
        understood: How the files were read, in at most six lines: where images, labels and extra fields are from.
        warnings: Warnings about the conversion as a whole.
        skipped: Number of files that were left out because they are not images, by extension, most frequent first.
        hidden: Number of files and folders left out because their names begin with a dot.
        report_file: Path of a JSON lines file. Each line is an event of a file, with ``name``, ``event`` (rejected,
            damaged, repaired, untiled, deep, frames, transparent, turned, flat or mismatched) and ``reason``. The file
            is next to an LMDB store; for MongoDB and object storage, it is in the working directory. "" if there are no
            events, or the file could not be written (see ``warnings``).
        earlier_events: With ``append``, the report file begins with this number of lines about earlier images of the
            store.
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
    transparent: int = 0
    turned: int = 0
    flat: int = 0
    unchanged: int = 0
    mismatched: int = 0
    resumed_at: int = 0
    bytes_read: int = 0
    image_bytes: int = 0
    seconds: float = 0.0
    understood: Sequence[str] = ()
    warnings: tuple[str, ...] = ()
    skipped: dict[str, int] = field(default_factory=dict)
    hidden: int = 0
    report_file: str = ""
    earlier_events: int = 0

    __str__, _repr_pretty_ = report_in_lines, print_pretty


def finish_report(
    manifest: Manifest,
    destination: str | os.PathLike[str],
    path: Path,
    *,
    place: str,
    started: float,
    raw: bool = False,
    warnings: Iterable[str] = (),
    outcome: Mapping[str, int] | None = None,
    **facts: Any,
) -> Report:
    """Write the report lines (events) of a finished store to a file, and return the report.

    Args:
        manifest: The manifest of the store.
        destination: Place of the store, from which the events are read.
        path: Path of the report file.
        place: Place of the store without a password, for the report.
        started: ``time.monotonic()`` when the conversion began.
        raw: Whether this conversion stored pixels. Older records of the store may be files.
        warnings: Warnings of the conversion.
        outcome: Number of this conversion's files with each event; None means ``manifest.outcome``.
        **facts: Further attributes of the report.
    """
    counts = manifest.outcome if outcome is None else outcome
    problem = write_events(destination, path) if manifest.events else []
    return Report(
        place=place,
        digest=manifest.digest,
        records=manifest.length,
        image_bytes=manifest.image_bytes,
        seconds=time.monotonic() - started,
        warnings=(*warnings, *_image_warnings(counts, manifest, raw=raw), *problem),
        report_file=str(path) if manifest.events and not problem else "",
        **{**{name: counts.get(name, 0) for name in _FILE_COUNTS}, **facts},
    )


def left_out(found: Source, tally: Tally) -> dict[str, Any]:
    """Return ``understood``, ``warnings``, ``skipped`` and ``hidden`` for the Report of a conversion from a source."""
    counts = tally.skipped + found.beside.skipped
    skipped = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    hidden = tally.hidden + found.beside.hidden
    warnings = (*found.warnings, *tally.warnings)
    return {"understood": found.in_words(tally), "warnings": warnings, "skipped": skipped, "hidden": hidden}


def write_events(place: str | os.PathLike[str], path: Path, late: Sequence[Mapping[str, str]] = ()) -> list[str]:
    """Write a store's report lines (events), and lines about files added too late. On failure, return a warning."""
    aside = path.with_name(path.name + ".partial")
    try:
        aside.unlink(missing_ok=True)  # do not write to the file of a symbolic link
        with open_store(place) as store, aside.open("x", encoding="utf-8") as file:
            file.writelines(json.dumps(event) + "\n" for event in chain(store.events(), late))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        with suppress(OSError):  # some folders cannot be synced
            sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        lacking = f", without {', '.join(event['name'] for event in late)}, added too late" if late else ""
        return [
            f"{readable(path)} cannot be written: {error.strerror or error}; the store contains the same report"
            f"{lacking}: read it with dbloader info --report"
        ]
    return []


def nothing_stored(files: int, first_rejected: str) -> str:
    """Return the error message of a conversion in which no file could be stored."""
    first = f"; the first is {first_rejected}" if first_rejected else ""
    return f"no file of {files:,} could be stored{first}"


def _image_warnings(outcome: Mapping[str, int], manifest: Manifest, *, raw: bool) -> list[str]:
    warnings = []
    if deep := outcome.get("deep", 0):
        images = f"{deep:,} image{' has' if deep == 1 else 's have'}"
        if raw:
            warnings.append(
                f"{images} more than 8 bits per value, and only the upper 8 bits are stored: leave out raw to keep all "
                "bits"
            )
        else:
            kinds = ", ".join(f"{count:,} of {name}" for name, count in manifest.depths.items())
            warnings.append(
                f"{images} values of more than 8 bits, or of unknown range (the store has {kinds}): datasets decode "
                "only the upper 8 of 16 bits, and cannot decode floats, signed values and 32 bits; write your own "
                "decode= to get all values"
            )
    if frames := outcome.get("frames", 0):
        what = f"{frames:,} file{' has' if frames == 1 else 's have'} several frames or pages"
        warnings.append(f"{what}: only the first is decoded; images stored smaller or as pixels keep only the first")
    if turned := outcome.get("turned"):
        warnings.append(
            f"{counted(turned, 'image')} turned by EXIF, with boxes or masks that fit before and after turning: boxes "
            "are read as before turning, as in pycocotools and torchvision: confirm this by boxes='stored' (--boxes "
            "stored), or give boxes='upright' (--boxes upright); for upright masks, train with exif_transpose=True"
        )
    if found := outcome.get("mismatched"):
        warnings.append(f"{counted(found, 'object')} did not match the server's MD5: compare with the originals")
    if found := outcome.get("unchecked"):
        warnings.append(f"{counted(found, 'object')} had ETags that are no MD5s, as with KMS keys: no MD5 was compared")
    return warnings
