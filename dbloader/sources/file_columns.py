"""Columns of a table that name further files of its images, such as masks: the record gets the files' bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dbloader.errors import FieldError, SourceError
from dbloader.records.record import checked_field_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SUFFIX = "_file_name"
"""End of such a column's name in the metadata of a folder, as in Hugging Face's imagefolder."""


def find_file_columns(columns: Sequence[str], named: Iterable[str], where: str, *, by_suffix: bool) -> dict[str, str]:
    """Return the field of each column that names files: those that are ``named``, or end with ``SUFFIX``."""
    found = {column: column for column in columns if column in named}
    for column in columns if by_suffix else ():
        field = column.removesuffix(SUFFIX)
        if field in ("", column) or column in found:
            continue
        try:
            found[column] = checked_field_name(field)
        except FieldError as error:
            raise SourceError(f"{where}: rename the column {column!r}, which names files: {error}") from error
        if field in columns:
            raise SourceError(f"{where}: {column!r} and {field!r} are both the field {field!r}; rename or drop one")
    return found


def empty_files(values: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a row in the order of its columns, None for those that are files."""
    return {fields.get(name, name): None if name in fields else value for name, value in values.items()}
