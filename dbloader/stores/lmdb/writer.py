"""Write a store into one LMDB file."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader._places import checked_path
from dbloader.errors import (
    DamagedStoreError,
    NotAStoreError,
    StoreAccessError,
    StoreError,
    StoreExistsError,
    StoreVersionError,
)
from dbloader.records.columns import stored_columns, whole_chunk
from dbloader.records.document import seal
from dbloader.stores.lmdb.errors import refusals
from dbloader.stores.lmdb.growing_file import PartialFile, remove_report
from dbloader.stores.lmdb.keys import MANIFEST, PROGRESS, column_key, event_key, record_key
from dbloader.stores.lmdb.shard_table import is_sharded
from dbloader.stores.lmdb.store import LMDBStore
from dbloader.stores.writer import Writer

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from dbloader.records.manifest import Manifest
    from dbloader.stores.writer import Commit


class LMDBWriter(Writer):
    """Writes a store to one LMDB file; see Writer. A file that is not a dbloader store is never replaced.

    The file is called ``PLACE.partial`` until the store is finished, and then renamed.
    """

    def __init__(
        self, place: str | os.PathLike[str], *, overwrite: bool = False, resume: bool = False, resumable: bool = False
    ) -> None:
        super().__init__(checked_path(place), overwrite=overwrite, resume=resume, resumable=resumable)
        self._partial = PartialFile(self.place, resumable=resumable)
        self._target = self._partial.target
        self.scratch = self._target.parent
        self._published = False

    @override
    def _open(self) -> None:
        with refusals(self.place):
            self._check_target()
            self._partial.lock()
            try:
                self._begin_or_resume()
            except BaseException:  # an ExitStack would leave the partial file after Ctrl-C between two of its steps
                self._leave(keep=self._partial.committed)
                raise

    @override
    def _close(self) -> None:
        if not self._published:
            self._partial.env.close()
        self._leave(keep=self._published or (self.resumable and self._partial.committed))

    def _leave(self, *, keep: bool) -> None:
        try:
            if not keep:
                self._partial.remove()
        finally:
            self._partial.unlock()

    def _check_target(self) -> None:
        """Raise an error if no new store can be written to the path."""
        if self._target.is_symlink():  # realpath has resolved all links, unless they form a circle
            raise StoreAccessError(f"{self.place} cannot be written: its symbolic links form a circle")
        if is_sharded(self._target):
            raise StoreExistsError(
                f"{self.place} is a folder of shards, and the new store is one file: replace the folder by other "
                "shards (--shards N --overwrite), or name another place"
            )
        if self._target.is_dir() or self.place.endswith("/"):
            path = self.place.rstrip("/")
            file = f"{path}/train.lmdb" if self._target.is_dir() else f"{path.removesuffix('.lmdb')}.lmdb"
            raise StoreExistsError(f"{self.place} must be a file, not a folder: name a file, such as {file}")
        if not (self.resume and self._partial.path.exists()):
            self._check_replaceable()

    def _check_replaceable(self) -> None:
        """Raise an error if the file at the path may not be overwritten."""
        if not self._target.exists():
            return
        if self.resumed:
            self._refuse_finished()
        try:
            with LMDBStore(self.place) as store:
                len(store)
        except NotAStoreError as error:
            raise StoreExistsError(
                f"{self.place} is not a dbloader store and will not be overwritten: "
                "name another place, or remove the file yourself"
            ) from error
        except (DamagedStoreError, StoreVersionError):
            pass  # a damaged store, or a store of a newer format, may be replaced
        except StoreError:
            if self.overwrite:  # a file that cannot be opened may be something else than a store
                raise
        self._refuse_finished()

    def _begin_or_resume(self) -> None:
        """Open the partial file, and continue after its last commit if it has one."""
        if self._partial.committed and not self.resume:
            if not self.overwrite:
                raise self._unfinished()
            self._partial.clear()
        self._partial.open()
        with ExitStack() as undo:
            undo.callback(self._partial.env.close)
            progress = self._partial.get(PROGRESS)
            self._partial.committed = progress is not None
            if progress is not None:
                self._restore(progress)
            self._check_replaceable()  # check after `_restore`, which may set `overwrite`
            undo.pop_all()

    @override
    def _store(self, commit: Commit, progress: Mapping[str, Any]) -> None:
        records = [(record_key(index), document) for index, document in enumerate(commit.documents, commit.first)]
        meta = [(PROGRESS, seal(progress))]
        for number, chunk in commit.chunks.items():
            meta += [(column_key(name, number), packed) for name, packed in chunk.items()]
        for number, event in enumerate(commit.events, progress["events"] - len(commit.events)):
            meta.append((event_key(number), seal(event, number, self.salt)))
        self._partial.write(meta, records)
        self._partial.committed = True

    @override
    def _stored_chunk(self, number: int) -> dict[str, bytes]:
        chunks: dict[str, bytes] = {}
        for name in stored_columns(self.totals.fields):
            stored = self._partial.get(column_key(name, number))
            chunk = whole_chunk(name, number, stored, self.length, self.salt)
            if chunk is None:
                raise self._damaged(f"its column {name} is damaged")
            chunks[name] = bytes(chunk)
        return chunks

    @override
    def _damaged(self, what: str) -> DamagedStoreError:
        return DamagedStoreError(f"{self._partial.path}: {what}; begin again with overwrite (--overwrite)")

    @override
    def _publish(self, manifest: Manifest) -> None:
        self._partial.write([(MANIFEST, manifest.encode())])
        self._partial.sync()
        self._check_replaceable()
        if self._target.exists():
            remove_report(self.report_path)
        self._partial.publish()
        self._published = True
