"""What every store promises to those who write it, whatever it is kept in.

Each sentence of these docstrings is a test in tests/contracts/store.py, which every backend's tests inherit.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson

from dbloader._version import VERSION
from dbloader.errors import FieldError, StoreError, StoreExistsError
from dbloader.records.columns import CHUNK, ColumnChunk
from dbloader.records.document import UNREADABLE
from dbloader.records.manifest import Manifest, Summary
from dbloader.stores.write_buffer import WriteBuffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from typing_extensions import Self

    from dbloader.errors import DamagedStoreError
    from dbloader.records.record import EncodedRecord

# A commit costs a sync of the disk, which at 8 MiB is lost in the writing; more would only fall out of the
# processor's cache. A conversion that is killed loses at most two commits' work, ...
COMMIT_BYTES = 8 * 2**20
# ... or this much, where files come slowly.
COMMIT_SECONDS = 2.0


class Writer(ABC):
    """A store that is being written; used in a ``with`` block.

    Nothing can be read at the place before ``finish``, which publishes the whole store at once. Leaving the block
    without it leaves what was at the place before, and either nothing else or, if ``resumable``, what was
    committed, for another Writer with ``resume`` to go on with. While one process writes to a place, a second is
    refused.

    Args:
        overwrite: Replace the finished store at the place, when the new one is finished. Without ``resume``, begin
            again where an unfinished one is.
        resume: Go on after the last commit of an unfinished writer at the place; begin if none was interrupted. What
            an unfinished writer was to overwrite, this one overwrites too.
        resumable: Keep what was committed when the block is left without ``finish``.
        durable: Let each commit survive a crash of the whole machine, not only of the process. Without, writing to a
            file is faster, and what was committed is of no use after a restart of the machine; a finished store is
            always durable.

    Raises (on entering the block):
        StoreExistsError: A finished store is there and ``overwrite`` is not given; or an unfinished one, and
            neither ``overwrite`` nor ``resume`` is.
        StoreLockedError: Another process is writing there.
        StoreAccessError: The place may not be written.
    """

    commits_at_once = 1
    """How many times COMMIT_BYTES a commit has, where one costs more than a sync of the disk."""

    def __init__(
        self,
        place: str,
        *,
        overwrite: bool = False,
        resume: bool = False,
        resumable: bool = False,
        durable: bool = True,
    ) -> None:
        self.place = place
        self.overwrite = overwrite
        self.resume = resume
        self.resumable = resumable
        self.durable = durable
        self.settings: dict[str, Any] = {}
        self.position = 0
        self.resumed = False
        self.scratch: Path | None = None  # a folder with room for temporary files; None for the system's
        self.report_path = Path(f"{place}.report.jsonl")  # where a conversion's report is written as a file
        self.outcome: Counter[str] = Counter()
        self._formats: Counter[str] = Counter()
        self.depths: Counter[str] = Counter()
        self._fields: Counter[str] = Counter()
        self._pending = WriteBuffer()
        self._events_stored = 0
        self._finished = False
        self._only_begun = False  # nothing is committed but that an unfinished writer may overwrite
        self._process = os.getpid()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dbloader-commit")
        self._committing: Future[None] | None = None

    @property
    def length(self) -> int:
        """Records that have been written, those of a resumed writer included."""
        return self._pending.length

    def __enter__(self) -> Self:
        # Its thread begins now: an interrupt while it is begun would leave a commit that nobody could wait for.
        self._executor.submit(os.getpid).result()
        try:
            self._open()
        except BaseException:
            self._executor.shutdown()
            raise
        if self.overwrite and self.resumable and not self.resumed:
            # Killed from here on, a writer that resumes knows that it may overwrite.
            try:
                self.commit()
            except BaseException:
                self.__exit__(*sys.exc_info())
                raise
            self._only_begun = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if os.getpid() != self._process:
            return  # of a child that was forked within the block, in which the parent still is
        try:
            self._end_commit()
        except Exception:
            if error is None:  # or else the first error is the one to tell
                raise
        finally:
            self._executor.shutdown()
            self.resumable = self.resumable and not self._only_begun
            self._close()

    def agree(self, settings: Mapping[str, Any]) -> None:
        """Says what must be the same for a resumed conversion to give the same store.

        Args:
            settings: Values that BSON holds, by names that a person understands.

        Raises:
            StoreExistsError: A resumed conversion was begun with others.
        """
        settings = bson.decode(bson.encode(settings))  # as those of a resumed conversion are: a tuple is a list
        agreed = self.resumed and (self.settings or self.length)  # else it was interrupted before that
        for key in self.settings.keys() | settings.keys() if agreed else ():
            before, now = self.settings.get(key), settings.get(key)
            if before != now:
                raise StoreExistsError(
                    f"the unfinished conversion at {self.place} was begun with another {key} ({before}, now {now}): "
                    "resume with the same, or begin again with overwrite (--overwrite, without --resume)",
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
        """Add records, in order, with what there is to report of them; commits when that is due.

        Args:
            records: Their indices follow on those written before.
            events: What the report says of single files: ``name``, ``event`` (such as ``"rejected"``) and ``reason``.
            outcome: Counts to add to the manifest's ``outcome``.
            position: How far the source has been used up; a resumed writer has it in ``position``.
            depths: Counts to add to the manifest's ``depths``.

        Raises:
            FieldError: An event has other values than these three, each a str.
        """
        self._check_unfinished()
        for record in records:
            self._pending.add(record)
            if record.format is not None:
                self._formats[record.format] += 1
            for name in record.fields:
                self._fields[name] += 1
        self._pending.report(events)
        self.outcome.update(outcome or {})
        self.depths.update(depths or {})
        if position is not None:
            self.position = position
        if (
            self._pending.nbytes >= COMMIT_BYTES * self.commits_at_once
            or time.monotonic() - self._pending.began_at >= COMMIT_SECONDS
        ):
            self._begin_commit()

    def commit(self) -> None:
        """Make durable what has been written so far.

        Raises:
            StoreFullError: No room is left; what was committed before is kept.
        """
        self._begin_commit()
        self._end_commit()

    def _begin_commit(self) -> None:
        """Commit in the background; waits for the commit before, so that at most one is under way."""
        self._check_unfinished()
        self._end_commit()
        self._only_begun = False
        part = self._pending.take()
        progress = {
            "length": self.length,
            "position": self.position,
            "events": self._events_stored + len(part.events),
            "settings": self.settings,
            "overwrite": self.overwrite,
            "outcome": dict(self.outcome),
            "formats": dict(self._formats),
            "depths": dict(self.depths),
            "fields": dict(self._fields),
        }
        self._committing = self._executor.submit(self._store, *part, progress)
        self._events_stored += len(part.events)

    def _end_commit(self) -> None:
        if self._committing is not None:
            # Where it has failed, it is kept, to fail whatever comes next: records are missing.
            self._committing.result()
            self._committing = None

    def _check_unfinished(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(f"{self.place} is written by the process that began it; a forked one cannot go on with it")
        if self._finished:
            raise StoreError(f"{self.place} is finished: nothing can be written to it any more")

    def finish(
        self,
        *,
        classes: Sequence[str] = (),
        source: Mapping[str, Any] | None = None,
        created: str | None = None,
    ) -> Manifest:
        """Publish the store and return its manifest; nothing can be written afterwards.

        Args:
            classes: Name of each label from 0 on, if labels have names.
            source: Where the records came from, for people to read.
            created: UTC, ISO 8601; default now.

        Raises:
            FieldError: A label has no class; or the classes or the source are not what a manifest can say.
            StoreExistsError: A store has come to the place that is not to be replaced.
            StoreFullError: No room is left.
        """
        self.commit()
        summary = Summary()
        for number in range(-(-self.length // CHUNK)):
            summary.add(self._stored_chunk(number))
        for label in (summary.labels or ()) if classes else ():
            if not 0 <= label < len(classes):
                raise FieldError(f"label {label} is not one of the {len(classes)} classes (0 to {len(classes) - 1})")
        manifest = Manifest(
            length=self.length,
            classes=tuple(classes),
            formats=dict(sorted(self._formats.items())),
            depths=dict(sorted(self.depths.items())),
            fields=dict(sorted(self._fields.items())),
            outcome=dict(self.outcome),
            events=self._events_stored,
            source=dict(source or {}),
            created=created or datetime.now(timezone.utc).isoformat(timespec="seconds"),
            created_by=f"dbloader {VERSION}",
            **summary.facts(),
        )
        try:
            Manifest.decode(manifest.encode(), self.place)
        except (*UNREADABLE, StoreError) as error:
            raise FieldError(f"{self.place} cannot be finished: {error}") from error
        self._publish(manifest)
        self._finished = True
        return manifest

    def _restore(self, progress: Mapping[str, Any]) -> None:
        """Take up what ``commit`` stored.

        Raises:
            DamagedStoreError: It is not what ``commit`` stores.
        """
        try:
            self.settings = dict(progress["settings"])
            self.position = int(progress["position"])
            self.overwrite = self.overwrite or bool(progress["overwrite"])
            self.outcome = Counter(progress["outcome"])
            self._formats = Counter(progress["formats"])
            self.depths = Counter(progress["depths"])
            self._fields = Counter(progress["fields"])
            self._events_stored = int(progress["events"])
            self._pending = WriteBuffer(int(progress["length"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged(f"how far it has come cannot be read: {error!r}") from error
        self.resumed = True
        if self.length % CHUNK:
            self._pending = WriteBuffer(self.length, ColumnChunk.unpack(self._stored_chunk(self.length // CHUNK)))

    @abstractmethod
    def _damaged(self, what: str) -> DamagedStoreError:
        """Return the error for an unfinished store that cannot be used."""

    @abstractmethod
    def _open(self) -> None:
        """Take the place for this process, and takes up what is to be resumed."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of the place; removes what is neither finished nor to be resumed."""

    @abstractmethod
    def _store(
        self,
        first: int,
        documents: Sequence[bytes],
        chunks: Mapping[int, Mapping[str, bytes]],
        events: Sequence[Mapping[str, Any]],
        progress: Mapping[str, Any],
    ) -> None:
        """Store all of this at once and durably: either all of it is there afterwards or none.

        Runs in a thread of its own, while the next records come in.
        """

    @abstractmethod
    def _stored_chunk(self, number: int) -> dict[str, bytes]:
        """Return the packed columns of one chunk."""

    @abstractmethod
    def _publish(self, manifest: Manifest) -> None:
        """Write the manifest and makes the store the one at the place."""
