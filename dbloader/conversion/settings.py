"""Check and keep the source of a conversion, and the options that affect its records."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader._describe import short_repr
from dbloader._extensions import extension, has_extensions
from dbloader._options import check_choice, check_path, checked_flag, whole_number
from dbloader.conversion.transcode import ImageFormat
from dbloader.errors import OptionError
from dbloader.images.pillow import max_pixels
from dbloader.records.manifest import FIELD_CLASSES, FILE_FIELDS, TARGET, UNDERSTOOD
from dbloader.records.record import checked_file_fields
from dbloader.sources.base import Listing, full_path
from dbloader.sources.folder import FolderSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.sources.base import Source, Tally


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of `convert` that affect the records. `convert` describes them.

    Args:
        labels: The store's label for each label of the source; None if labels do not change.

    Raises:
        TypeError: An option has the wrong type.
        OptionError: An option is out of its range, or two options exclude each other.
    """

    source: str | os.PathLike[str]
    listing: str | os.PathLike[str] | Listing | None = None
    name_field: str | None = None
    image_field: str | None = None
    file_fields: Sequence[str] = ()
    where: str | None = None
    class_folder: str | None = None
    boxes: str | None = None
    encoding: str | None = None
    classes: str | os.PathLike[str] | Sequence[str] | None = None
    images: ImageFormat = field(default_factory=ImageFormat)
    check: str = "decode"
    on_bad: str = "reject"
    on_damaged: str = "reject"
    shuffle_seed: int | None = None
    new_only: bool = False
    labels: Sequence[int] | None = None

    def __post_init__(self) -> None:
        check_path("source", self.source)
        if not isinstance(self.listing, Listing):
            check_path("listing", self.listing, none=True)
        object.__setattr__(self, "file_fields", checked_file_fields(self.file_fields))
        if reading := self.reading():
            extension("Reading")(**reading)  # raises an error if one of the options is wrong
        if not isinstance(self.classes, (str, os.PathLike)):
            object.__setattr__(self, "classes", self.given_classes())
        checked_flag("new_only", self.new_only)
        check_choice("check", self.check, ("decode", "structure", "none"))
        check_choice("on_bad", self.on_bad, ("reject", "fail"))
        check_choice("on_damaged", self.on_damaged, ("reject", "keep", "fail"))
        object.__setattr__(self, "shuffle_seed", whole_number("shuffle_seed", self.shuffle_seed, none=True))
        if self.shuffle_seed is not None and not -(2**63) <= self.shuffle_seed < 2**63:
            raise OptionError(f"shuffle_seed must be from -2**63 to 2**63 - 1, got {self.shuffle_seed}")
        if not isinstance(self.images, ImageFormat):
            raise TypeError(
                f"images must be an ImageFormat, such as ImageFormat(short_side=256), got {short_repr(self.images)}"
            )
        if self.on_damaged == "keep" and self.check == "none":
            raise OptionError(
                "check='none' finds no damage, so on_damaged='keep' (--on-damaged keep) has no effect: leave it out"
            )
        if self.on_damaged == "keep" and self.images.raw:
            raise OptionError(
                "raw (--raw) cannot store damaged images as pixels: leave out on_damaged='keep' (--on-damaged keep)"
            )
        max_pixels()  # raises an error if the environment variable DBLOADER_MAX_PIXELS is wrong

    def reading(self) -> dict[str, str]:
        """Return the options for reading the source, such as ``encoding``, without the options that are None."""
        options = {"class_folder": self.class_folder, "boxes": self.boxes, "encoding": self.encoding}
        return {name: value for name, value in options.items() if value is not None}

    def given_classes(self) -> str | tuple[str, ...] | None:
        """Return the class names that the option ``classes`` gives. Return "numbers" and None unchanged."""
        names: str | tuple[str, ...] | None = None if self.classes is None else extension("given_classes")(self.classes)
        return names

    def decided(self) -> Settings:
        """Return a copy in which ``classes`` contains the names themselves, not the place of a store or file."""
        return replace(self, classes=self.given_classes())

    def open(self) -> Source:
        """Open the source. Without ``dbloader.ext``, the source can only be a folder of images."""
        given = (self.listing, self.name_field, self.image_field, self.file_fields or None, self.where, self.classes)
        is_given = any(option is not None for option in given)
        if has_extensions() or is_given or self.reading() or "://" in str(self.source) or Path(self.source).is_file():
            found: Source = extension("open_with")(self)
            return found
        return FolderSource(self.source)

    def describe(self, found: Source, tally: Tally) -> dict[str, Any]:
        """Return ``source`` for the manifest: the source, how it was read, and the options that affect the records."""
        place: dict[str, Any] = {
            "path": found.place,
            "listing": None if self.listing is None else full_path(Listing.of(self.listing).path),
            UNDERSTOOD: found.in_words(tally),
        }
        if isinstance(self.listing, Listing) and (columns := self.listing.named()):
            place["columns"] = columns
        if found.target:
            place[TARGET] = found.target
        if self.where is not None:
            place["where"] = self.where
        place |= self.reading()
        if found.given_classes is not None:
            place["classes"] = "given" if found.given_classes else "numbers"
        if found.file_fields:
            place[FILE_FIELDS] = [*found.file_fields]
        # Leave out the classes of the target: ``Manifest.classes`` lists them, with the numbers that the store uses.
        if named := {name: classes for name, classes in found.field_classes.items() if name != found.target}:
            place[FIELD_CLASSES] = named
        options = {"shuffle_seed": self.shuffle_seed, "check": self.check, "keep_damaged": self.on_damaged == "keep"}
        return {**place, **options, **asdict(self.images)}

    def named(self, found: Source) -> dict[str, Any]:
        """Return what must not change when a conversion resumes. Keys are like "check (--check)"."""
        values = {"check": self.check, **asdict(self.images), "shuffle_seed": self.shuffle_seed, **self.reading()}
        if (names := found.given_classes) is not None:
            sum_of_names = f"CRC-32 {zlib.crc32(json.dumps(names).encode()):08x}"
            values["classes"] = f"{len(names):,} names, {sum_of_names}" if names else "numbers"
        values["on_damaged"] = "keep" if self.on_damaged == "keep" else "not keep"
        return {f"{name} (--{name.replace('_', '-')})": value for name, value in values.items()}
