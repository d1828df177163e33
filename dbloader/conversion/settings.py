"""Check and keep the source of a conversion, and the options that affect its records."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dbloader._describe import short_repr
from dbloader._options import check_choice, check_path, checked_flag, whole_number
from dbloader.conversion.transcode import ImageFormat
from dbloader.errors import OptionError
from dbloader.images.pillow import max_pixels
from dbloader.records.manifest import FIELD_CLASSES, FILE_FIELDS
from dbloader.records.record import checked_file_fields
from dbloader.sources.base import Reading, full_path
from dbloader.sources.open import open_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.sources.base import Source


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
    listing: str | os.PathLike[str] | None = None
    name_field: str | None = None
    image_field: str | None = None
    file_fields: Sequence[str] = ()
    where: str | None = None
    class_folder: str | None = None
    boxes: str | None = None
    encoding: str | None = None
    images: ImageFormat = field(default_factory=ImageFormat)
    check: str = "decode"
    on_bad: str = "reject"
    on_damaged: str = "reject"
    shuffle_seed: int | None = None
    new_only: bool = False
    labels: Sequence[int] | None = None

    def __post_init__(self) -> None:
        check_path("source", self.source)
        check_path("listing", self.listing, none=True)
        object.__setattr__(self, "file_fields", checked_file_fields(self.file_fields))
        self.reading()  # raises an error if one of its options is wrong
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

    def reading(self) -> Reading:
        """Return the options that say how to read the source."""
        return Reading(class_folder=self.class_folder, boxes=self.boxes, encoding=self.encoding)

    def absolute(self) -> Settings:
        """Return the settings with absolute paths, for a process with another working directory."""
        listing = None if self.listing is None else _absolute(self.listing)
        return replace(self, source=_absolute(self.source), listing=listing)

    def open(self) -> Source:
        """Open the source. Raise OptionError if images would shrink, but their masks or other files would not."""
        found = open_source(
            self.source,
            self.listing,
            name_field=self.name_field,
            image_field=self.image_field,
            file_fields=self.file_fields,
            where=self.where,
            reading=self.reading(),
        )
        if found.file_fields and (self.images.short_side is not None or self.images.max_side is not None):
            found.close()
            raise OptionError(
                "short_side (--short-side) and max_side (--max-side) make images smaller, but not the files in the "
                f"field {', '.join(map(repr, found.file_fields))}, so an image and its files would differ in size: "
                "leave the option out, or make images and files smaller before the conversion"
            )
        return found

    def describe(self, found: Source) -> dict[str, Any]:
        """Return ``source`` for the manifest: the place of the source, and the options that affect the records."""
        place: dict[str, Any] = {
            "path": found.place,
            "listing": None if self.listing is None else full_path(self.listing),
        }
        if self.where is not None:
            place["where"] = self.where
        place |= self.reading().named()
        if found.file_fields:
            place[FILE_FIELDS] = [*found.file_fields]
        if found.field_classes:
            place[FIELD_CLASSES] = found.field_classes
        options = {"shuffle_seed": self.shuffle_seed, "check": self.check, "keep_damaged": self.on_damaged == "keep"}
        return {**place, **options, **asdict(self.images)}

    def named(self) -> dict[str, Any]:
        """Return the options that must not change when a conversion resumes. Keys are like "check (--check)"."""
        values = {"check": self.check, **asdict(self.images), "shuffle_seed": self.shuffle_seed}
        values |= self.reading().named()
        values["on_damaged"] = "keep" if self.on_damaged == "keep" else "not keep"
        return {f"{name} (--{name.replace('_', '-')})": value for name, value in values.items()}


def _absolute(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if not text or "://" in text:  # open_source raises an error for ""
        return text
    return os.path.join(os.getcwd(), text)  # noqa: PTH109, PTH118 - any str
