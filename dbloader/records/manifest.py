"""The manifest: the header of a store. The manifest is written last, so a store without a manifest is unfinished."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import bson
import numpy as np

from dbloader._describe import in_lines, print_pretty, size
from dbloader._version import __version__
from dbloader.errors import DamagedStoreError, FieldError, NotAStoreError, StoreError, StoreVersionError
from dbloader.records.columns import COLUMNS, DTYPES, NO_LABEL
from dbloader.records.document import UNREADABLE, open_sealed, seal
from dbloader.records.field_columns import KINDS, KindFinder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from dbloader.records.record import EncodedRecord

FORMAT = "dbloader"
VERSION = 1
# Keys of Manifest.source.
FILE_FIELDS, FIELD_CLASSES, TARGET, UNDERSTOOD = "file_fields", "field_classes", "target", "understood"
CLASS_LISTS = "labels"  # a target field of this name lists all classes of a record (multi-label)

_MAX_DEPTH = 20  # most nested levels of dicts and lists in Manifest.source

# If a store has more different labels than this, its manifest does not count the records of each label. Regression
# targets, for example, would make a manifest large. Readers then count the labels in the column.
MAX_COUNTED_LABELS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The header of a store.

    Attributes:
        length: Number of records.
        digest: SHA-256, hex, of the column ``crc32``: little-endian uint32s in the order of the records.
        salt: Random uint32, drawn when writing began. The checksums of records, column chunks and lines of the report
            include the salt. So data of an older store in the same file have wrong checksums.
        classes: Name of each label from 0 on; empty if labels have no names.
        label_counts: Number of records with each label; None if there are more than 65,536 different labels.
        labelled: Number of records with a label.
        named: Number of records with a name.
        image_bytes: Total size of all images in bytes.
        width: Smallest and largest width in pixels; (0, 0) if no record has a width.
        height: Smallest and largest height in pixels; (0, 0) if no record has a height.
        formats: Number of records by image format.
        depths: Number of records by bit depth of the image, such as "8-bit", "16-bit" or "32-bit float".
        fields: For each extra field, the number of records that have the field.
        columns: The extra fields that have a column, with the kind of each: "bool", "int", "float" or "text".
        outcome: Number of files by their outcome in the conversion: ``repaired``, ``rejected`` and others.
        events: Number of lines in the conversion's report.
        source: Where the records are from, the options of the conversion, and the values of the properties
            ``file_fields``, ``field_classes``, ``target`` and ``understood``.
        created: UTC, ISO 8601.
        created_by: Program and version.
        version: Version of the format.
    """

    length: int
    digest: str
    salt: int = field(default=0, compare=False)
    classes: tuple[str, ...] = ()
    label_counts: dict[int, int] | None = None
    labelled: int = 0
    named: int = 0
    image_bytes: int = 0
    width: tuple[int, int] = (0, 0)
    height: tuple[int, int] = (0, 0)
    formats: dict[str, int] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)
    fields: dict[str, int] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    outcome: dict[str, int] = field(default_factory=dict)
    events: int = 0
    source: dict[str, Any] = field(default_factory=dict)
    created: str = ""
    created_by: str = ""
    version: int = VERSION

    @property
    def has_decoded_images(self) -> bool:
        """Whether conversion decoded all images. If so, every image whose record has the right CRC-32 is intact."""
        return self.source.get("check") == "decode"

    @property
    def file_fields(self) -> tuple[str, ...]:
        """Extra fields that contain image files, such as masks."""
        return tuple(self.source.get(FILE_FIELDS) or ())

    @property
    def field_classes(self) -> dict[str, list[str]]:
        """The class names of the integers in extra fields.

        A key is the name of a field, or a path inside a field, such as ``objects.category``.
        """
        return dict(self.source.get(FIELD_CLASSES) or {})

    @property
    def target(self) -> str:
        """The field that a dataset returns as the target by default: ``label`` or an extra field."""
        return str(self.source.get(TARGET) or "label")

    @property
    def understood(self) -> list[str]:
        """Lines that show where ``convert`` found images, labels and fields; [] if an earlier dbloader converted."""
        return list(self.source.get(UNDERSTOOD) or ())

    @property
    def given(self) -> dict[str, Any]:
        """The values that ``write_index`` needs besides the records, to write the index of a sharded store again."""
        return {"classes": self.classes, "source": self.source, "created": self.created, "salt": self.salt}

    def class_name(self, label: int | None) -> str | None:
        """Return the name of a label's class, or None."""
        return self.classes[label] if label is not None and 0 <= label < len(self.classes) else None

    _repr_pretty_ = print_pretty

    def __str__(self) -> str:
        return in_lines(self.in_words())

    def in_words(self) -> dict[str, str]:
        """Return a dict that maps titles, such as "Records", to facts about the store. An unknown fact is ""."""
        kinds = "pixels, uint8" if self.source.get("raw") else _list_counts(self.formats)
        return {
            "Records": f"{self.length:,}",
            "Labelled": f"{self.labelled:,}" if self.labelled != self.length else "",
            "Images": size(self.image_bytes) + (f" ({kinds})" if kinds else ""),
            "Depths": _list_counts(self.depths),
            "Width": _range_of_pixels(*self.width),
            "Height": _range_of_pixels(*self.height),
            "Classes": f"{len(self.classes):,}" if self.classes else "",
            "Fields": ", ".join(map(self._field_in_words, self.fields)),
            "Conversion": _list_counts(self.outcome),
            "Source": str(self.source.get("listing") or self.source.get("path") or ""),
            "Created": f"{self.created} by {self.created_by}",
            "Digest": self.digest,
        }

    def _field_in_words(self, name: str) -> str:
        is_named = any(part.split(".")[0] == name for part in self.field_classes)
        what = ", image files" if name in self.file_fields else ", named classes" if is_named else ""
        return f"{name} ({self.fields[name]:,}{what})"

    def encode(self) -> bytes:
        """Return the manifest as a BSON document with a checksum."""
        document = asdict(self)
        if self.label_counts is not None:
            pairs = np.array(sorted(self.label_counts.items()), "<i8").reshape(-1, 2)
            document["label_counts"] = pairs.tobytes()
        return seal({"format": FORMAT, **document})

    @classmethod
    def decode(cls, data: bytes, place: str) -> Manifest:
        """Return the manifest in a BSON document.

        Raises:
            NotAStoreError: Another program wrote the document.
            StoreVersionError: The format is newer than this version of dbloader.
            DamagedStoreError: The document is damaged.
        """
        try:
            document = bson.decode(data)
        except UNREADABLE as error:
            raise DamagedStoreError(f"{place}: the manifest cannot be decoded: {error}") from error
        if document.get("format") != FORMAT:
            raise NotAStoreError(f"{place} is not a dbloader store")
        version = document.get("version")
        if not isinstance(version, int) or version > VERSION:
            raise StoreVersionError(
                f"{place} has format version {version!r:.20}; this dbloader reads versions up to {VERSION}: "
                "install a newer dbloader"
            )
        try:
            document = open_sealed(data)
        except ValueError as error:
            raise DamagedStoreError(
                f"{place}: the manifest is damaged: {error}; copy the store again from the original"
            ) from error
        values: dict[str, Any] = {}
        for known in fields(cls):
            value = document.get(known.name)
            if not _IS_VALID[known.name](value):
                raise DamagedStoreError(f"{place}: its manifest has no valid {known.name}: {value!r:.80}")
            values[known.name] = value
        if values["label_counts"] is not None:
            # A list for each pair would trigger the garbage collector, which takes 0.1 s in a process that uses torch.
            labels, counts = np.frombuffer(values["label_counts"], "<i8").reshape(-1, 2).T.tolist()
            values["label_counts"] = dict(zip(labels, counts, strict=True))
        for name in ("classes", "width", "height"):
            values[name] = tuple(values[name])
        return cls(**values)


def _list_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def _range_of_pixels(least: int, most: int) -> str:
    if not most:
        return ""
    return f"{most:,} pixels" if least == most else f"{least:,} to {most:,} pixels"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_range(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_count, value))


def _is_counts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_count, value.values()))


def _is_json(value: object, depth: int = 0) -> bool:
    """Return whether a value can be written as JSON."""
    if isinstance(value, (dict, list)):
        parts = value.values() if isinstance(value, dict) else value
        return depth < _MAX_DEPTH and all(_is_json(part, depth + 1) for part in parts)
    return value is None or isinstance(value, (bool, int, float)) or _is_text(value)


def _are_names(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(map(_is_text, value)))


def _is_text(value: object) -> bool:
    return type(value) is str  # isinstance would accept bson.Code, a str that cannot be hashed


# Each value is checked, because even a manifest with the right CRC-32 may come from another program.
_IS_VALID: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("length", "labelled", "named", "image_bytes", "events", "version"), _is_count),
    **dict.fromkeys(("width", "height"), _is_range),
    **dict.fromkeys(("formats", "depths", "fields", "outcome"), _is_counts),
    **dict.fromkeys(("created", "created_by"), _is_text),
    "columns": lambda value: isinstance(value, dict) and all(kind in KINDS for kind in value.values()),
    "salt": lambda value: _is_count(value) and value < 2**32,
    "digest": lambda value: isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef"),
    "classes": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "label_counts": lambda value: value is None or (isinstance(value, bytes) and len(value) % 16 == 0),
    "source": lambda value: (
        isinstance(value, dict)
        and _is_json(value)
        and _are_names(value.get(FILE_FIELDS))
        and (value.get(TARGET) is None or _is_text(value[TARGET]))
        and isinstance(value.get(FIELD_CLASSES) or {}, dict)
        and all(map(_are_names, (value.get(FIELD_CLASSES) or {}).values()))
    ),
}


class Summary:
    """Computes values of a manifest from the columns, chunk by chunk.

    Attributes:
        labels: The lowest and the highest label; None if no record has a label.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._kinds = KindFinder()
        self._labels: Counter[int] | None = Counter()
        self._labelled = self._named = self._image_bytes = 0
        self._sides: dict[str, tuple[int, int]] = {"width": (0, 0), "height": (0, 0)}
        self.labels: tuple[int, int] | None = None

    def add(self, chunk: dict[str, bytes]) -> None:
        """Add the next chunk of records. ``chunk`` maps the name of each column to its packed values."""
        values = {name: np.frombuffer(chunk[name], dtype) for name, dtype in DTYPES.items()}
        self._digest.update(chunk["crc32"])
        self._kinds.add({name: chunk[name] for name in chunk.keys() - {*COLUMNS}})
        labels = values["label"][values["label"] != NO_LABEL]
        self._labelled += len(labels)
        if len(labels):
            found = (int(labels.min()), int(labels.max()))
            least, greatest = self.labels or found
            self.labels = (min(least, found[0]), max(greatest, found[1]))
        if self._labels is not None:
            different, counts = np.unique(labels, return_counts=True)
            self._labels.update(dict(zip(different.tolist(), counts.tolist(), strict=True)))
            if len(self._labels) > MAX_COUNTED_LABELS:
                self._labels = None
        self._named += int(np.count_nonzero(values["name_hash"]))
        self._image_bytes += int(values["nbytes"].sum())
        for side, (least, greatest) in self._sides.items():
            known = values[side][values[side] > 0]
            if len(known):
                self._sides[side] = (min(least or 2**32, int(known.min())), max(greatest, int(known.max())))

    def facts(self, fields: Collection[str]) -> dict[str, Any]:
        """Return the computed values of the manifest. ``fields`` are the store's extra fields."""
        return {
            "digest": self._digest.hexdigest(),
            "label_counts": None if self._labels is None else dict(sorted(self._labels.items())),
            "labelled": self._labelled,
            "named": self._named,
            "image_bytes": self._image_bytes,
            "columns": self._kinds.columns(fields),
            **self._sides,
        }


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
        """Return the counters as dicts. A writer stores them with each commit, in the dict ``progress``."""
        return {name: dict(getattr(self, name)) for name in _COUNTERS}

    @classmethod
    def restore(cls, progress: Mapping[str, Any]) -> Totals:
        """Return the totals in the dict ``progress`` that a writer stored with a commit."""
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
        described = dict(source or {})
        if described.get(TARGET) == CLASS_LISTS:  # keep class names that a copied store already has
            described[FIELD_CLASSES] = {CLASS_LISTS: [*classes], **(described.get(FIELD_CLASSES) or {})}
        manifest = Manifest(
            length=self.length,
            salt=salt,
            classes=tuple(classes),
            formats=dict(sorted(self.formats.items())),
            depths=dict(sorted(self.depths.items())),
            fields=dict(sorted(self.fields.items())),
            outcome=dict(self.outcome),
            events=self.events,
            source=described,
            created=created or datetime.now(UTC).isoformat(timespec="seconds"),
            created_by=f"dbloader {__version__}",
            **summary.facts(self.fields),
        )
        try:
            Manifest.decode(manifest.encode(), place)
        except (*UNREADABLE, StoreError) as error:
            raise FieldError(f"{place} cannot be finished: {error}") from error
        return manifest
