"""Options of the user for reading a source."""

from __future__ import annotations

import codecs
from dataclasses import asdict, dataclass

from dbloader._options import check_choice
from dbloader.errors import OptionError

FRAMES, UNITS = ("upright", "stored"), ("pixels", "fractions")  # what the option ``boxes`` decides


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options for reading a source. Each is None if the user has not decided.

    Args:
        class_folder: Which folder of a path is the class: ``"first"``, ``"last"``, or ``"path"`` for all together.
        boxes: Which image the boxes fit: ``"upright"`` (turned by EXIF) or ``"stored"``. Or the unit of the boxes:
            ``"pixels"``, or ``"fractions"`` of the width and height. Or both, as in ``"upright,fractions"``.
        encoding: Encoding of file names in a zip or tar, or of a listing, such as ``"gbk"``.

    Raises:
        OptionError: An option has another value, or Python does not know the encoding.
    """

    class_folder: str | None = None
    boxes: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.class_folder is not None:
            check_choice("class_folder (--class-folder)", self.class_folder, ("first", "last", "path"))
        if self.boxes is not None:
            words = str(self.boxes).split(",")
            for word in words:
                check_choice("boxes (--boxes)", word, (*FRAMES, *UNITS))
            if len(words) > sum(decision is not None for decision in decided_boxes(",".join(words))):
                raise OptionError(
                    f"boxes (--boxes) must be one of {FRAMES}, one of {UNITS}, or one of each, got {self.boxes!r}"
                )
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise OptionError(
                    f"encoding (--encoding) must be one that Python knows, such as 'gbk', got {self.encoding!r}"
                ) from None

    def named(self) -> dict[str, str]:
        """Return the options that the user has decided."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def decided_boxes(boxes: str | None) -> tuple[str | None, str | None]:
    """Return (word from ``FRAMES``, word from ``UNITS``) in the option ``boxes``; None for a missing word."""
    words = (boxes or "").split(",")
    frame, unit = (next((word for word in words if word in choices), None) for choices in (FRAMES, UNITS))
    return frame, unit


UNDECIDED = Reading()
