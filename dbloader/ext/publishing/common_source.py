"""Make the manifest's entry ``source`` for a store with records from several stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dbloader.errors import OptionError
from dbloader.records.manifest import CLASS_LISTS, FIELD_CLASSES, FILE_FIELDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader.records.manifest import Manifest


def common_source(manifests: Sequence[Manifest], *, unites_lists: bool = False) -> dict[str, Any]:
    """Return the manifest's ``source`` for a store with records from several stores.

    The result keeps the entries that are equal in all stores, such as ``check``. It also has the names of all file
    fields, and the class names of all extra fields. With ``unites_lists``, it has no class names for the target
    ``"labels"`` (several classes per record), because they are the ``classes`` of the new store.

    Raises:
        OptionError: A field has different class names in two stores, or image files in one store and other values in
            another.
    """
    first, *others = (manifest.source for manifest in manifests)
    common = {
        key: value for key, value in first.items() if all(key in other and other[key] == value for other in others)
    }
    classes: dict[str, list[str]] = {}
    for manifest in manifests:
        for name, names_there in manifest.field_classes.items():
            if unites_lists and name == manifest.target == CLASS_LISTS:
                continue
            if classes.setdefault(name, names_there) != names_there:
                raise OptionError(
                    f"two stores have different class names for the field {name!r}: make one of the stores again with "
                    "another name for the field"
                )
    names = dict.fromkeys(name for manifest in manifests for name in manifest.file_fields)
    for name in names:
        if any(name in manifest.fields and name not in manifest.file_fields for manifest in manifests):
            raise OptionError(
                f"the field {name!r} has image files in one store, and other values in another: make one of the stores "
                "again with another name for the field"
            )
    if names:
        common[FILE_FIELDS] = [*names]
    common.pop(FIELD_CLASSES, None)
    if classes:
        common[FIELD_CLASSES] = classes
    return common
