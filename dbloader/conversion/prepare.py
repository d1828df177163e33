"""One file -> one encoded record, or the reason why not."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dbloader.conversion.memory_budget import held
from dbloader.conversion.transcode import TILES, ImageFormat, Stored
from dbloader.errors import DamagedImageError, FieldError, ImageError, NotAnImageError, OptionError, RecordError
from dbloader.images.info import UNREAD_TIFF, check_decodes, read_facts
from dbloader.images.jpeg import State, examine, repair
from dbloader.images.pillow import EIGHT_BITS, KNOWN_RANGE, decoding_bytes
from dbloader.records.record import Record, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.images.info import Facts
    from dbloader.records.record import EncodedRecord
    from dbloader.sources.base import Entry

CHECKS = ("decode", "structure", "none")

# How images of the formats that are looked for begin, where four bytes or more are the same in all; JPEGs are examined.
_BEGINNINGS = (b"\x89PNG", b"GIF8", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# Errors that are the machine's, not the file's: going on would reject files that are good.
_NOT_THE_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# A record is a BSON document, whose length is an int32; 64 kB are left for what is not the image.
_MAX_BYTES = 2**31 - 2**16


@dataclass(slots=True)
class Prepared:
    """What became of a file.

    Attributes:
        record: None if the file is rejected.
        outcome: ``""``, or what the report is to say of it: ``"repaired"``, ``"rejected"`` or ``"damaged"`` (and
            stored nevertheless).
        reason: Why, in words that follow the file's name and a colon.
        bad: Whether it is no image at all, or cannot be read; only with ``"rejected"``.
        untiled: Why its JPEG could not be tiled, likewise; "" if it was, or was not to be.
        resized: Whether it was made smaller.
        reencoded: Whether it was encoded anew in its own size.
        depth: How deep the values of the stored image are; "" without an image or for one in no known format.
        deep: What the report is to say of values of more than 8 bits; "" if it has none.
        frames: What the report is to say of several frames or pages; "" if there is one.
        nbytes: Bytes read.
    """

    record: EncodedRecord | None = None
    outcome: str = ""
    reason: str = ""
    bad: bool = False
    untiled: str = ""
    resized: bool = False
    reencoded: bool = False
    depth: str = ""
    deep: str = ""
    frames: str = ""
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePreparer:
    """How files become records; checks itself.

    Attributes:
        check: ``"decode"``: each image is decoded; ``"structure"``: its segments or headers are walked; ``"none"``:
            it is stored whatever it is.
        keep_damaged: Store images of which data is missing, marked by a field ``damaged``.
        form: In which form images are stored.

    Raises:
        OptionError: A value is out of its range, or two exclude each other.
    """

    check: str = "decode"
    keep_damaged: bool = False
    form: ImageFormat = field(default_factory=ImageFormat)
    root: bytes = b""

    def __post_init__(self) -> None:
        if self.check not in CHECKS:
            raise OptionError(f"check must be one of {', '.join(CHECKS)}, got {self.check!r}")
        if self.check == "none" and self.keep_damaged:
            raise OptionError(
                "check='none' finds no damage that could be kept: leave on_damaged='keep' (--on-damaged keep) out"
            )
        if self.form.raw and self.keep_damaged:
            raise OptionError(
                "raw stores pixels, which a damaged image lacks: leave on_damaged='keep' (--on-damaged keep) out"
            )

    def settings(self) -> dict[str, Any]:
        """Return what decides the records' bytes."""
        return {"check": self.check, "keep_damaged": self.keep_damaged, **asdict(self.form)}

    def prepare(self, entry: Entry, hold: Callable[[int], object], data: bytes | None = None) -> Prepared:
        """Read a file, unless its bytes are given, checks it and return its record.

        Args:
            entry: The file.
            hold: Called with the number of bytes about to be held in memory, before they are; with a negative number
                when they have been let go. What is left is the file's bytes, and pixels that are stored.
            data: The file's bytes, where they have been read.

        Raises:
            OSError: The machine is in want of something, or ``jpegtran`` was ended: not the file's fault.
            OptionError: ``jpegtran`` is not there any more.
        """
        result = Prepared()
        try:
            if self.form.tile and TILES in entry.fields:
                raise FieldError(f"field {TILES!r} is where tile keeps the lengths of tiles: give yours another name")
            if data is None:
                data = _content(os.path.join(self.root, entry.path), hold)  # noqa: PTH118 - paths are bytes here
            else:
                hold(len(data))
            result.nbytes = len(data)
            self._fill(result, entry, data, hold)
        except (ImageError, RecordError) as error:
            result.outcome, result.reason = "rejected", str(error)
            result.bad = not isinstance(error, DamagedImageError)
        return result

    def _fill(self, result: Prepared, entry: Entry, data: bytes, hold: Callable[[int], object]) -> None:
        try:
            data, image = self._checked(result, data, hold)
            meanwhile, kept = self.form.memory(image) if image else (0, 0)
            if kept:
                hold(kept)
            with held(hold, meanwhile):
                stored = self._formed(data, image)
                record = _record(entry, stored)
                if image and stored.encoded_anew:
                    record.resized_from = image.width, image.height
                result.record = encode(record)
            result.untiled = stored.untiled
            result.depth = stored.depth or ""
            result.deep = _deep(image, stored)
            result.frames = _frames(image, stored)
            if record.resized_from is not None:
                result.resized = record.resized_from != (record.width, record.height)
                result.reencoded = not result.resized
        except DamagedImageError as error:
            if not self.keep_damaged:
                raise
            result.outcome, result.reason = "damaged", f"{error} (stored nevertheless)"
            stored = _as_it_is(data, _facts_or_none(data))
            result.depth = stored.depth or ""
            record = _record(entry, stored)
            record.damaged = str(error)
            result.record = encode(record)

    def _formed(self, data: bytes, image: Facts | None) -> Stored:
        """Return an image file in the form in which it is to be stored."""
        if image is None and self.form.raw:
            image = _facts(data)  # which says what is wrong with it: nothing else than pixels can be stored
        if image is None:
            return _as_it_is(data, None, untiled="is in no known image format" if self.form.tile else "")
        return self.form.make(data, image)

    def _checked(self, result: Prepared, data: bytes, hold: Callable[[int], object]) -> tuple[bytes, Facts | None]:
        """Return the image file as it is to be stored, repaired if that is all it needs."""
        if self.check == "none":
            return data, _facts_or_none(data)
        structure = examine(data)
        if structure.state is State.DAMAGED:
            raise DamagedImageError(f"is damaged: {structure.reason}")
        coefficients = structure.width * structure.height * 2 * structure.components if structure.progressive else 0
        if structure.state is State.NO_END:
            with held(hold, coefficients):
                data = repair(data, structure)
            result.outcome, result.reason = "repaired", "its end marker was missing: appended FF D9"
        image = _facts(data)
        if self.check == "decode":
            pixels = decoding_bytes(image.format) * image.width * image.height
            with held(hold, pixels if structure.state is State.NOT_JPEG else coefficients):
                check_decodes(data, image)
        return data, image


def _record(entry: Entry, stored: Stored) -> Record:
    tiles = {} if stored.lengths is None else {TILES: stored.lengths}
    return Record(
        entry.name,
        entry.label,
        stored.image,
        stored.width,
        stored.height,
        stored.format,
        fields={**entry.fields, **tiles},
    )


def _as_it_is(data: bytes, image: Facts | None, untiled: str = "") -> Stored:
    name, width, height, depth = image[:4] if image else (None, None, None, None)
    return Stored(data, name, width, height, depth, untiled=untiled)


def _deep(image: Facts | None, stored: Stored) -> str:
    """Return the remark of the report on values of more than 8 bits or of no known range; "" if there are no such."""
    if image is None or image.depth == EIGHT_BITS:
        return ""
    if stored.depth != image.depth:
        return f"has {image.depth} values, and is stored with {stored.depth} ones"
    if image.depth not in KNOWN_RANGE:
        return f"has {image.depth} values of no known range: it is stored with them, and needs a decode= of your own"
    return f"has {image.depth} values, and is stored with all of their bits; decoded images have 8"


def _frames(image: Facts | None, stored: Stored) -> str:
    """Return the remark of the report on a file of several frames; "" if it has one."""
    if image is None or not image.frames:
        return ""
    lost = stored.encoded_anew or stored.format is None
    return f"has several frames or pages: {'stored' if lost else 'decoded'} is the first"


def _content(path: bytes, hold: Callable[[int], object]) -> bytes:
    try:
        return _read(path, hold)
    except OSError as error:
        if error.errno in _NOT_THE_FILE:
            raise
        raise NotAnImageError(f"cannot be read: {error.strerror or error}") from error


def _read(path: bytes, hold: Callable[[int], object]) -> bytes:
    # A named pipe would be waited for without end; O_NONBLOCK opens it, and fstat tells what it is.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise NotAnImageError("is a folder, not a file")
        if not stat.S_ISREG(status.st_mode):
            raise NotAnImageError("is not a regular file")
        if status.st_size > _MAX_BYTES:
            raise NotAnImageError(f"has {status.st_size:,} bytes, more than a record can hold ({_MAX_BYTES:,})")
        hold(status.st_size)
        data = os.read(descriptor, status.st_size)
        while len(data) < status.st_size and (more := os.read(descriptor, status.st_size - len(data))):
            data += more
        return data
    finally:
        os.close(descriptor)


def _facts(data: bytes) -> Facts:
    """Return the facts; an image whose header is damaged is one of which data is missing, not no image at all."""
    try:
        return read_facts(data)
    except NotAnImageError as error:
        if error.__cause__ is None:  # it has too many pixels, or planes that Pillow misreads
            raise
        if data.startswith(_TIFF):
            raise DamagedImageError(f"is {UNREAD_TIFF}") from error
        if data.startswith(_BEGINNINGS) or (data.startswith(b"RIFF") and b"WEBP".startswith(data[8:12])):
            raise DamagedImageError("is damaged: its header is cut short or wrong") from error
        raise


def _facts_or_none(data: bytes) -> Facts | None:
    try:
        return read_facts(data)
    except NotAnImageError:
        return None
