"""Write a store to its own collection of a MongoDB database, and publish it when it is complete."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
from typing_extensions import override

from dbloader.errors import DamagedStoreError, PlaceError, StoreError
from dbloader.records.columns import CHUNK, stored_columns
from dbloader.stores.lmdb.growing_file import remove_report
from dbloader.stores.mongo.catalog import Catalog
from dbloader.stores.mongo.connection import Connection
from dbloader.stores.mongo.lease import Lease
from dbloader.stores.mongo.partial import PartialStore
from dbloader.stores.mongo.uri import parse
from dbloader.stores.writer import Writer

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from dbloader.records.manifest import Manifest
    from dbloader.stores.writer import Commit


# MongoDB keeps its own data in these databases.
_SYSTEM_DATABASES = ("admin", "config", "local")


class MongoWriter(Writer):
    """Writes a store to a MongoDB database; see Writer. A collection of another program is never replaced.

    The records are in ``collection.<id>``. When the store is finished, ``collection`` becomes a view of the records.
    Each write waits for a majority of the replica set's members, and a commit also waits for the journal. The URI's
    options ``w`` and ``journal`` change what writes wait for. Writes are repeated for up to a minute after network
    errors, a restart or an election.

    A replaced store stays in ``collection.<its id>`` for programs that still read it. The next writer with the same
    URI removes the replaced store.
    """

    # A commit takes several round trips and waits for the journal. Writing 100 MB with 8 MiB (COMMIT_BYTES) per commit
    # took 1.2 to 1.7 times as long as with 32 MiB.
    commit_factor = 4

    def __init__(
        self, place: str | os.PathLike[str], *, overwrite: bool = False, resume: bool = False, resumable: bool = False
    ) -> None:
        self._place = parse(place)
        if self._place.database in _SYSTEM_DATABASES:
            raise PlaceError(
                f"{self._place.redacted} is in one of MongoDB's own databases ({', '.join(_SYSTEM_DATABASES)}): "
                "name another database"
            )
        super().__init__(self._place.redacted, overwrite=overwrite, resume=resume, resumable=resumable)
        self.report_path = Path(f"{self._place.database}.{self._place.collection}.report.jsonl")
        self._committed = False
        self._published = False

    @override
    def _open(self) -> None:
        with ExitStack() as undo:
            self._connection = Connection(self._place, writing=True)
            undo.callback(self._connection.close)
            self._lease = Lease(self._connection)
            self._catalog = Catalog(self._connection, self._place, self._lease.token)
            if not (self.resume and self._catalog.partial()):
                self._find_replaceable()
            undo.callback(self._lease.release)
            self._lease.acquire()
            self._prepare()
            undo.pop_all()

    def _prepare(self) -> None:
        """Resume the partial store, or begin a new one."""
        self._catalog.update_view()  # the previous writer may have been killed between publishing and updating the view
        self._catalog.collect_garbage()
        partial = self._catalog.partial()
        if partial and "progress" in partial and not (self.resume or self.overwrite):
            raise self._unfinished()
        if partial and not (self.resume and "progress" in partial):  # without a commit, there is nothing to resume
            self._catalog.abandon(partial["store"])
            partial = None
        self._id = partial["store"] if partial else str(bson.ObjectId())
        run = partial["run"] + 1 if partial else 1
        self._partial = PartialStore(self._connection, self._catalog, self._lease, self._id, run)
        if partial:
            self._committed = True
            self._restore(bson.encode(partial["progress"]) if isinstance(partial["progress"], dict) else b"")
        self._find_replaceable()  # check after `_restore`, which may set `overwrite`
        with ExitStack() as undo:
            if not self._committed:
                undo.callback(self._remove_partial)
            self._catalog.begin(self._id, run)
            self._partial.begin(new=not self._committed)
            undo.pop_all()

    @override
    def _close(self) -> None:
        try:
            if not (self._published or (self.resumable and self._committed)):
                self._remove_partial()
        finally:
            self._lease.release()
            self._connection.close()

    @override
    def _store(self, commit: Commit, progress: Mapping[str, Any]) -> None:
        self._partial.commit(commit, progress)
        self._committed = True

    @override
    def _stored_chunk(self, number: int) -> dict[str, bytes]:
        packed = self._partial.chunk(number, self.length, self.salt, stored_columns(self.totals.fields))
        if packed is None:
            raise self._damaged("a chunk of a column is missing or damaged")
        return packed

    @override
    def _publish(self, manifest: Manifest) -> None:
        for number in range(-(-self.length // CHUNK)):
            if not self._partial.has_records(number, self._stored_chunk(number)["crc32"], self.salt):
                raise self._damaged("records on the server are missing or differ from the records that were sent")
        for index in self._connection.retry(self._partial.large.list_indices):
            # Interrupted commits may have stored files with indices beyond the last record.
            if index < self.length and not self._partial.has_file(index, self.salt):
                raise self._damaged(f"record {index} in GridFS is missing or differs from the record that was sent")
        if not self._partial.has_events(self.totals.events):
            raise self._damaged("lines of its report are missing on the server")
        replaces = self._find_replaceable()
        self._connection.retry(self._lease.check)
        if replaces:  # the report describes the replaced store; else it may describe a store on another server
            remove_report(self.report_path)
        self._catalog.publish(self._id, bson.decode(manifest.encode()), replaces)
        self._published = True
        with suppress(StoreError):  # the store can be read even if these steps fail
            self._catalog.update_view()
            self._partial.trim(self.length, self.totals.events)

    def _find_replaceable(self) -> str | None:
        """Return the id of the published store, or None. Raise StoreExistsError if the store may not be overwritten."""
        published = self._catalog.published()
        if published is not None:
            self._refuse_finished()
        return published

    def _remove_partial(self) -> None:
        """Remove the partial store if it still belongs to this writer."""
        partial = self._catalog.partial()
        if partial and partial["store"] == self._id and partial.get("writer") == self._lease.token:
            self._catalog.abandon(self._id, forget=partial["run"] == 1)

    @override
    def _damaged(self, what: str) -> DamagedStoreError:
        return DamagedStoreError(
            f"the unfinished conversion at {self.place} is damaged: {what}; begin again with overwrite (--overwrite)"
        )
