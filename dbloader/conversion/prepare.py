"""One file -> one encoded record, or the reason why not."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dbloader.errors import DamagedImageError, DBLoaderError, NotAnImageError, OptionError
from dbloader.images import DEFAULT_QUALITY, check_decodes, facts, reduced_size, resize, resizing_bytes
from dbloader.jpeg import State, examine, repair
from dbloader.records import Record, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.images import Facts
    from dbloader.records import EncodedRecord
    from dbloader.sources import Entry

CHECKS = ("decode", "structure", "none")

# How images of the formats that are looked for begin, where four bytes or more are the same in all; JPEGs are examined.
_BEGINNINGS = (b"\x89PNG", b"GIF8", b"RIFF", b"II*\0", b"MM\0*")
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
        resized: Whether it was made smaller.
        nbytes: Bytes read.
    """

    record: EncodedRecord | None = None
    outcome: str = ""
    reason: str = ""
    bad: bool = False
    resized: bool = False
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """How files become records; checks itself.

    Attributes:
        check: ``"decode"``: each image is decoded; ``"structure"``: its segments or headers are walked; ``"none"``:
            it is stored whatever it is.
        keep_damaged: Store images of which data is missing, marked by a field ``damaged``.
        max_side: Pixels that the longer side has at the most.
        short_side: Pixels that the shorter side has at the most.
        quality: JPEG and WebP quality, 1 to 100, of the images that are made smaller.

    Raises:
        OptionError: A value is out of its range, or two exclude each other.
    """

    check: str = "decode"
    keep_damaged: bool = False
    max_side: int | None = None
    short_side: int | None = None
    quality: int | None = None
    root: bytes = field(default=b"", metadata={"setting": False})

    def __post_init__(self) -> None:
        if self.check not in CHECKS:
            raise OptionError(f"check must be one of {', '.join(CHECKS)}, got {self.check!r}")
        for name in ("max_side", "short_side"):
            pixels = getattr(self, name)
            if pixels is not None and pixels < 1:
                raise OptionError(f"{name} must be at least 1 pixel, got {pixels}")
        if self.max_side is not None and self.short_side is not None:
            raise OptionError("max_side and short_side both say how small an image becomes: choose one")
        if self.quality is not None and self.max_side is None and self.short_side is None:
            raise OptionError(
                "quality is that of images made smaller: give max_side or short_side too "
                "(all others are stored byte for byte)",
            )
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise OptionError(f"quality must be from 1 to 100, got {self.quality}")
        if self.check == "none" and self.keep_damaged:
            raise OptionError("check='none' finds no damage that could be kept: leave keep_damaged out")

    def settings(self) -> dict[str, Any]:
        """Gives what decides the records' bytes."""
        return {key: value for key, value in asdict(self).items() if key != "root"}

    def prepare(self, entry: Entry, hold: Callable[[int], object], data: bytes | None = None) -> Prepared:
        """Reads a file, unless its bytes are given, checks it and gives its record.

        Args:
            entry: The file.
            hold: Called with the number of bytes about to be held in memory, before they are; with a negative number
                when they have been let go. What is left is the file's bytes.
            data: The file's bytes, where they have been read.
        """
        result = Prepared()
        pixels = 0

        def hold_pixels(nbytes: int) -> None:
            nonlocal pixels
            hold(nbytes)
            pixels += nbytes

        try:
            if data is None:
                data = _read(os.path.join(self.root, entry.path), hold)  # noqa: PTH118 - paths are bytes here
            else:
                hold(len(data))
            result.nbytes = len(data)
            self._fill(result, entry, data, hold_pixels)
        except OSError as error:
            if error.errno in _NOT_THE_FILE:
                raise
            result.outcome, result.bad, result.reason = "rejected", True, f"cannot be read: {error.strerror or error}"
        except DBLoaderError as error:
            result.outcome, result.reason = "rejected", str(error)
            result.bad = not isinstance(error, DamagedImageError)
        finally:
            if pixels:
                hold(-pixels)
        return result

    def _fill(self, result: Prepared, entry: Entry, data: bytes, hold: Callable[[int], object]) -> None:
        record = Record(entry.name, entry.label, fields=entry.fields)
        image: Facts | None = None
        try:
            data, image = self._checked(result, data, hold)
            size = image and reduced_size(image, max_side=self.max_side, short_side=self.short_side)
            if image and size:
                hold(resizing_bytes(image, size))
                original = image.width, image.height
                data, image = resize(data, size, quality=self.quality or DEFAULT_QUALITY)
                record.resized_from, result.resized = original, True
        except DamagedImageError as error:
            if not self.keep_damaged:
                raise
            result.outcome, result.reason = "damaged", f"{error} (stored nevertheless)"
            record.damaged = str(error)
            image = _facts_or_none(data)
        record.image = data
        if image:
            record.format, record.width, record.height = image
        result.record = encode(record)

    def _checked(self, result: Prepared, data: bytes, hold: Callable[[int], object]) -> tuple[bytes, Facts | None]:
        """Gives the image file as it is to be stored, repaired if that is all it needs."""
        if self.check == "none":
            return data, _facts_or_none(data)
        structure = examine(data)
        if structure.state is State.DAMAGED:
            raise DamagedImageError(f"is damaged: {structure.reason}")
        if structure.state is State.NO_END:
            data = repair(data)
            result.outcome, result.reason = "repaired", "its end marker was missing: appended FF D9"
        image = _facts(data)
        if self.check == "decode":
            if structure.state is State.NOT_JPEG:
                hold(4 * image.width * image.height)  # its pixels
            elif structure.progressive:
                hold(2 * structure.components * image.width * image.height)  # its coefficients
            check_decodes(data, image)
        return data, image


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
    """Gives the facts; an image whose header is damaged is one of which data is missing, not no image at all."""
    try:
        return facts(data)
    except NotAnImageError as error:
        if data.startswith(_BEGINNINGS):
            raise DamagedImageError("is damaged: its header is cut short or wrong") from error
        raise


def _facts_or_none(data: bytes) -> Facts | None:
    try:
        return facts(data)
    except NotAnImageError:
        return None
