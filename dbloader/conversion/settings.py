"""The options of a conversion that decide its records, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dbloader._describe import short_repr
from dbloader._options import check_choice, whole_number
from dbloader.conversion.file_to_record import FileConverter
from dbloader.conversion.transcode import ImageFormat
from dbloader.errors import OptionError
from dbloader.images.pillow import max_pixels

if TYPE_CHECKING:
    from typing_extensions import Self


class Settings(NamedTuple):
    """How files become records.

    Attributes:
        converter: Makes the records.
        fail_on: Kinds of rejected files that end the conversion: "bad" and "damaged".
        shuffle: Seed of a random order; None for the source's order.
    """

    converter: FileConverter
    fail_on: tuple[str, ...]
    shuffle: int | None

    @classmethod
    def checked(
        cls,
        images: ImageFormat | None = None,
        check: str = "decode",
        on_bad: str = "reject",
        on_damaged: str = "reject",
        shuffle: int | None = None,
    ) -> Self:
        """Return the settings for options of `convert`; TypeError or OptionError if one is wrong."""
        check_choice("on_bad", on_bad, ("reject", "fail"))
        check_choice("on_damaged", on_damaged, ("reject", "keep", "fail"))
        shuffle = whole_number("shuffle", shuffle, none=True)
        if shuffle is not None and not -(2**63) <= shuffle < 2**63:
            raise OptionError(f"shuffle must be a seed of 64 bits, got {shuffle}")
        if images is not None and not isinstance(images, ImageFormat):
            raise TypeError(
                f"images must be an ImageFormat, such as ImageFormat(short_side=256), got {short_repr(images)}"
            )
        max_pixels()  # raises if the environment variable is wrong
        converter = FileConverter(check=check, keep_damaged=on_damaged == "keep", images=images or ImageFormat())
        fail_on = [kind for kind, value in (("bad", on_bad), ("damaged", on_damaged)) if value == "fail"]
        return cls(converter, tuple(fail_on), shuffle)
