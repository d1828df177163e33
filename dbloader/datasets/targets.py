"""The classes in the field that is the target of a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import short_repr
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.records.manifest import Manifest


def class_names(manifest: Manifest, target: str) -> Sequence[str]:
    """Return the names of the classes in a target field, or () if the classes have no names."""
    return manifest.classes if target == "label" else manifest.field_classes.get(target, ())


def checked_classes(target: str, value: Any, count: int) -> list[int]:
    """Check that the classes of a record are different integers from 0 to ``count`` - 1, and return them."""
    classes = value.tolist() if isinstance(value, np.ndarray) else value
    is_list = isinstance(classes, list) and all(type(one) is int and 0 <= one < count for one in classes)
    if not is_list or len({*classes}) < len(classes):
        raise OptionError(
            f"field {target!r} must be a list of different classes from 0 to {count - 1}, got {short_repr(value)}: "
            "choose another target=, or store such a list"
        )
    return list(classes)
