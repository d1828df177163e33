"""The store that conversions write. Each promise of these docstrings is a test in tests/contracts."""

from __future__ import annotations

import os
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import bson

from dbloader._options import checked_flag
from dbloader.errors import StoreError, StoreExistsError
from dbloader.records.columns import CHUNK, ColumnChunk
from dbloader.records.document import open_sealed
from dbloader.records.manifest import Summary
from dbloader.stores.totals import Totals
from dbloader.stores.write_buffer import Committer, WriteBuffer
from dbloader.stores.writer_backend import WriterBackend

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from dbloader.records.manifest import Manifest
    from dbloader.records.record import EncodedRecord

# A commit waits for the disk, which takes little of the time that writing 8 MiB takes. More would fall out of the
# CPU's cache. A killed conversion loses at most the work of two commits ...
COMMIT_BYTES = 8 * 2**20
# ... or of this time, where files come slowly.
COMMIT_SECONDS = 2.0


class Writer(WriterBackend):
    """A store that is being written; used in a ``with`` block.

    Nothing can be read at the place before ``finish``, which publishes the whole store at once. Leaving the block
    without it leaves what was at the place before, and nothing else; or, if ``resumable``, also what was committed, for
    another Writer with ``resume``. While one process writes to a place, a second is refused.

    Args:
        overwrite: Replace the store at the place when the new one is finished. Without ``resume``, discard an
            unfinished one.
        resume: Go on after the last commit of an unfinished writer at the place, or begin if there is none. It also
            overwrites what the unfinished writer was to overwrite.
        resumable: Keep what was committed when the block is left without ``finish``.

    Raises:
        TypeError: ``overwrite``, ``resume`` or ``resumable`` is not True or False.

    Raises (on entering the block):
        StoreExistsError: A finished store is there and ``overwrite`` is not given; or an unfinished one, and
            neither ``overwrite`` nor ``resume`` is.
        StoreLockedError: Another process is writing there.
        StoreAccessError: The place may not be written.
    """

    def __init__(self, place: str, *, overwrite: bool = False, resume: bool = False, resumable: bool = False) -> None:
        self.place = place
        self.overwrite = checked_flag("overwrite", overwrite)
        self.resume = checked_flag("resume", resume)
        self.resumable = checked_flag("resumable", resumable)
        self.settings: dict[str, Any] = {}
        self.position = 0  # how much of the source has been used up
        self.resumed = False  # whether it goes on with an unfinished writer
        self.replaces = False  # whether a finished store is at the place
        self.totals = Totals()
        self.scratch: Path | None = None  # a folder with room for temporary files; None for the system's
        self.report_path = Path(f"{place}.report.jsonl")  # the file that the report is written to
        self._buffer = WriteBuffer(secrets.randbits(32))
        self._finished = False
        self._only_begun = False  # the one commit says only that an unfinished writer may overwrite
        self._process = os.getpid()
        self._committer = Committer()

    @property
    def length(self) -> int:
        """Records written so far, those of a resumed writer included."""
        return self._buffer.length

    @property
    def salt(self) -> int:
        """That of the manifest; a resumed writer keeps it."""
        return self._buffer.salt

    def __enter__(self) -> Self:
        self._committer.start()
        try:
            self._open()
        except BaseException:
            self._committer.close()
            raise
        if self.overwrite and self.resumable and not self.resumed:
            try:
                self.commit()  # nothing but that this writer may overwrite, for one that resumes after a kill
            except BaseException:
                self.__exit__(*sys.exc_info())
                raise
            self._only_begun = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if os.getpid() != self._process:
            return  # a child that was forked within the block, which the parent has not left
        try:
            self._committer.wait()
        except Exception:
            if error is None:  # otherwise the first error is the one to raise
                raise
        finally:
            self._committer.close()
            self.resumable = self.resumable and not self._only_begun
            self._close()

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuse to resume with settings that would give another store.

        Args:
            settings: Values that BSON holds, by names that a person understands.

        Raises:
            StoreExistsError: The unfinished writer had other settings.
        """
        settings = bson.decode(bson.encode(settings))  # so that they compare with stored ones: a tuple becomes a list
        known = self.resumed and (self.settings or self.length)  # else it was interrupted before this call
        for key in self.settings.keys() | settings.keys() if known else ():
            before, now = self.settings.get(key), settings.get(key)
            if before != now:
                raise StoreExistsError(
                    f"the unfinished conversion at {self.place} was begun with another {key} ({before}, now {now}): "
                    "resume with the same, or begin again with overwrite (--overwrite, without --resume)"
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
        """Add records and lines of the report, and commit when that is due.

        Args:
            records: Records in order. Their indices follow those written before.
            events: Lines of the report: ``name``, ``event`` (such as ``"rejected"``) and ``reason``.
            outcome: Counts to add to the manifest's ``outcome``.
            position: How much of the source has been used up. A resumed writer has it in ``position``.
            depths: Counts to add to the manifest's ``depths``.

        Raises:
            FieldError: A line has other values than these three, each a str.
        """
        self._check_unfinished()
        for record in records:
            self._buffer.add(record)
            self.totals.add(record)
        self._buffer.report(events)
        self.totals.outcome.update(outcome or {})
        self.totals.depths.update(depths or {})
        if position is not None:
            self.position = position
        full = self._buffer.nbytes >= COMMIT_BYTES * self.commits_at_once
        if full or time.monotonic() - self._buffer.began_at >= COMMIT_SECONDS:
            self._begin_commit()

    def commit(self) -> None:
        """Wait until all that was written so far is on the disk.

        Raises:
            StoreFullError: No room is left. What was committed before is kept.
        """
        self._begin_commit()
        self._committer.wait()

    def _begin_commit(self) -> None:
        self._check_unfinished()
        self._only_begun = False
        commit = self._buffer.take()
        self.totals.events += len(commit.events)
        progress: dict[str, Any] = {"length": self.length, "position": self.position, "events": self.totals.events}
        progress |= {"salt": self.salt, "settings": self.settings, "overwrite": self.overwrite, **self.totals.counts()}
        self._committer.begin(self._store, commit, progress)

    def _check_unfinished(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(f"{self.place} is written by the process that began it; a forked one cannot go on with it")
        if self._finished:
            raise StoreError(f"{self.place} is finished: nothing can be written to it any more")

    def discard(self) -> None:
        """Keep nothing of this store if the block is left without ``finish``."""
        self.resumable = False

    def finish(
        self, *, classes: Sequence[str] = (), source: Mapping[str, Any] | None = None, created: str | None = None
    ) -> Manifest:
        """Publish the store and return its manifest. Nothing can be written afterwards.

        Args:
            classes: Name of each label from 0 on, if labels have names.
            source: Where the records came from, for people to read.
            created: UTC, ISO 8601; default now.

        Raises:
            FieldError: A label has no class; or a manifest cannot hold the classes or the source.
            StoreExistsError: Meanwhile a store has come to the place that is not to be replaced.
            StoreFullError: No room is left.
        """
        self.commit()
        summary = Summary()
        for number in range(-(-self.length // CHUNK)):
            summary.add(self._stored_chunk(number))
        manifest = self.totals.manifest(
            self.place, self.length, summary, salt=self.salt, classes=classes, source=source, created=created
        )
        self._publish(manifest)
        self._finished = True
        return manifest

    def _unfinished(self) -> StoreExistsError:
        remedy = "resume (--resume) goes on with it, overwrite (--overwrite) begins again"
        return StoreExistsError(f"an unfinished conversion is at {self.place}: {remedy}")

    def _refuse_finished(self) -> None:
        """Refuse to replace the finished store at the place, unless it is to be overwritten."""
        self.replaces = True
        if self.overwrite:
            return
        if self.resumed:
            raise StoreExistsError(f"{self.place} has been made by somebody else meanwhile; move it away and resume")
        if self.resume:
            raise StoreExistsError(
                f"{self.place} is finished already: there is nothing to resume; overwrite (--overwrite) replaces it"
            )
        raise StoreExistsError(f"{self.place} exists already; overwrite (--overwrite) replaces it")

    def _restore(self, sealed: bytes) -> None:
        """Go on from the progress that the last commit stored."""
        try:
            progress = open_sealed(sealed)
            self.settings = dict(progress["settings"])
            self.position = int(progress["position"])
            self.overwrite = self.overwrite or bool(progress["overwrite"])
            self.totals = Totals.restore(progress)
            self._buffer = WriteBuffer(int(progress["salt"]), int(progress["length"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged(f"its progress cannot be read: {error!r}") from error
        self.resumed = True
        if self.length % CHUNK:
            chunk = ColumnChunk.unpack(self._stored_chunk(self.length // CHUNK))
            self._buffer = WriteBuffer(self.salt, self.length, chunk)
