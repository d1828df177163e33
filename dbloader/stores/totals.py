"""Count records and files for the manifest while a store is written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dbloader._version import __version__
from dbloader.errors import FieldError, StoreError
from dbloader.records.document import UNREADABLE
from dbloader.records.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dbloader.records.manifest import Summary
    from dbloader.records.record import EncodedRecord


_COUNTERS = ("outcome", "formats", "depths", "fields")


@dataclass
class Totals:
    """Counts of records and files. Manifest describes each attribute."""

    length: int = 0
    outcome: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    depths: Counter[str] = field(default_factory=Counter)
    fields: Counter[str] = field(default_factory=Counter)
    events: int = 0

    def add(self, record: EncodedRecord) -> None:
        """Count a record."""
        self.length += 1
        if record.format is not None:
            self.formats[record.format] += 1
        for name in record.fields:
            self.fields[name] += 1

    def add_store(self, manifest: Manifest) -> None:
        """Count all records of a store."""
        self.length += manifest.length
        for name in _COUNTERS:
            getattr(self, name).update(getattr(manifest, name))

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the counters, to be stored with a commit."""
        return {name: dict(getattr(self, name)) for name in _COUNTERS}

    @classmethod
    def restore(cls, progress: Mapping[str, Any]) -> Totals:
        """Return the totals in a commit's progress."""
        counters = {name: Counter(progress[name]) for name in _COUNTERS}
        return cls(length=int(progress["length"]), events=int(progress["events"]), **counters)

    def manifest(
        self,
        place: str,
        summary: Summary,
        *,
        salt: int,
        classes: Sequence[str],
        source: Mapping[str, Any] | None,
        created: str | None,
    ) -> Manifest:
        """Return the manifest. Raise FieldError if a label has no class, or a value cannot be stored."""
        for label in (summary.labels or ()) if classes else ():
            if not 0 <= label < len(classes):
                raise FieldError(f"label {label} is none of the classes (0 to {len(classes) - 1})")
        manifest = Manifest(
            length=self.length,
            salt=salt,
            classes=tuple(classes),
            formats=dict(sorted(self.formats.items())),
            depths=dict(sorted(self.depths.items())),
            fields=dict(sorted(self.fields.items())),
            outcome=dict(self.outcome),
            events=self.events,
            source=dict(source or {}),
            created=created or datetime.now(UTC).isoformat(timespec="seconds"),
            created_by=f"dbloader {__version__}",
            **summary.facts(self.fields),
        )
        try:
            Manifest.decode(manifest.encode(), place)
        except (*UNREADABLE, StoreError) as error:
            raise FieldError(f"{place} cannot be finished: {error}") from error
        return manifest
