"""An image folder: each file under its name, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from dbloader.errors import ExportError
from dbloader.exports.base import Exporter

if TYPE_CHECKING:
    from dbloader.records.record import Record


class FolderExporter(Exporter):
    """Writes an image folder."""

    @override
    def write(self, record: Record) -> None:
        raise ExportError("not yet")
