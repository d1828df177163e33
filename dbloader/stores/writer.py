"""Write a store. tests/contracts checks each promise of Writer."""

from __future__ import annotations

import os
import secrets
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import bson

from dbloader._options import checked_flag
from dbloader.errors import StoreError, StoreExistsError
from dbloader.records.columns import CHUNK, ColumnChunk, seal_chunk
from dbloader.records.document import open_sealed
from dbloader.records.manifest import Summary, Totals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from dbloader.errors import DamagedStoreError
    from dbloader.records.manifest import Manifest
    from dbloader.records.record import EncodedRecord

# A killed conversion loses at most two commits. At 8 MiB, the conversion rarely waits for the disk, and a commit still
# fits into the CPU's cache.
COMMIT_BYTES = 8 * 2**20
# A commit also begins after this time, so a killed conversion loses little even if files arrive slowly.
COMMIT_SECONDS = 2.0


class Commit(NamedTuple):
    """The content of one commit.

    Attributes:
        first: Index of the first record.
        documents: The records' BSON documents.
        chunks: Changed chunks of columns. ``chunks[number][column]`` is the packed chunk, followed by its CRC-32.
        events: New lines of the report.
    """

    first: int
    documents: list[bytes]
    chunks: dict[int, dict[str, bytes]]
    events: list[dict[str, str]]


class Writer(ABC):
    """A store that is being written. Use it in a ``with`` block.

    ``place`` is the path or URI of the store. Nothing changes there before ``finish`` publishes the whole store. If the
    block ends without ``finish``, a ``resumable`` Writer keeps the committed records. Another Writer with ``resume``
    continues after these records. Only one process at a time can write to a place.

    Args:
        overwrite: Let ``finish`` replace a finished store. Without ``resume``, also discard an unfinished store.
        resume: Continue after the last commit of an unfinished store. Without an unfinished store, begin a new store.
            If the unfinished store was begun with ``overwrite``, this writer overwrites too.
        resumable: Keep committed records if the block ends without ``finish``.

    Raises:
        TypeError: ``overwrite``, ``resume`` or ``resumable`` is not True or False.

    Raises (on entering the block):
        StoreExistsError: The place has a finished store, and ``overwrite`` is False. Or the place has an unfinished
            store, and both ``overwrite`` and ``resume`` are False.
        StoreLockedError: Another process is writing to the place.
        StoreAccessError: The place cannot be written.
    """

    commit_factor = 1
    """A commit begins after COMMIT_BYTES times this factor. A backend with slow commits sets a larger factor."""

    @abstractmethod
    def _open(self) -> None:
        """Lock the path or URI of the store for this process, and call ``_restore`` to resume an unfinished store."""

    @abstractmethod
    def _close(self) -> None:
        """Unlock the path or URI of the store. Remove the store, unless it is published or resumable."""

    @abstractmethod
    def _store(self, commit: Commit, progress: Mapping[str, Any]) -> None:
        """Store a commit durably: all of its content, or nothing. This method runs in the committer's thread."""

    @abstractmethod
    def _stored_chunk(self, number: int) -> dict[str, bytes]:
        """Return the packed columns of one chunk, by column name. ``number`` counts the chunks from 0 on."""

    @abstractmethod
    def _publish(self, manifest: Manifest) -> None:
        """Write the manifest, and move the store to its path or URI."""

    @abstractmethod
    def _damaged(self, what: str) -> DamagedStoreError:
        """Return the error for an unfinished store that is too damaged to be resumed."""

    def __init__(self, place: str, *, overwrite: bool = False, resume: bool = False, resumable: bool = False) -> None:
        self.place = place
        self.overwrite = checked_flag("overwrite", overwrite)
        self.resume = checked_flag("resume", resume)
        self.resumable = checked_flag("resumable", resumable)
        self.settings: dict[str, Any] = {}
        self.salt = secrets.randbits(32)  # the manifest's salt
        self.position = 0  # number of items of the source, such as files, that are written or rejected
        self.resumed = False  # whether this writer continues an unfinished store
        self.totals = Totals()
        self.scratch: Path | None = None  # a folder for large temporary files; None for the system's default folder
        self.report_path = Path(f"{place}.report.jsonl")
        self._finished = False
        self._process = os.getpid()
        self._chunk = ColumnChunk()
        self._fields: set[str] = set()  # extra fields that already have packed chunks
        # One commit runs in a thread while the caller prepares the next records.
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="dbloader-commit")
        self._running: Future[None] | None = None
        self._empty_buffer()

    @property
    def length(self) -> int:
        """Number of records written so far. A resumed writer also counts the records that were committed before."""
        return self.totals.length

    def __enter__(self) -> Self:
        # Start the thread before the first commit: Ctrl-C while the thread starts could leave a commit running.
        self._committer.submit(os.getpid).result()
        with ExitStack() as undo:
            undo.callback(self._committer.shutdown)
            self._open()
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if os.getpid() != self._process:
            return  # this process is a forked child, and its parent is still in the block
        try:
            if error is None:  # otherwise a failed commit would hide the block's own error
                self._wait()
        finally:
            self._committer.shutdown()
            self._close()

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuse to resume with other settings. All records of a store must be made with the same settings.

        Args:
            settings: Settings by name, with values that BSON can store. The error shows the old and the new value.

        Raises:
            StoreExistsError: The unfinished store was begun with other settings.
        """
        settings = bson.decode(bson.encode(settings))  # turns tuples into lists, as in stored settings
        # A conversion that was interrupted before its first call of this method has no settings and no records.
        if self.resumed and (self.settings or self.length):
            for key in self.settings.keys() | settings.keys():
                before, now = self.settings.get(key), settings.get(key)
                if before != now:
                    remedy = "resume with the same value, or begin again with overwrite (--overwrite, without --resume)"
                    raise StoreExistsError(
                        f"the unfinished conversion at {self.place} was begun with another {key} ({before}, "
                        f"now {now}): {remedy}"
                    )
        self.settings = dict(settings)

    def write(
        self,
        records: Iterable[EncodedRecord],
        *,
        events: Iterable[Mapping[str, Any]] = (),
        outcome: Mapping[str, int] | None = None,
        position: int | None = None,
        depths: Mapping[str, int] | None = None,
    ) -> None:
        """Add records and lines of the report. Begin a commit after COMMIT_BYTES or COMMIT_SECONDS.

        Args:
            records: Records to add. Their indices follow the last index.
            events: Lines of the report: ``name``, ``event`` (such as ``"rejected"``) and ``reason``.
            outcome: Number of new files with each outcome, such as ``"repaired"``, for the manifest's counts.
            position: Number of the source's items finished so far. A resumed writer begins with the committed number.
            depths: Number of new images with each bit depth, such as ``"16-bit"``, for the manifest's counts.
        """
        self._check_unfinished()
        for record in records:
            self._add(record)
        self._buffer.events.extend(map(dict, events))
        self.totals.outcome.update(outcome or {})
        self.totals.depths.update(depths or {})
        if position is not None:
            self.position = position
        full = self._nbytes >= COMMIT_BYTES * self.commit_factor
        if full or time.monotonic() - self._emptied_at >= COMMIT_SECONDS:
            self._begin_commit()

    def _add(self, record: EncodedRecord) -> None:
        document = record.document(self.length, self.salt)
        self._buffer.documents.append(document)
        self._nbytes += len(document)
        self._chunk.append(record)
        self.totals.add(record)
        if len(self._chunk) == CHUNK:
            self._pack((self.length - 1) // CHUNK)
            self._chunk = ColumnChunk()

    def _pack(self, number: int) -> None:
        for earlier, packed in self._chunk.pack_columns(number, self._fields):
            sealed = {name: seal_chunk(name, earlier, chunk, self.salt) for name, chunk in packed.items()}
            self._buffer.chunks.setdefault(earlier, {}).update(sealed)

    def _empty_buffer(self) -> None:
        self._buffer = Commit(self.length, [], {}, [])
        self._nbytes = 0  # total size of the documents in the buffer
        self._emptied_at = time.monotonic()

    def commit(self) -> None:
        """Commit, and wait until all records are on the disk.

        Raises:
            StoreFullError: No room is left. Earlier commits are kept.
        """
        self._begin_commit()
        self._wait()

    def _begin_commit(self) -> None:
        """Wait for the running commit, and begin the next commit."""
        self._check_unfinished()
        if len(self._chunk):
            self._pack(self.length // CHUNK)
        commit = self._buffer
        self._empty_buffer()
        self.totals.events += len(commit.events)
        progress: dict[str, Any] = {"length": self.length, "position": self.position, "events": self.totals.events}
        progress |= {"salt": self.salt, "settings": self.settings, "overwrite": self.overwrite, **self.totals.counts()}
        self._wait()
        self._running = self._committer.submit(self._store, commit, progress)

    def _wait(self) -> None:
        """Wait for the running commit. If it fails, this call and every later call raise the commit's error."""
        if self._running is not None:
            self._running.result()
            self._running = None

    def _check_unfinished(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(f"{self.place} can be written only by the process that began it, not by a forked process")
        if self._finished:
            raise StoreError(f"{self.place} is finished: nothing more can be written to it")

    def discard(self) -> None:
        """Make this writer not resumable: the store is removed if the block ends without ``finish``."""
        self.resumable = False

    def finish(
        self, *, classes: Sequence[str] = (), source: Mapping[str, Any] | None = None, created: str | None = None
    ) -> Manifest:
        """Publish the store and return its manifest. Nothing can be written afterwards.

        Args:
            classes: Name of each label from 0 on; empty if labels have no names.
            source: A description of the records' source. Manifest's properties read some of its keys.
            created: Time in UTC, ISO 8601; None for now.

        Raises:
            FieldError: A label has no class, or the manifest cannot store the classes or the source.
            StoreExistsError: Another process has made a store at the place, and ``overwrite`` is False.
            StoreFullError: No room is left.
        """
        self.commit()
        summary = Summary()
        for number in range(-(-self.length // CHUNK)):
            summary.add(self._stored_chunk(number))
        manifest = self.totals.manifest(
            self.place, summary, salt=self.salt, classes=classes, source=source, created=created
        )
        self._publish(manifest)
        self._finished = True
        return manifest

    def _unfinished(self) -> StoreExistsError:
        remedy = "resume (--resume) continues it, overwrite (--overwrite) discards it and begins again"
        return StoreExistsError(f"{self.place} has an unfinished conversion: {remedy}")

    def _refuse_finished(self) -> None:
        """Raise StoreExistsError if this writer may not overwrite the finished store at the place."""
        if self.overwrite:
            return
        if self.resumed:
            raise StoreExistsError(
                f"another process has made {self.place} since this conversion began: move that store away, then resume"
            )
        if self.resume:
            raise StoreExistsError(
                f"{self.place} is already finished: there is nothing to resume; overwrite (--overwrite) replaces it"
            )
        raise StoreExistsError(f"{self.place} exists already; overwrite (--overwrite) replaces it")

    def _restore(self, sealed: bytes) -> None:
        """Restore this writer from the progress that the last commit stored."""
        try:
            progress = open_sealed(sealed)
            self.settings = dict(progress["settings"])
            self.position = int(progress["position"])
            self.overwrite = self.overwrite or bool(progress["overwrite"])
            self.totals = Totals.restore(progress)
            self.salt = int(progress["salt"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged(f"its progress cannot be read: {error!r}") from error
        self.resumed = True
        self._fields = set(self.totals.fields)
        if self.length % CHUNK:
            self._chunk = ColumnChunk.unpack(self._stored_chunk(self.length // CHUNK))
        self._empty_buffer()
