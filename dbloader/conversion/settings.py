"""The settings of a conversion: its source, and the options that decide its records."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from dbloader._describe import short_repr
from dbloader._options import check_choice, check_path, whole_number
from dbloader.conversion.file_list import permutation
from dbloader.conversion.file_to_record import FileConverter
from dbloader.conversion.transcode import ImageFormat
from dbloader.errors import OptionError
from dbloader.images.pillow import max_pixels
from dbloader.records.manifest import FIELD_CLASSES, FILE_FIELDS
from dbloader.records.record import checked_file_fields
from dbloader.sources.base import full_path
from dbloader.sources.open import open_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from dbloader.sources.base import Source


class Settings(NamedTuple):
    """Everything that decides the records of a conversion.

    Attributes:
        place: The arguments of `open_source`, by their names.
        converter: Makes the records.
        fail_on: Kinds of rejected files that end the conversion: "bad" and "damaged".
        shuffle_seed: Seed of a random order; None for the source's order.
    """

    place: dict[str, Any]
    converter: FileConverter
    fail_on: tuple[str, ...]
    shuffle_seed: int | None

    @classmethod
    def checked(
        cls,
        source: str | os.PathLike[str],
        listing: str | os.PathLike[str] | None = None,
        name_field: str | None = None,
        image_field: str | None = None,
        file_fields: Sequence[str] = (),
        *,
        images: ImageFormat | None = None,
        check: str = "decode",
        on_bad: str = "reject",
        on_damaged: str = "reject",
        shuffle_seed: int | None = None,
    ) -> Self:
        """Return settings for these arguments of `convert`; TypeError or OptionError if one is wrong."""
        check_path("source", source)
        check_path("listing", listing, none=True)
        place: dict[str, Any] = {"source": source, "listing": listing}
        place |= {"name_field": name_field, "image_field": image_field}
        place["file_fields"] = checked_file_fields(file_fields)
        check_choice("on_bad", on_bad, ("reject", "fail"))
        check_choice("on_damaged", on_damaged, ("reject", "keep", "fail"))
        shuffle_seed = whole_number("shuffle_seed", shuffle_seed, none=True)
        if shuffle_seed is not None and not -(2**63) <= shuffle_seed < 2**63:
            raise OptionError(f"shuffle_seed must be a seed of 64 bits, got {shuffle_seed}")
        if images is not None and not isinstance(images, ImageFormat):
            raise TypeError(
                f"images must be an ImageFormat, such as ImageFormat(short_side=256), got {short_repr(images)}"
            )
        max_pixels()  # raises if the environment variable is wrong
        converter = FileConverter(check=check, keep_damaged=on_damaged == "keep", images=images or ImageFormat())
        fail_on = [kind for kind, value in (("bad", on_bad), ("damaged", on_damaged)) if value == "fail"]
        return cls(place, converter, tuple(fail_on), shuffle_seed)

    def absolute(self) -> Self:
        """Return the settings with paths that are right in any working directory."""
        paths = {name: self.place[name] and _absolute(self.place[name]) for name in ("source", "listing")}
        return self._replace(place={**self.place, **paths})

    def open(self) -> Source:
        """Open the source; OptionError if images are to be made smaller, but not their further files."""
        found = open_source(**self.place)
        images = self.converter.images
        if found.file_fields and (images.short_side is not None or images.max_side is not None):
            found.close()
            raise OptionError(
                "short_side (--short-side) and max_side (--max-side) make images smaller, but not the files in the "
                f"field {', '.join(map(repr, found.file_fields))}, which would not fit them any more: make all of them "
                "smaller before the conversion, or leave the option out"
            )
        return found

    def order(self, files: int) -> range | np.ndarray[Any, Any]:
        """Return the positions of all files in the list, in the order of the records."""
        return range(files) if self.shuffle_seed is None else permutation(files, self.shuffle_seed)

    def describe(self, found: Source) -> dict[str, Any]:
        """Return the ``source`` of the manifest: the source's place, and the options that decide the records."""
        listing = self.place["listing"]
        place: dict[str, Any] = {"path": found.place, "listing": None if listing is None else full_path(listing)}
        if found.file_fields:
            place[FILE_FIELDS] = [*found.file_fields]
        if found.field_classes:
            place[FIELD_CLASSES] = found.field_classes
        return {**place, "shuffle_seed": self.shuffle_seed, **self.converter.settings()}

    def named(self) -> dict[str, Any]:
        """Return the options that a resumed conversion must share, by their names in Python and on the command line."""
        values = {**self.converter.settings(), "shuffle_seed": self.shuffle_seed}
        values["on_damaged"] = "keep" if values.pop("keep_damaged") else "not keep"
        return {f"{name} (--{name.replace('_', '-')})": value for name, value in values.items()}


def _absolute(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    return text if "://" in text else os.path.join(os.getcwd(), text)  # noqa: PTH109, PTH118 - any str
