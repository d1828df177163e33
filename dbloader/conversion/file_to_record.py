"""Make the record of one file: check, repair, transcode and encode the file, or reject it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dbloader._extensions import extension
from dbloader._parallel import reserved
from dbloader.conversion.transcode import Stored, transcode, transcoding_bytes
from dbloader.errors import DamagedImageError, FieldError, ImageError, RecordError
from dbloader.images.check import check_file_fields, check_image, intact_facts
from dbloader.images.info import find_facts
from dbloader.images.pillow import EIGHT_BITS, KNOWN_RANGE
from dbloader.records.record import TILES, Record, encode
from dbloader.records.values import unpack
from dbloader.sources.base import KEPT_FIELDS, Unreadable, count_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader._parallel import Hold
    from dbloader.conversion.settings import Settings
    from dbloader.images.info import Facts
    from dbloader.records.record import EncodedRecord
    from dbloader.sources.base import Entry, Problem

_TRANSPARENT = "has transparent pixels: training sees their hidden color, unless your own decode= draws a background"


@dataclass(slots=True)
class FileResult:
    """The result of converting one file: its record, or the reason why the file is rejected."""

    item: Entry | Problem
    record: EncodedRecord | None = None  # None if the file is rejected
    # Maps events of the report to their reasons. Events are "rejected", "damaged" (but stored), "repaired" and those in
    # REMARKS. Error messages consist of the file's name, a colon and the reason.
    events: dict[str, str] = field(default_factory=dict)
    bad: bool = False  # for a rejected file: True means unreadable or not an image, False means damaged
    unreadable: bool = False  # whether the file system raised an error, which may affect all files
    changes: tuple[str, ...] = ()  # "resized" (made smaller), "reencoded" (encoded again in its own size)
    depth: str = ""  # bits and type of the stored image's values, such as "8-bit"; "" if unknown
    nbytes: int = 0  # bytes read

    @property
    def rejected(self) -> bool:
        """Whether the file is not stored."""
        return "rejected" in self.events

    @classmethod
    def problem(cls, item: Entry | Problem, problem: Problem) -> FileResult:
        """Return the result of a file that cannot be read."""
        unreadable = isinstance(problem, Unreadable)
        return cls(item, events={"rejected": problem.reason}, bad=True, unreadable=unreadable)


def convert_file(
    settings: Settings, entry: Entry, data: bytes, hold: Hold, file_fields: Sequence[str] = (), target: str = ""
) -> FileResult:
    """Return the result of a file: its record, or the reason why the file is rejected.

    ``hold`` is called with a number of bytes before they are allocated, and with the negative number after they are
    freed. The bytes of stored pixels stay counted, because the record still needs them. Failures of the machine do not
    reject the file, but raise OSError (no memory, ``jpegtran`` killed) or OptionError (``jpegtran`` removed).
    """
    files = [name for name in file_fields if name in entry.fields]
    result = FileResult(entry, nbytes=len(data) + count_bytes(entry.fields, files))
    try:
        if settings.labels is not None:
            entry = extension("relabeled")(entry, settings.labels, target)
        if settings.images.tile and TILES in entry.fields:
            raise FieldError(f"tile stores the lengths of tiles in field {TILES!r}: give your field another name")
        _fill(result, settings, entry, data, files, hold)
    except (ImageError, RecordError) as error:
        result.events, result.changes = {"rejected": str(error)}, ()
        result.bad = not isinstance(error, DamagedImageError)
    return result


def _fill(result: FileResult, settings: Settings, entry: Entry, data: bytes, files: Sequence[str], hold: Hold) -> None:
    images = settings.images
    damage = entry.fields.get("damaged")  # the known damage, if the source is a store with damaged images
    try:
        if damage:
            raise DamagedImageError(damage)  # noqa: TRY301
        data, image, repaired, transparent = check_image(data, hold, settings.check)
        if images.raw and image is None:
            intact_facts(data)  # raises an error, because pixels of an unknown format cannot be stored
        if files:
            named = {name: file[0] for name, file in entry.files.items()}
            fields, more = check_file_fields(entry.fields, files, hold, named, settings.check)
            entry, repaired = entry._replace(fields=fields), "; ".join(filter(None, (repaired, more)))
        temporary, kept = transcoding_bytes(image, images) if image else (0, 0)
        if kept:
            hold(kept)
        with reserved(hold, temporary):
            if image:
                stored = transcode(data, image, images)
            else:
                stored = Stored(data, None, untiled="is in no known image format" if images.tile else "")
            record, remarks = _record(settings, entry, data, stored, image)
            if image and stored.reencoded:
                record.resized_from = record.resized_from or (image.width, image.height)
                resized = (image.width, image.height) != (record.width, record.height)
                result.changes = ("resized",) if resized else ("reencoded",)
            result.record = encode(record)
        reasons = {
            "repaired": repaired,
            "untiled": stored.untiled,
            "deep": _describe_depth(image, stored.facts),
            "frames": _describe_frames(image, stored),
            "transparent": _TRANSPARENT * transparent,
            **remarks,
        }
        result.events = {event: reason for event, reason in reasons.items() if reason}
        result.depth = stored.facts.depth if stored.facts else ""
    except DamagedImageError as error:
        if images.raw or not (damage or settings.on_damaged == "keep"):
            raise
        result.events = {"damaged": f"{error} (stored nevertheless)"}
        facts = find_facts(data)
        result.depth = facts.depth if facts else ""
        record, remarks = _record(settings, entry, data, Stored(data, facts), facts)
        result.events |= remarks
        record.damaged = str(error)
        result.record = encode(record)


def _record(
    settings: Settings, entry: Entry, data: bytes, stored: Stored, image: Facts | None
) -> tuple[Record, dict[str, str]]:
    """Return the record of a file, and a dict from events to remarks about the file's boxes."""
    tiles = {} if stored.lengths is None else {TILES: stored.lengths}
    image_format, width, height = stored.facts[:3] if stored.facts else ("", None, None)
    fields = {**unpack(entry.fields), **tiles}  # FileList has packed the arrays
    kept = {name: fields.pop(name) for name in KEPT_FIELDS if name in fields}
    if kept.get("name", "") == "":  # an empty cell of a CSV file counts as no name
        kept["name"] = entry.name
    remarks: dict[str, str] = {}
    if entry.boxes_in is not None or "boxes" in fields or bytes in map(type, entry.fields.values()):
        fields, remarks = extension("place_boxes")(fields, entry.boxes_in, settings.boxes, data, image, stored)
    record = Record(
        label=entry.label, image=stored.image, width=width, height=height, format=image_format or None,
        fields=fields, **kept,
    )  # fmt: skip
    return record, remarks


def _describe_depth(image: Facts | None, stored: Facts | None) -> str:
    """Return a remark about values of more than 8 bits or of unknown range; "" if the image has no such values."""
    if image is None or stored is None or image.depth == EIGHT_BITS:
        return ""
    if stored.depth != image.depth:
        return f"has {image.depth} values, and is stored with {stored.depth} values"
    if image.depth not in KNOWN_RANGE:
        return f"has {image.depth} values of unknown range: they are stored, but only your own decode= can decode them"
    return f"has {image.depth} values: all bits are stored, but decoded images have 8 bits per value"


def _describe_frames(image: Facts | None, stored: Stored) -> str:
    """Return a remark about a file with several frames; "" if the file has a single frame."""
    if image is None or not image.frames:
        return ""
    lost = stored.reencoded or not isinstance(stored.image, bytes)
    return f"has several frames or pages: only the first is {'stored' if lost else 'decoded'}"
