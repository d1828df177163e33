"""Check the options of a copy that choose its records and their labels."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbloader._describe import short_repr
from dbloader._options import check_path
from dbloader.errors import OptionError
from dbloader.sources.base import full_path

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROUNDING = 1e-6  # the sum of fractions may differ from 1 by this much


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The options of `copy_store` that choose records and labels, checked. `copy_store` describes them."""

    select: Path | None
    drop: Path | None
    classes: tuple[str, ...]
    where: str | None
    labels: Path | None
    marks: tuple[Path, ...]
    rename_classes: Mapping[str, str]
    split: tuple[float, ...] | None
    seed: int

    def given(self) -> dict[str, Any]:
        """Return the options that are given, by name."""
        return {option.name: value for option in fields(self) if (value := getattr(self, option.name))}

    def described(self) -> dict[str, Any]:
        """Return the options that change the copy, in a form that a manifest can store."""
        used = {name: value for name, value in self.given().items() if name != "seed"}
        if self.split:
            used["seed"] = self.seed
        return {name: _plain(value) for name, value in used.items()}


def listing_path(name: str, listing: str | os.PathLike[str] | None) -> Path | None:
    """Return the path of an option with a listing. A file of marks is refused, because it lists tagged records, too."""
    check_path(name, listing, none=True)
    if listing is None:
        return None
    if os.fspath(listing).endswith(".marks.jsonl"):
        raise OptionError(f"{name} (--{name}): {listing} is a file of marks: pass it as marks (--marks)")
    return Path(listing)  # Path("") is true, so "" raises an error later


def checked_fractions(split: Any) -> tuple[float, ...]:
    """Return the option ``split``, a sequence or a text such as "0.9,0.1"; OptionError for other values."""
    with suppress(TypeError, ValueError):
        given = tuple(map(float, split.split(",") if isinstance(split, str) else split))
        if len(given) > 1 and all(0 < part < 1 for part in given) and abs(sum(given) - 1) <= _ROUNDING:
            return given
    wanted = "two or more fractions with the sum 1, such as 0.8,0.2 for two destinations"
    raise OptionError(f"split (--split) must be {wanted}, got {short_repr(split)}")


def _plain(value: Any) -> Any:
    return full_path(value) if isinstance(value, Path) else [*map(_plain, value)] if isinstance(value, tuple) else value
