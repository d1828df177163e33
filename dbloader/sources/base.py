"""The contract of a source: which files become records, in which order, with which label."""

from __future__ import annotations

import errno
import json
import os
import stat
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader._describe import counted, short_repr
from dbloader._options import check_path, checked_names
from dbloader.errors import OptionError, SourceError, SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from dbloader.stores.base import Store

# These errors concern the machine, not the file. If the conversion continued, it would reject good files.
NOT_THE_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# The network file system cannot be reached, so all files fail.
_UNREACHABLE = (errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.ETIMEDOUT)
# A bad part of a disk causes these errors for one file. A removed disk, or an NFS server that does not answer, causes
# these errors for all files.
_FAILED = (errno.EIO, errno.EREMOTEIO)
# A record is a BSON document, which must be smaller than 2 GiB. 64 KiB remain for everything but the image.
MAX_BYTES = 2**31 - 2**16
_MAX_EXTENSIONS = 1000  # count no more extensions, because files called x.0001, x.0002, … could fill the memory

# Values of ``Entry.fields`` with these keys become attributes of the record, not extra fields. Such keys occur if the
# source is a store or an export of a store. If ``name`` is None, the record has no name.
KEPT_FIELDS = ("name", "damaged", "resized_from")


@dataclass(frozen=True)
class Listing:
    """A table of image paths and labels. If `convert` recognizes its columns, give `convert` only the table's path.

    Args:
        path: Path of the file.
        image: Column with the paths of the images. A path may lack its extension.
        label: Column with the labels, or one column of 1 and 0 (or -1) for each class. ``"*"`` means all other columns.
        separator: Text between two classes in one label, such as ``"|"``.
        text: Columns of a CSV or TSV file to keep as text, even if all values look like numbers or booleans.

    Raises:
        TypeError: ``path`` is neither a str nor a path.
        OptionError: An option is not text, or ``separator`` is given with several columns of labels.
    """

    path: str | os.PathLike[str]
    image: str | None = None
    label: str | Sequence[str] = ()
    separator: str | None = None
    text: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        check_path("listing", self.path)
        for option in ("label", "text"):
            names = getattr(self, option)
            names = (names,) if isinstance(names, str) else checked_names(option, names or (), "('breed', 'age')")
            object.__setattr__(self, option, names)
        for option in ("image", "separator"):
            value = getattr(self, option)
            if value is not None and not (isinstance(value, str) and value):
                raise OptionError(f"{option} of a Listing must be text, got {short_repr(value)}")
        if len(self.label) > 1 and self.separator:
            raise OptionError(
                "separator (--separator) splits the labels of one column: leave it out, or name one column"
            )

    @classmethod
    def of(cls, listing: str | os.PathLike[str] | Listing) -> Listing:
        """Return the argument if it is a Listing, else make a Listing from the path."""
        return listing if isinstance(listing, Listing) else cls(listing)

    def named(self) -> dict[str, Any]:
        """Return the options that the user has given, without the path."""
        options = {"image": self.image, "label": [*self.label], "separator": self.separator, "text": [*self.text]}
        return {name: value for name, value in options.items() if value}


class FieldFile(NamedTuple):
    """A file that is stored in a field of a record, such as a mask."""

    name: str  # for messages
    location: tuple[Any, ...]  # like the location of an Entry


class Entry(NamedTuple):
    """A file to be converted."""

    name: str  # path below the root, POSIX, always valid UTF-8: the name of the record
    # Where the source finds the file. In most sources the location is ``(path,)``: the path in bytes, relative to the
    # root or absolute. Other sources use keys or numbers of their own. A conversion stores locations as BSON.
    location: tuple[Any, ...]
    label: int | None  # index of the class, or the integer of a listing; None without a label
    fields: dict[str, Any]  # all other values from the source; keys are names of fields or in KEPT_FIELDS
    # Width and height, in pixels, of the image that fields["boxes"] fits. (1, 1): boxes are fractions of the width and
    # height. (0, 0): boxes are in pixels, but the source does not give the size of the image.
    boxes_in: tuple[int, int] | None = None  # None without boxes
    files: dict[str, FieldFile] = {}  # by the name of the field, which is None until `load` reads the file  # noqa: RUF012


class Loaded(NamedTuple):
    """The bytes of a file, and its entry. Reading the file may have added fields to the entry."""

    entry: Entry
    data: bytes


class Problem(NamedTuple):
    """A file or row that cannot be converted. ``name`` is the file's name in valid UTF-8, or ``"row 17"``."""

    name: str
    reason: str


class Unreadable(Problem):
    """A file that the file system failed to read. The file system may fail for all other files too."""


@dataclass
class Tally:
    """The report of one iteration over a source: warnings, and how many files were left out."""

    warnings: list[str] = field(default_factory=list)  # sentences about the source as a whole, for people
    # Number of files that are not images, by extension; "" for files without one.
    skipped: Counter[str] = field(default_factory=Counter)
    hidden: int = 0  # number of names that begin with a dot
    metadata: str = ""  # path of the first metadata file that is not used
    not_utf8: int = 0  # number of names with invalid bytes
    not_utf8_example: str = ""
    system: set[str] = field(default_factory=set)  # paths of folders that a Mac, a NAS or Windows has added
    backslashes: int = 0  # number of names with a backslash; it was read as /
    files: int = 0  # number of images; only some sources count them
    beside: Counter[str] = field(default_factory=Counter)  # number of files beside images, by the name of their field

    def count_beside(self, fields: Iterable[str]) -> None:
        """Count an image, and the files beside it."""
        self.files += 1
        self.beside.update([*fields])  # a list, because a Counter would add the values of a dict

    def in_words(self) -> Iterator[str]:
        """Yield lines about files beside images, about names, and about folders that were left out."""
        if self.beside:
            counts = [f"{name} ({n:,} of {counted(self.files, 'image')})" for name, n in sorted(self.beside.items())]
            yield f"fields: {', '.join(counts)}, from the file beside each"
        if self.backslashes:
            yield f"names: \\ was read as / in {self.backslashes:,}"
        if self.system:
            names = Counter(sorted(path.rpartition("/")[2] for path in self.system)).most_common(5)
            yield f"left out: {', '.join(f'{name} ({n:,})' for name, n in names)}, added by a Mac, a NAS or Windows"

    def skip(self, name: bytes) -> None:
        """Count a file that is not an image, by its extension."""
        _, dot, tail = name.rpartition(b".")
        extension = readable(dot + tail).lower() if dot else ""
        if len(self.skipped) >= _MAX_EXTENSIONS and extension not in self.skipped:
            extension = "other"
        self.skipped[extension] += 1


class Entries:
    """Iterates over a result of ``Source.entries``. After the iteration, ``tally`` is the generator's return value."""

    tally: Tally

    def __init__(self, entries: Generator[Entry | Problem, None, Tally]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[Entry | Problem]:
        self.tally = yield from self._entries


def count_bytes(fields: dict[str, Any], names: Iterable[str]) -> int:
    """Return the total size in bytes of the files in the fields called ``names``. A field without a file counts 0."""
    return sum(len(value) for value in map(fields.get, names) if isinstance(value, bytes))


class Source(ABC):
    """A stream of entries. While the files do not change, each iteration yields the same entries.

    Memory does not grow with the number of entries. Each iterator belongs to one thread.
    """

    follows: tuple[str, ...] = ()  # options of `Reading` that affect how this source is read
    numbers_classes = False  # whether the files give the classes numbers, as COCO's files do
    has_columns = False  # whether this source has columns, which the options of a `Listing` can name
    asks_again = False  # whether to read a bad file once more: the network may have corrupted its bytes

    def __init__(self, root: Path, classes: tuple[str, ...], warnings: Iterable[str] = (), *, place: str = "") -> None:
        self.root = root  # relative paths start from this folder
        self.place = place or full_path(root)  # for messages
        self.classes = classes  # names in the order of their labels; empty if they are unknown
        self.given_classes: tuple[str, ...] | None = None  # classes that the user gives, see `use_classes`
        self.label_table: Sequence[int] | None = None  # maps an entry's label to the stored label; None changes nothing
        self.warnings = tuple(warnings)  # sentences about the source as a whole, for people; see also Tally.warnings
        self.stores: tuple[Store, ...] = ()  # stores that this source reads
        self.file_fields: tuple[str, ...] = ()  # extra fields whose values are image files
        self.field_classes: dict[str, list[str]] = {}  # class names of integer fields, by field name
        self.target = ""  # the field that training predicts, in place of the label
        self.understood: tuple[str, ...] = ()  # how the source is read, for people
        self.beside = Tally()  # counts the unread files in the folder of the tars, tables or LMDB file
        self.compressed = ""  # path of the first compressed tar, which must be decompressed whole; "" if there is none

    @property
    def stored_classes(self) -> tuple[str, ...]:
        """Classes to store: the classes that the user gives, else the classes of the source."""
        return self.classes if self.given_classes is None else self.given_classes

    @abstractmethod
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        """Yield every file to convert, and every problem, in order; return what was left out.

        Raises:
            SourceError: The source is unusable.
        """

    def late(self, listed: Iterable[Entry | Problem]) -> Iterator[dict[str, str]]:
        """Yield a report line for each file that was added to the folder after ``listed`` was made."""
        yield from ()

    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Loaded | Problem]:
        """Yield the bytes of each entry's file, or a Problem. Any thread may call ``read``.

        To limit memory, ``read`` calls ``hold`` with a number of bytes, if possible before it reads them. ``hold`` may
        wait. ``read`` raises an OSError only if the machine fails. This implementation reads files. A location is
        (path,), or (path, start, number of bytes) for a part of a file.
        """
        for entry in entries:
            path, *part = entry.location
            yield read_file(entry.name, os.path.join(os.fsencode(self.root), path), hold, *part)  # noqa: PTH118 - bytes

    def load(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Loaded | Problem]:
        """Call ``read``, and also read each entry's ``files`` into its fields."""
        if not self.file_fields and not any(entry.files for entry in entries):
            yield from self.read(entries, hold)
            return
        parts = ((entry, *(Entry(*file, None, {}) for file in entry.files.values())) for entry in entries)
        contents = self.read([*chain.from_iterable(parts)], hold)
        for entry in entries:
            data, fields = next(contents), dict(entry.fields)
            if not isinstance(data, Problem):
                hold(count_bytes(data.entry.fields if isinstance(data, Loaded) else fields, self.file_fields))
            for key, (name, *_) in entry.files.items():
                file = next(contents)
                if isinstance(file, Problem):
                    if not isinstance(data, Problem):
                        data = type(file)(entry.name, f"its {key} {name} {file.reason}")
                    continue
                assert isinstance(file, bytes)
                try:
                    fields[key] = file if key in self.file_fields else field_value(key, file)
                except (ValueError, RecursionError) as error:
                    data = Problem(entry.name, f"its {name} cannot be the field {key!r}: {error}")
            yield Loaded(entry._replace(fields=fields), data) if entry.files and isinstance(data, bytes) else data

    def differs(self, entry: Entry) -> bool | None:
        """Return None unless a server's ETag contradicts an entry's bytes. Else return whether its ETags are MD5s."""
        return None  # overridden for object storage

    def in_words(self, tally: Tally) -> list[str]:
        """Return how the files were read, in at most six lines, for people."""
        labels = name_range(self.classes, self.label_table) if self.classes else "as stored, without names of classes"
        read = self.understood or (f"images: {self.place}", f"labels: {labels}")
        return [*read, *tally.in_words()][:6]

    def close(self) -> None:  # noqa: B027 - most sources open nothing
        """Close what ``read`` has opened."""


def name_range(classes: Sequence[str], labels: Sequence[int] | None = None) -> str:
    """Return text: how many classes there are, and the labels of the first and last; by default, their positions."""
    labels = range(len(classes)) if labels is None else labels
    last = f" and {short_repr(classes[-1], 40)} is {labels[-1]:,}" * (len(classes) > 1)
    return f"{counted(len(classes), 'class')}, {short_repr(classes[0], 40)} is {labels[0]:,}{last}"


def field_value(extension: str, data: bytes) -> Any:
    """Return a file as the value of a field: JSON, text (txt) or bytes. Raise ValueError for wrong UTF-8 or JSON."""
    if data.startswith(b"version https://git-lfs"):
        raise ValueError("it is a pointer of Git LFS: run git lfs pull, and convert again")
    if extension == "json":
        return json.loads(data)
    return data.decode("utf-8-sig") if extension == "txt" else data


def read_file(
    name: str,
    path: bytes,
    hold: Callable[[int], object],
    start: int = 0,
    wanted: int | None = None,
    *,
    opened: int | None = None,
) -> bytes | Problem:
    """Return bytes of a file, or a Problem. Raise an OSError only if the machine fails.

    ``wanted`` is the number of bytes to read from ``start`` on; None means all. ``opened`` is an open descriptor of the
    file. It stays open. If it is None, ``path`` is opened.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would wait forever.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags) if opened is None else os.dup(opened)
        try:
            status = os.fstat(descriptor)
            size = status.st_size if wanted is None else wanted
            if stat.S_ISDIR(status.st_mode):
                return Problem(name, "is a folder, not a file")
            if not stat.S_ISREG(status.st_mode):
                return Problem(name, "is not a regular file")
            if size > MAX_BYTES:
                return Problem(name, f"has {size:,} bytes, more than a record can hold ({MAX_BYTES:,})")
            there = min(size, max(status.st_size - start, 0))  # a tar's header may give too large a size
            hold(there)
            data = os.pread(descriptor, there, start) if there else b""  # a wrong start may be too large for pread
            while len(data) < there and (more := os.pread(descriptor, there - len(data), start + len(data))):
                data += more
            now = os.fstat(descriptor)
            if wanted is None and (now.st_size, now.st_mtime_ns) != (size, status.st_mtime_ns):
                return Problem(name, "was changed by another process while it was read")
            if wanted is not None and len(data) < size:
                return Problem(name, f"is cut short: {readable(path)} ends after {len(data):,} of its {size:,} bytes")
            return data
        finally:
            os.close(descriptor)
    except OSError as error:
        return problem_of(error, name, path)


def problem_of(error: OSError, name: str, path: bytes) -> Problem:
    """Return why a file cannot be read; raise the error if the machine has failed."""
    if error.errno in NOT_THE_FILE:
        raise error
    if error.errno in _UNREACHABLE:
        raise SourceError(f"{readable(path)} cannot be read: {error.strerror}; is its disk there?") from error
    return (Unreadable if error.errno in _FAILED else Problem)(name, f"cannot be read: {error.strerror or error}")


def checked_root(folder: str | os.PathLike[str]) -> Path:
    """Return the path of a folder. Raise SourceError if the folder does not exist or cannot be read."""
    if not os.fspath(folder).strip():  # pathlib reads "" as the working directory
        raise SourceError(f"the source must be the path of a folder, got {folder!r} (the working directory is '.')")
    root = Path(folder)
    try:
        mode = root.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceNotFoundError(f"{readable(root)}: there is no such folder or file") from error
    except OSError as error:
        raise SourceError(f"{readable(root)}: the folder cannot be read: {error.strerror}") from error
    if not stat.S_ISDIR(mode):
        raise SourceError(
            f"{readable(root)}: convert cannot read this file: give a folder of images, or a tar, zip, Parquet, "
            "Arrow or LMDB file. With --listing, give the folder where its paths start"
        )
    return root


def readable(path: bytes | str | os.PathLike[str]) -> str:
    r"""Return a path as valid text. Each byte that is not UTF-8 is escaped, as in ``\xe9``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def full_path(path: str | os.PathLike[str]) -> str:
    """Return an absolute path as valid text, the same for every spelling of the path.

    Symbolic links are kept. Only a path with ``..`` is resolved, because the meaning of ``..`` depends on the links.
    """
    full = Path(path).absolute()
    if ".." in full.parts:
        full = full.resolve()
    return "/" + readable(full).lstrip("/")  # pathlib keeps two leading slashes
