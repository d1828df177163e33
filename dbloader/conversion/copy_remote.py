"""Copy a store to object storage, or from there.

It lies there as in a folder: shards and an index under keys that are never written again, and ``manifest.bson``, which
is written last and by a condition. So of several publishers one wins, and readers see one whole store.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from dbloader._describe import counted, size
from dbloader.errors import DamagedStoreError, OptionError, StoreError, StoreExistsError
from dbloader.remote.places import WRITABLE, is_remote, parse_place
from dbloader.stores.lmdb.errors import translate, translate_refusal
from dbloader.stores.lmdb.handle import LMDBHandle, OtherStoreError
from dbloader.stores.lmdb.keys import SHARD_INDEX, checked_path
from dbloader.stores.lmdb.publish_shards import check_target, move_into, publish_shards, put_manifest
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, ShardTable
from dbloader.stores.lmdb.store import LMDBStore
from dbloader.stores.mongo.uri import is_mongo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dbloader.records.manifest import Manifest
    from dbloader.remote.bucket import Bucket
    from dbloader.stores.lmdb.shard_table import Shard

# Files under way at once, each in several parts.
_AT_ONCE = 4
_REMEDY = "copy the store there again (--overwrite)"


def read_table(place: str) -> ShardTable:
    """Return the manifest of a store in object storage and the names of its files."""
    from dbloader.remote.origin import RemoteOrigin

    origin = RemoteOrigin(place)
    return ShardTable.decode(origin.manifest(), origin.place)


def copy_remote(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    overwrite: bool,
    progress: Callable[[int, int], object],
) -> Manifest:
    """Copy a store between a path of this machine and object storage; one of the two places is there.

    Raises:
        OptionError: Both places are there, or the one that is not there is no path.
        StoreError: The source cannot be read, or the destination cannot be written, or is taken.
    """
    if (is_remote(source) and is_remote(destination)) or is_mongo(source) or is_mongo(destination):
        raise OptionError("copy the store to this machine first: one of the two places must be a path")
    if is_remote(source):
        target = Path(os.path.realpath(checked_path(destination)))
        try:
            return _download(str(source), target, overwrite=overwrite, progress=progress)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            if error.errno in (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY):
                raise StoreExistsError(f"another process copies to {target} too, and was first") from error
            raise translate_refusal(error, str(target)) from error
    return _upload(Path(checked_path(source)), str(destination), overwrite=overwrite, progress=progress)


def _upload(source: Path, place: str, *, overwrite: bool, progress: Callable[[int, int], object]) -> Manifest:
    from dbloader.remote.bucket import Bucket

    if parse_place(place).scheme not in WRITABLE:
        raise OptionError(f"{place}: a store cannot be put on a web server by this way: name a bucket")
    bucket = Bucket(place)
    replaces = bucket.head(MANIFEST_FILE)
    if replaces and not overwrite:
        raise StoreExistsError(f"{bucket.place} exists already; overwrite (--overwrite) replaces it")
    ours = (f"{SHARD_FOLDER}/", "index-")
    listed = {item.key: item.size for item in bucket.items() if item.key.startswith(ours)}
    old: set[str] = set()
    if replaces:
        data = bucket.get(MANIFEST_FILE, replaces.etag)
        with suppress(StoreError):  # a damaged store is replaced too
            old = {*ShardTable.decode(data, place).files}
    with _as_folder(source) as folder:
        table = ShardTable.read(folder)
        attempt = secrets.token_hex(8)  # no other store has these files, so this process may remove them
        shards = [shard._replace(name=f"{number:05}-{attempt}.lmdb") for number, shard in enumerate(table.shards)]
        new = ShardTable(table.manifest, f"index-{attempt}.lmdb", shards)
        files = {key: folder / name for key, name in zip(new.files, table.files, strict=True)}
        _put_all(bucket, files, new, progress)
    try:
        bucket.put_if(MANIFEST_FILE, new.encode(), replaces)
    except StoreExistsError:
        with suppress(StoreError):
            bucket.delete(files)
        raise
    except StoreError as error:  # its shards stay: it may name them
        raise type(error)(f"{error}; it may be published nevertheless, as dbloader info {place} will say") from None
    with suppress(StoreError):  # the store is in place
        bucket.delete(old)
    if others := listed.keys() - old:
        nbytes = size(sum(listed[key] for key in others))
        what = f"{counted(len(others), 'object')} ({nbytes}) of uploads that were killed or go on now"
        warnings.warn(f"{bucket.place} has {what}: {', '.join(sorted(others)[:5])}", stacklevel=4)
    return table.manifest


def _put_all(bucket: Bucket, files: dict[str, Path], table: ShardTable, progress: Callable[[int, int], object]) -> None:
    """Put files to keys; remove all of them if one fails."""
    done = 0
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dbloader-put") as threads:
        try:
            for length, _ in zip(_lengths(table), threads.map(bucket.put_file, files, files.values()), strict=True):
                done += length
                progress(done, table.manifest.length)
        except BaseException:
            threads.shutdown(cancel_futures=True)
            with suppress(StoreError):
                bucket.delete(files)
            raise


def _lengths(table: ShardTable) -> list[int]:
    """Return the number of records in each of a store's files; the index, the last, is the end of the copy."""
    return [*(shard.length for shard in table.shards), 0]


@contextmanager
def _as_folder(source: Path) -> Iterator[Path]:
    """Yield the folder of a sharded store; of a store in one file, a temporary one with that file as its shard."""
    with LMDBStore(source) as store:
        manifest = store.manifest
        store.check_files()
        if source.is_dir():
            yield source
            return
    with tempfile.TemporaryDirectory(prefix="dbloader-") as temporary:
        folder = Path(temporary)
        (folder / SHARD_FOLDER).mkdir()
        shard = folder / SHARD_FOLDER / "00000.lmdb"
        shard.symlink_to(source.absolute())
        publish_shards(
            folder,
            [shard.name],
            [manifest.digest],
            classes=manifest.classes,
            source=manifest.source,
            created=manifest.created,
        )
        yield folder


def _download(place: str, target: Path, *, overwrite: bool, progress: Callable[[int, int], object]) -> Manifest:
    from dbloader.remote.origin import RemoteOrigin

    origin = RemoteOrigin(place)
    replaces = check_target(target, overwrite=overwrite)
    table = ShardTable.decode(origin.manifest(), origin.place)._replace(previous="")
    folder = target.with_name(f"{target.name}.copy")  # of an interrupted copy it has files that stay
    (folder / SHARD_FOLDER).mkdir(parents=True, exist_ok=True)

    def fetch(name: str, shard: Shard | None) -> None:
        path = folder / name
        if path.exists():
            return
        aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        try:
            origin.fetch(name, str(aside))
            found = aside.stat().st_size
            if shard and found != shard.nbytes:
                raise DamagedStoreError(f"{place}/{name} has {found:,} bytes, not {shard.nbytes:,}: {_REMEDY}")
            digest, of = (shard.digest, None) if shard else (table.manifest.digest, SHARD_INDEX)
            LMDBHandle(str(aside), f"{place}/{name}", digest=digest, of=of)
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            aside.rename(path)
        except lmdb.Error as error:
            raise translate(error, f"{place}/{name}", remedy=_REMEDY) from error
        except OtherStoreError as error:
            raise DamagedStoreError(f"{place}/{name} is not what was put there: {_REMEDY}") from error
        finally:
            aside.unlink(missing_ok=True)

    done = 0
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dbloader-get") as threads:
        try:
            fetched = threads.map(fetch, table.files, [*table.shards, None])
            for length, _ in zip(_lengths(table), fetched, strict=True):
                done += length
                progress(done, table.manifest.length)
        except BaseException:
            origin.bucket.close()  # else the files under way would be fetched to their ends
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    mine = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
    folder.rename(mine)  # of several processes that copy to one place, one has it from here on
    try:
        _publish(mine, target, table, replaces=replaces)
    except BaseException:
        with suppress(OSError):
            mine.rename(folder)
        raise
    return table.manifest


def _publish(folder: Path, target: Path, table: ShardTable, *, replaces: bool) -> None:
    """Make a folder with all files of a store that store, at its place."""
    named = {*table.files}
    for path in [*folder.glob(f"{SHARD_FOLDER}/*"), *(path for path in folder.iterdir() if path.is_file())]:
        if str(path.relative_to(folder)) not in named:
            path.unlink(missing_ok=True)  # of a store that was there at an earlier attempt
    if replaces:
        move_into(folder, table, target)
        shutil.rmtree(folder, ignore_errors=True)
    else:
        put_manifest(folder, table)
        folder.rename(target)
