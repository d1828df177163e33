"""Make a record of one file: check it, repair it, transcode it and encode the record, or say why it is rejected."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dbloader._describe import short_repr
from dbloader._options import check_choice
from dbloader.conversion.parallel import reserved
from dbloader.conversion.report import describe_depth, describe_frames
from dbloader.conversion.transcode import TILES, ImageFormat, Stored
from dbloader.errors import DamagedImageError, FieldError, ImageError, NotAnImageError, OptionError, RecordError
from dbloader.images.info import UNREAD_TIFF, check_decodes, read_facts
from dbloader.images.jpeg import State, examine, repair
from dbloader.images.pillow import decoding_bytes
from dbloader.records.record import Record, encode
from dbloader.records.values import unpack
from dbloader.sources.base import KEPT_FIELDS, Unreadable, count_bytes
from dbloader.sources.boxes import BOXES, LABELS, OWN_SIZE, fit_boxes, relabel_boxes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dbloader.images.info import Facts
    from dbloader.records.record import EncodedRecord
    from dbloader.sources.base import Entry, Problem

# First bytes of formats that share four or more in all their files. (JPEGs are examined.)
_BEGINNINGS = (b"\x89PNG", b"GIF8", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


@dataclass(slots=True)
class FileResult:
    """What became of one file: a record, or why it was rejected."""

    item: Entry | Problem
    record: EncodedRecord | None = None  # None if the file is rejected
    # The lines of the report: a reason, in words that follow the file's name and a colon, by the kind of event:
    # "rejected", "damaged" (and stored nevertheless), "repaired", or a remark (`REMARKS`).
    events: dict[str, str] = field(default_factory=dict)
    bad: bool = False  # whether a rejected file is no image at all, or cannot be read
    unreadable: bool = False  # whether the file system may fail for all files
    changes: tuple[str, ...] = ()  # "resized" if the image was made smaller, "reencoded" if encoded again in its size
    depth: str = ""  # bits and type of the values of the stored image; "" if unknown
    nbytes: int = 0  # read

    @classmethod
    def rejected(cls, item: Entry | Problem, problem: Problem) -> FileResult:
        """Return the result of something that cannot be read."""
        unreadable = isinstance(problem, Unreadable)
        return cls(item, events={"rejected": problem.reason}, bad=True, unreadable=unreadable)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileConverter:
    """Makes records of files, by settings that ``dbloader.convert`` describes; checks itself."""

    check: str = "decode"
    keep_damaged: bool = False
    images: ImageFormat = field(default_factory=ImageFormat)
    labels: tuple[int, ...] | None = None  # by the label in the source, the label in the store; None for the same

    def __post_init__(self) -> None:
        check_choice("check", self.check, ("decode", "structure", "none"))
        if self.check == "none" and self.keep_damaged:
            raise OptionError(
                "check='none' finds no damage that could be kept: leave on_damaged='keep' (--on-damaged keep) out"
            )
        if self.images.raw and self.keep_damaged:
            raise OptionError(
                "raw stores pixels, which a damaged image lacks: leave on_damaged='keep' (--on-damaged keep) out"
            )

    def settings(self) -> dict[str, Any]:
        """Return all settings that the bytes of the records depend on."""
        return {"check": self.check, "keep_damaged": self.keep_damaged, **asdict(self.images)}

    def convert(
        self, entry: Entry, data: bytes, hold: Callable[[int], object], file_fields: Sequence[str] = ()
    ) -> FileResult:
        """Check the bytes of a file, and those in some fields of its entry, and return its record.

        ``hold`` is called with a number of bytes before they are allocated, and with a negative number after they are
        freed; pixels that are stored are not freed here. An OSError (memory, ``jpegtran`` killed) or OptionError
        (``jpegtran`` gone) is not the file's fault.
        """
        files = [name for name in file_fields if name in entry.fields]
        result = FileResult(entry, nbytes=len(data) + count_bytes(entry.fields, files))
        try:
            entry = self._relabeled(entry)
            if self.images.tile and TILES in entry.fields:
                raise FieldError(f"field {TILES!r} is where tile keeps the lengths of tiles: give yours another name")
            self._fill(result, entry, data, files, hold)
        except (ImageError, RecordError) as error:
            result.events = {"rejected": str(error)}
            result.bad = not isinstance(error, DamagedImageError)
        return result

    def _relabeled(self, entry: Entry) -> Entry:
        """Return an entry with the labels of the store, also those of its boxes."""
        if self.labels is None:
            return entry
        fields, known = entry.fields, dict(enumerate(self.labels))  # no list: -1 is no label
        try:
            if LABELS in fields:
                fields = {**fields, LABELS: relabel_boxes(unpack(fields[LABELS]), known)}
            label = None if entry.label is None else known[entry.label]
        except KeyError as error:
            raise FieldError(f"has the label {error}, which is not that of a class") from error
        return entry._replace(label=label, fields=fields)

    def _fill(
        self, result: FileResult, entry: Entry, data: bytes, files: Sequence[str], hold: Callable[[int], object]
    ) -> None:
        marked = entry.fields.get("damaged")  # when it was stored before
        try:
            if marked:
                raise DamagedImageError(marked)  # noqa: TRY301
            data, image = self._check(result, data, hold)
            if files:
                entry = entry._replace(fields=self._check_files(result, entry, files, hold))
            temporary, kept = self.images._memory(image) if image else (0, 0)
            if kept:
                hold(kept)
            with reserved(hold, temporary):
                if image:
                    stored = self.images._transcode(data, image)
                else:
                    stored = Stored(data, None, untiled="is in no known image format" if self.images.tile else "")
                record = _record(entry, stored, image)
                if image and stored.reencoded:
                    record.resized_from = record.resized_from or (image.width, image.height)
                result.record = encode(record)
            remarks = {
                "untiled": stored.untiled,
                "deep": describe_depth(image, stored.facts),
                "frames": describe_frames(image, stored),
            }
            result.events |= {event: reason for event, reason in remarks.items() if reason}
            result.depth = stored.facts.depth if stored.facts else ""
            if image and stored.reencoded:
                resized = (image.width, image.height) != (record.width, record.height)
                result.changes = ("resized",) if resized else ("reencoded",)
        except DamagedImageError as error:
            if self.images.raw or not (marked or self.keep_damaged):
                raise
            result.events = {"damaged": f"{error} (stored nevertheless)"}
            facts = _facts_or_none(data)
            result.depth = facts.depth if facts else ""
            record = _record(entry, Stored(data, facts), facts)
            record.damaged = str(error)
            result.record = encode(record)

    def _check_files(
        self, result: FileResult, entry: Entry, files: Sequence[str], hold: Callable[[int], object]
    ) -> dict[str, Any]:
        """Return the fields of an entry, with those that are files checked and repaired as the image is."""
        fields = dict(entry.fields)
        for name in files:
            if fields[name] is None:
                continue
            part = FileResult(entry)
            title = " ".join(("its", name, *entry.files.get(name, ())[:1]))
            try:
                if not isinstance(fields[name], bytes):
                    raise NotAnImageError(f"is no image file, but {short_repr(fields[name])}")
                fields[name], _ = self._check(part, fields[name], hold)
            except ImageError as error:
                raise type(error)(f"{title} {error}") from error
            for event, reason in part.events.items():
                result.events[event] = "; ".join(filter(None, (result.events.get(event), f"{title}: {reason}")))
        return fields

    def _check(self, result: FileResult, data: bytes, hold: Callable[[int], object]) -> tuple[bytes, Facts | None]:
        """Return the image file, with its end marker if only that was missing, and what its header says."""
        if self.check == "none":
            return data, _facts(data) if self.images.raw else _facts_or_none(data)  # raw: without an image no pixels
        structure = examine(data)
        if structure.state is State.DAMAGED:
            raise DamagedImageError(f"is damaged: {structure.reason}")
        if structure.state is State.NO_END:
            with reserved(hold, structure.coefficient_bytes):
                data = repair(data, structure)
            result.events["repaired"] = "its end marker was missing: appended FF D9"
        image = _facts(data)
        if self.check == "decode":
            pixels = decoding_bytes(image.format) * image.width * image.height
            with reserved(hold, pixels if structure.state is State.NOT_JPEG else structure.coefficient_bytes):
                check_decodes(data, image)
        return data, image


def _record(entry: Entry, stored: Stored, image: Facts | None) -> Record:
    tiles = {} if stored.lengths is None else {TILES: stored.lengths}
    image_format, width, height = stored.facts[:3] if stored.facts else ("", None, None)
    fields = {**unpack(entry.fields), **tiles}  # from a list of files arrays come as in BSON
    kept = {name: fields.pop(name) for name in KEPT_FIELDS if name in fields}
    if kept.get("name", "") == "":  # a CSV has no other way to leave it out
        kept["name"] = entry.name
    boxes_in = entry.boxes_in
    if boxes_in is None and stored.reencoded and {BOXES, LABELS} <= fields.keys():  # of a store that is made smaller
        boxes_in = OWN_SIZE
    if boxes_in is not None and image and stored.facts:
        fields = fit_boxes(fields, boxes_in, image[1:3], stored.facts[1:3])
    elif boxes_in is not None:
        raise FieldError("is in no known image format, so its boxes cannot be compared with its size")
    return Record(
        label=entry.label, image=stored.image, width=width, height=height, format=image_format or None,
        fields=fields, **kept,
    )  # fmt: skip


def _facts(data: bytes) -> Facts:
    """Return what the header says; DamagedImageError if it is that of a truncated image."""
    try:
        return read_facts(data)
    except NotAnImageError as error:
        if error.__cause__ is None:  # too many pixels, or planes that Pillow misreads
            raise
        if data.startswith(_TIFF):
            raise DamagedImageError(f"is {UNREAD_TIFF}") from error
        if data.startswith(_BEGINNINGS) or (data.startswith(b"RIFF") and b"WEBP".startswith(data[8:12])):
            raise DamagedImageError("is damaged: its header is cut short or wrong") from error
        raise


def _facts_or_none(data: bytes) -> Facts | None:
    with suppress(NotAnImageError):
        return read_facts(data)
    return None
