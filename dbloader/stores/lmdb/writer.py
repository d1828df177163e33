"""Writing a store in one LMDB file: aside, in ``PLACE.partial``, and renamed when it is whole."""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import lmdb
from typing_extensions import override

from dbloader.errors import (
    DamagedStoreError,
    NotAStoreError,
    StoreAccessError,
    StoreError,
    StoreExistsError,
    StoreVersionError,
)
from dbloader.records.columns import COLUMNS, whole_chunk
from dbloader.records.document import open_sealed, seal
from dbloader.stores.lmdb.growing import GrowingFile
from dbloader.stores.lmdb.keys import (
    MANIFEST,
    META,
    NO_ROOM,
    PROGRESS,
    RECORDS,
    checked_path,
    column_key,
    event_key,
    record_key,
)
from dbloader.stores.lmdb.partial import PartialFile
from dbloader.stores.lmdb.store import LMDBStore
from dbloader.stores.lmdb.unsynced import boot_id, sync_folder
from dbloader.stores.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dbloader.records.manifest import Manifest


class LMDBWriter(Writer):
    """A store that is being written to one LMDB file; see Writer.

    Args:
        place: Path of the file; ``PLACE.partial`` beside it holds the store until it is finished.
        overwrite: See Writer; a file that is something else than a dbloader store is not replaced.
        resume: See Writer.
        resumable: See Writer.
        durable: See Writer.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        resume: bool = False,
        resumable: bool = False,
        durable: bool = True,
    ) -> None:
        super().__init__(checked_path(place), overwrite=overwrite, resume=resume, resumable=resumable, durable=durable)
        self._partial = PartialFile(self.place)
        self._target = self._partial.target
        self.durable = durable or not boot_id()  # where a crash could not be told from a kill, nothing is left to it
        self.scratch = self._target.parent
        self._published = False

    @override
    def _open(self) -> None:
        self._check_target()
        self._partial.lock()
        try:
            begins = self._partial.holds_nothing = self._begins()
            self._partial.check_synced(begins=begins, durable=self.durable)
            self._open_partial()
        except BaseException as error:
            if self._partial.holds_nothing:
                self._partial.remove()
            self._partial.unlock()
            if isinstance(error, OSError) and not isinstance(error, StoreError):
                raise self._partial.refused(error) from error
            raise

    @override
    def _close(self) -> None:
        try:
            if not self._published:
                self._file.close()
        finally:
            try:
                if not self._published and not (self.resumable and self._partial.kept):
                    self._partial.remove()
            finally:
                self._partial.unlock()

    def _check_target(self) -> None:
        """Refuse a place that may not become a new store."""
        try:
            if self._target.is_symlink():  # where realpath has given up
                raise StoreAccessError(f"{self.place} cannot be written: its symbolic link leads in a circle")
            if not self._target.parent.is_dir():
                raise StoreAccessError(
                    f"{self.place} cannot be written: the folder {self._target.parent} does not exist"
                )
            if self._target.is_dir() or self.place.endswith("/"):
                what, file = "names", self.place.rstrip("/")
                if self._target.is_dir() or not file.endswith(".lmdb"):
                    what, file = "is" if self._target.is_dir() else what, f"{file}.lmdb"
                if os.path.basename(self.place.rstrip("/")) in ("", ".", ".."):  # noqa: PTH119 - Path drops a last "."
                    file = f"{self.place.rstrip('/')}/train.lmdb"
                raise StoreExistsError(f"{self.place} {what} a folder; a store is one file: name one, such as {file}")
            if not (self.resume and self._partial.path.exists()):
                self._check_replaceable()
        except StoreError:
            raise
        except PermissionError as error:
            raise StoreAccessError(f"{self.place} cannot be written: {error.strerror or error}") from error

    def _check_replaceable(self) -> None:
        """Refuse to replace what is at the place, unless it is to be overwritten and is a store."""
        if not self._target.exists():
            return
        if not self.overwrite and self.resumed:
            raise StoreExistsError(f"{self.place} has been made by somebody else meanwhile; move it away and resume")
        try:
            with LMDBStore(self.place) as store:
                len(store)
        except NotAStoreError as error:
            raise StoreExistsError(
                f"{self.place} is not a dbloader store and will not be overwritten: "
                "name another place, or remove it yourself"
            ) from error
        except (DamagedStoreError, StoreVersionError):
            pass  # it may be replaced
        except StoreError:
            if self.overwrite:  # what cannot even be looked at may not
                raise
        if not self.overwrite and self.resume:
            raise StoreExistsError(
                f"{self.place} is finished already: there is nothing to resume; overwrite (--overwrite) replaces it"
            )
        if not self.overwrite:
            raise StoreExistsError(f"{self.place} exists already; overwrite (--overwrite) replaces it")

    def _begins(self) -> bool:
        """Tell whether the partial file is new, or has been emptied."""
        begins = self._partial.is_empty()
        if not begins and not self.resume:
            if not self.overwrite:
                raise StoreExistsError(
                    f"an unfinished conversion is at {self.place}: resume (--resume) goes on with it, "
                    "overwrite (--overwrite) begins again",
                )
            os.ftruncate(self._partial.fd, 0)
            begins = True
        return begins

    def _open_partial(self) -> None:
        try:
            self._file = GrowingFile(str(self._partial.path), self._partial.fd, sync=self.durable)
            self._env = self._file.env
            try:
                if self.durable and self._partial.unsynced.is_set():  # by the writer before
                    self._env.sync(True)
                    self._partial.unsynced.clear()
                self._records, self._meta = self._env.open_db(RECORDS), self._env.open_db(META)
                self._take_up()
            except BaseException:
                self._file.close()
                raise
        except lmdb.Error as error:
            raise self._partial.explained(error) from error

    def _take_up(self) -> None:
        """Go on from the last commit, if there is one."""
        with self._env.begin() as txn:
            data = txn.get(PROGRESS, db=self._meta)
        self._partial.holds_nothing = data is None
        if data is not None:
            self._partial.kept = self.resumable
            try:
                progress = open_sealed(data)
            except ValueError as error:
                raise self._damaged(f"how far it has come cannot be read: {error}") from error
            self._restore(progress)
        self._check_replaceable()  # again: now it is known whether the conversion that is resumed may overwrite

    @override
    def _store(
        self,
        first: int,
        documents: Sequence[bytes],
        chunks: Mapping[int, Mapping[str, bytes]],
        events: Sequence[Mapping[str, Any]],
        progress: Mapping[str, Any],
    ) -> None:
        meta: list[tuple[bytes, bytes]] = [
            (column_key(name, number), packed) for number, chunk in chunks.items() for name, packed in chunk.items()
        ]
        first_event = progress["events"] - len(events)
        meta += [(event_key(number), seal(event, number)) for number, event in enumerate(events, first_event)]
        meta.append((PROGRESS, seal(progress)))
        self._put(documents, first, meta)
        self._partial.kept = self.resumable

    def _put(self, documents: Sequence[bytes], first: int, meta: Sequence[tuple[bytes, bytes]]) -> None:
        """Store all in one transaction, in a larger map when this one is full."""
        try:
            self._file.make_room(itertools.chain(documents, (value for _, value in meta)))
            self._put_all(documents, first, meta)
        except lmdb.Error as error:
            raise self._partial.explained(error) from error
        except OSError as error:
            raise self._partial.full() if error.errno in NO_ROOM else self._partial.refused(error) from error

    def _put_all(self, documents: Sequence[bytes], first: int, meta: Sequence[tuple[bytes, bytes]]) -> None:
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    for index, document in enumerate(documents, first):
                        txn.put(record_key(index), document, append=True, db=self._records)
                    for key, value in meta:
                        txn.put(key, value, db=self._meta)
            except lmdb.MapFullError:
                self._file.grow()
            else:
                return

    @override
    def _stored_chunk(self, number: int) -> dict[str, bytes]:
        with self._env.begin() as txn:
            stored = {name: txn.get(column_key(name, number), db=self._meta) for name in COLUMNS}
        chunks: dict[str, bytes] = {}
        for name, value in stored.items():
            chunk = whole_chunk(name, number, value, self.length)
            if chunk is None:
                raise self._damaged(f"its column {name} is damaged")
            chunks[name] = bytes(chunk)
        return chunks

    def _damaged(self, what: str) -> DamagedStoreError:
        return DamagedStoreError(f"{self._partial.path}: {what}; begin again with overwrite (--overwrite)")

    @override
    def _publish(self, manifest: Manifest) -> None:
        self._put((), 0, [(MANIFEST, manifest.encode())])
        try:
            self._env.sync(True)
        except lmdb.Error as error:
            raise self._partial.explained(error) from error
        self._file.close()
        self._check_replaceable()
        try:
            self._partial.path.replace(self._target)
        except OSError as error:
            raise self._partial.refused(error) from error
        self._published = True
        self._partial.unsynced.clear()
        with suppress(OSError):  # the store is whole and in place; not every folder can be opened, or synced
            sync_folder(self._target.parent)
