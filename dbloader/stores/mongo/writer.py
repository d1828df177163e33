"""Writing a store to a MongoDB database: aside, in a collection of its own, and published when it is whole."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
from typing_extensions import override

from dbloader.errors import DamagedStoreError, PlaceError, StoreError, StoreExistsError, StoreLockedError
from dbloader.records.document import open_sealed, seal
from dbloader.stores.mongo.catalog import Catalog
from dbloader.stores.mongo.connection import Connection
from dbloader.stores.mongo.lease import Lease
from dbloader.stores.mongo.partial import PartialStore
from dbloader.stores.mongo.schema import STORE
from dbloader.stores.mongo.uri import parse
from dbloader.stores.writer import Writer

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from dbloader.records.manifest import Manifest


# Its users, the state of a sharded cluster, and what no other member of a replica set gets.
_OF_THE_SERVER = ("admin", "config", "local")


class MongoWriter(Writer):
    """A store that is being written to a MongoDB database; see Writer.

    Its records are in ``collection.<id>``, of which ``collection`` is a view once it is finished. All writes wait for a
    majority of the members, and a commit for its journal, unless the place's options (``w``, ``journal``) say
    otherwise. They are tried again for up to a minute after network errors, a restart or an election.

    A store that is replaced stays beside the new one, in ``collection.<its id>``, for those who still read it; the next
    writer at the place removes it.

    Raises:
        PlaceError: The place is no place in MongoDB, or in a database of the server's own: admin, config or local.

    Args:
        place: See MongoStore.
        overwrite: See Writer; a collection that is no dbloader store is not replaced.
        resume: See Writer.
        resumable: See Writer.
    """

    # Round trips, and a wait for the journal: of 100 MB, 8 MiB at a time took 1.2 to 1.7 times as long as 32.
    commits_at_once = 4

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        resume: bool = False,
        resumable: bool = False,
    ) -> None:
        self._place = parse(place)
        if self._place.database in _OF_THE_SERVER:
            raise PlaceError(
                f"{self._place.shown} is in a database of the server's own ({', '.join(_OF_THE_SERVER)}): name another"
            )
        super().__init__(self._place.shown, overwrite=overwrite, resume=resume, resumable=resumable)
        self.report_path = Path(f"{self._place.database}.{self._place.collection}.report.jsonl")
        self._committed = False
        self._published = False

    @override
    def _open(self) -> None:
        self._connection = Connection(self._place, writing=True)
        try:
            self._catalog = Catalog(self._connection.database, self._place)
            self._connection.run(self._catalog.check_is_ours)
            partial = self._connection.run(self._catalog.partial)
            if not (self.resume and partial):
                self._check_replaceable()
            self._lease = Lease(self._connection, self._catalog.meta)
            self._lease.take()
            try:
                self._prepare()
            except BaseException:
                self._lease.release()
                raise
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        """Go on with what is to be resumed, or begin."""
        run = self._connection.run
        run(self._catalog.show)  # a writer that was killed when it had published has not done so
        run(self._catalog.remove_replaced)
        partial = run(self._catalog.partial)
        if partial and not self.resume:
            if not self.overwrite and "progress" in partial:
                raise StoreExistsError(
                    f"an unfinished conversion is at {self.place}: resume (--resume) goes on with it, "
                    "overwrite (--overwrite) begins again",
                )
            self._abandon(partial["store"])
            partial = None
        if partial and "progress" not in partial:  # whoever began it may go on, with records of anything
            self._abandon(partial["store"])
            partial = None
        self._id = partial["store"] if partial else str(bson.ObjectId())
        self._unfinished = PartialStore(self._connection.database, self._place, self._id, self._lease)
        if partial and "progress" in partial:
            self._committed = True
            try:
                progress = open_sealed(bson.encode(partial["progress"]))
            except (TypeError, ValueError) as error:
                raise self._damaged(f"how far it has come cannot be read: {error}") from error
            self._restore(progress)
        self._check_replaceable()  # again: now it is known whether the conversion that is resumed may overwrite
        try:
            run(lambda: self._take_over(partial))
            run(self._unfinished.begin)
        except BaseException:
            if not self._committed:
                self._remove_partial()
            raise

    def _take_over(self, partial: Mapping[str, Any] | None) -> None:
        """Note who writes the unfinished store: nobody who did so before can commit to it any more."""
        run = partial["run"] + 1 if partial else 1
        if not 0 < run < 2**31:  # the upper half of an int64 has it; see Unfinished.store
            raise self._damaged(f"the number of its writers is {run}")
        mine = {"partial.store": self._id, "partial.writer": self._lease.token, "partial.run": run}
        if not self._catalog.durable.update_one(
            {"_id": STORE, "writer.token": self._lease.token}, {"$set": mine}
        ).matched_count:
            raise self._overtaken()
        self._unfinished.run = run

    @override
    def _close(self) -> None:
        try:
            if not (self._published or (self.resumable and self._committed)):
                self._remove_partial()
        finally:
            self._lease.release()
            self._connection.close()

    @override
    def _store(
        self,
        first: int,
        documents: Sequence[bytes],
        chunks: Mapping[int, Mapping[str, bytes]],
        events: Sequence[Mapping[str, Any]],
        progress: Mapping[str, Any],
    ) -> None:
        first_event = progress["events"] - len(events)
        self._unfinished.commits += 1

        def store() -> None:
            self._lease.check()
            self._unfinished.store(first, documents, chunks, first_event, events)
            self._set_partial({"progress": bson.decode(seal(progress))})

        # All of it again after a failure: a server that was killed may have lost what it had confirmed since the last
        # journal, which only the last step waits for.
        self._connection.run(store)
        self._committed = True

    def _set_partial(self, values: Mapping[str, Any]) -> None:
        """Note something of the unfinished store, durably with all that was written before."""
        token = self._lease.token
        mine = {"_id": STORE, "writer.token": token, "partial.store": self._id, "partial.writer": token}
        change = {"$set": {f"partial.{name}": value for name, value in values.items()}}
        if not self._catalog.durable.update_one(mine, change).matched_count:
            raise self._overtaken()

    @override
    def _stored_chunk(self, number: int) -> dict[str, bytes]:
        packed = self._connection.run(lambda: self._unfinished.chunk(number, self.length))
        if packed is None:
            raise self._damaged("a chunk of a column is missing or damaged")
        return packed

    @override
    def _publish(self, manifest: Manifest) -> None:
        for number in range(self._unfinished.chunks(self.length)):
            crcs = self._stored_chunk(number)["crc32"]
            if not self._connection.run(lambda: self._unfinished.is_stored(number, crcs)):  # noqa: B023
                raise self._damaged("the server does not have all of its records as they were sent")
        for index in self._connection.run(self._unfinished.in_gridfs):
            if index >= self.length:
                break  # what earlier writers left behind the last record is not of the store
            if not self._connection.run(lambda: self._unfinished.is_file_stored(index)):  # noqa: B023
                raise self._damaged(f"the server does not have record {index} in GridFS as it was sent")
        replaces = self._connection.run(self._catalog.store_at_place)
        self._check_replaceable()
        document = bson.decode(manifest.encode())
        self._connection.run(self._lease.check)
        self._connection.run(lambda: self._catalog.publish(self._id, self._lease.token, document, replaces))
        self._published = True
        with suppress(StoreError):  # it is there to be read; only the view for people is not, or shows too much
            self._connection.run(self._catalog.show)
            self._connection.run(lambda: self._unfinished.trim(self.length, self.totals.events))

    def _check_replaceable(self) -> None:
        """Refuse to replace what is at the place, unless it is to be overwritten and is a store."""
        if not self._connection.run(self._catalog.exists):
            return
        self._connection.run(self._catalog.check_is_store)
        if not self.overwrite and self.resumed:
            raise StoreExistsError(f"{self.place} has been made by somebody else meanwhile; move it away and resume")
        if not self.overwrite and self.resume:
            raise StoreExistsError(
                f"{self.place} is finished already: there is nothing to resume; overwrite (--overwrite) replaces it"
            )
        if not self.overwrite:
            raise StoreExistsError(f"{self.place} exists already; overwrite (--overwrite) replaces it")

    def _remove_partial(self) -> None:
        """Remove the unfinished store, unless another writer has it by now or it has come to the place."""
        partial = self._connection.run(self._catalog.partial)
        if partial and partial["store"] == self._id and partial.get("writer") == self._lease.token:
            self._abandon(self._id)
            if partial["run"] == 1:  # nobody else has ever written to it, or would go on to
                self._connection.run(lambda: self._catalog.forget(self._id))

    def _abandon(self, store: str) -> None:
        if self._connection.run(lambda: self._catalog.abandon(store, self._lease.token)):
            self._connection.run(lambda: self._catalog.remove(store))

    @override
    def _damaged(self, what: str) -> DamagedStoreError:
        return DamagedStoreError(
            f"the unfinished conversion at {self.place} is damaged: {what}; begin again with overwrite (--overwrite)"
        )

    def _overtaken(self) -> StoreLockedError:
        return StoreLockedError(f"another process has taken over the conversion at {self.place}")
