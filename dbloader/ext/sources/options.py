"""What the user says about a source: how to read its files."""

from __future__ import annotations

import codecs
from dataclasses import asdict, dataclass

from dbloader._options import check_choice
from dbloader.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How to read a source where the files alone do not say it; None where the user has not decided.

    Args:
        class_folder: Whether the ``"first"`` folder of a path is the class, the ``"last"``, or the whole ``"path"``.
        boxes: Whether boxes are in the ``"upright"`` image, as EXIF turns it, or in the ``"stored"`` one.
        encoding: Encoding of names in zip files, or of the text of a listing, such as ``"gbk"``.

    Raises:
        OptionError: An option has another value, or Python does not know the encoding.
    """

    class_folder: str | None = None
    boxes: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.class_folder is not None:
            check_choice("class_folder", self.class_folder, ("first", "last", "path"))
        if self.boxes is not None:
            check_choice("boxes", self.boxes, ("upright", "stored"))
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise OptionError(
                    f"encoding must be an encoding that Python knows, such as 'gbk', got {self.encoding!r}"
                ) from None

    def named(self) -> dict[str, str]:
        """Return the options that the user has decided."""
        return {name: value for name, value in asdict(self).items() if value is not None}


UNDECIDED = Reading()
