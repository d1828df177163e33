"""Copy a store to or from object storage.

The bucket contains the same files as a folder of shards. ``manifest.bson`` is written last, by a conditional put. So
only one of several concurrent uploads succeeds, and readers always see a complete store.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dbloader._places import checked_path, is_mongo, is_remote, parse_place
from dbloader.errors import DamagedStoreError, OptionError, StoreError, StoreNotFoundError
from dbloader.ext.publishing import objects
from dbloader.ext.publishing.publish_shards import check_target, index_shards, move_into, move_to
from dbloader.ext.remote.bucket import Bucket
from dbloader.ext.remote.errors import NotWholeError
from dbloader.stores.lmdb.errors import refusals
from dbloader.stores.lmdb.handle import open_file
from dbloader.stores.lmdb.shard_table import MANIFEST_FILE, SHARD_FOLDER, ShardTable, kept_manifest
from dbloader.stores.lmdb.store import LMDBStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dbloader.records.manifest import Manifest

# Number of files that are copied at the same time. Each file takes several requests.
_AT_ONCE = 4
_REMEDY = "copy the store to the bucket again (--overwrite)"
_AGAIN = "repeat the command: it fetches only missing files, or the new store if the store in the bucket was replaced"


def copy_remote(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    overwrite: bool,
    progress: Callable[[int, int], object],
) -> Manifest:
    """Copy a store between a path on this machine and object storage.

    After an interruption, the next call copies only the files that are missing or incomplete.

    Raises:
        OptionError: Both places are in object storage, or one place is in MongoDB.
        StoreError: The source cannot be read; or the destination cannot be written, or already has a store.
    """
    if (is_remote(source) and is_remote(destination)) or is_mongo(source) or is_mongo(destination):
        place = parse_place(source if is_remote(source) else destination)
        raise OptionError(
            f"{place} can be copied only to or from a path on this machine: copy to a folder first, then from there"
        )
    if not is_remote(source):
        return _upload(Path(checked_path(source)), str(destination), overwrite=overwrite, progress=progress)
    target = Path(os.path.realpath(checked_path(destination)))
    with refusals(str(target)):
        try:
            return _download(str(source), target, overwrite=overwrite, progress=progress)
        except OSError:
            check_target(target, overwrite=overwrite)  # raises a clearer error if another process made the target
            raise


def _upload(source: Path, place: str, *, overwrite: bool, progress: Callable[[int, int], object]) -> Manifest:
    bucket = objects.open_target(place)
    # List files before reading the manifest. Then the list has only files of uploads that read the manifest earlier. If
    # this upload replaces the manifest, those uploads fail. So their files are deleted below.
    there = objects.list_files(bucket)
    replaces = objects.find_replaced(bucket, overwrite=overwrite)
    before = bucket.get(MANIFEST_FILE, replaces.etag) if replaces else b""
    with _as_folder(source) as (folder, table):
        # The keys depend on this store and on the replaced manifest, so a repeated upload uses the same keys. If
        # another upload replaces the manifest first, this upload fails, and the other upload may remove its files.
        upload = hashlib.sha256(before + table.encode()).hexdigest()[:16]
        shards = [shard._replace(name=f"{number:05}-{upload}.lmdb") for number, shard in enumerate(table.shards)]
        new = ShardTable(table.manifest, f"index-{upload}.lmdb", shards)
        files = {key: folder / name for key, name in zip(new.files, table.files, strict=True)}
        # Publishing needs conditional puts. Try one with a small object, before large files are sent.
        tried = kept_manifest(f"index-{secrets.token_hex(8)}.lmdb")
        bucket.put_if(tried, new.encode(), None)
        bucket.put_if(tried, new.encode(), bucket.head(tried))
        bucket.delete([tried])

        def put(key: str) -> None:
            bucket.put_file(key, files[key], there.get(key))

        _for_each_file(new, put, bucket, progress)
    sizes = {key: item.size for key, item in objects.list_files(bucket).items()}
    whole = new.index_file in sizes and all(
        sizes.get(key) == shard.nbytes for key, shard in zip(files, shards, strict=False)
    )
    # If files are missing because another upload has replaced the manifest, `put_table` raises the error.
    if not whole and bucket.head(MANIFEST_FILE) == replaces:
        raise StoreError(
            f"{bucket.place}: some files are missing or have another size, because {source} was replaced or another "
            "program removes files there: repeat the command"
        )
    objects.put_table(bucket, new, replaces, files)
    bucket.delete(there.keys() - files.keys())  # files of the replaced store and of failed uploads
    return table.manifest


def _for_each_file(
    table: ShardTable, use: Callable[[str], object], bucket: Bucket, progress: Callable[[int, int], object]
) -> None:
    """Call a function with the name of each file of a store, in several threads."""
    lengths = [*(shard.length for shard in table.shards), 0]  # the index is the last file
    done = 0
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dbloader-copy") as threads, ExitStack() as after_error:
        after_error.callback(bucket.close)  # without this, an error would be raised only after the running transfers
        for length, _ in zip(lengths, threads.map(use, table.files), strict=True):
            done += length
            progress(done, table.manifest.length)
        after_error.pop_all()


@contextmanager
def _as_folder(source: Path) -> Iterator[tuple[Path, ShardTable]]:
    """Yield the folder and the table of a store. A store in one file is linked into a temporary folder."""
    with LMDBStore(source) as store:
        manifest = store.manifest
        store.check_files()
        if source.is_dir():
            yield source, ShardTable.read(source)
            return
    with tempfile.TemporaryDirectory(prefix="dbloader-") as temporary:
        folder = Path(temporary)
        (folder / SHARD_FOLDER).mkdir()
        shard = folder / SHARD_FOLDER / "00000.lmdb"
        shard.symlink_to(source.absolute())
        # Each upload makes the same index, with a fixed name and the store's own facts, such as its creation time.
        yield folder, index_shards(folder, [shard.name], [manifest.digest], **manifest.given, index="index.lmdb")


def _download(place: str, target: Path, *, overwrite: bool, progress: Callable[[int, int], object]) -> Manifest:
    bucket = Bucket(place)
    replaces = check_target(target, overwrite=overwrite)
    table = objects.read_table(bucket)._replace(previous="")
    shards = dict(zip(table.files, table.shards, strict=False))
    # The name of the folder contains a hash of the store, so several processes may fill the folder at the same time.
    folder = target.with_name(f"{target.name}.copy-{hashlib.sha256(table.encode()).hexdigest()[:8]}")
    folder.mkdir(exist_ok=True)
    (folder / SHARD_FOLDER).mkdir(exist_ok=True)

    def check(path: Path, name: str) -> None:
        """Raise DamagedStoreError if a file is not the expected shard or index."""
        shard = shards.get(name)
        found = path.stat().st_size
        if shard and found != shard.nbytes:
            raise DamagedStoreError(f"{bucket.place}/{name} has {found:,} bytes, not {shard.nbytes:,}: {_REMEDY}")
        index_of = None if shard else table.manifest
        open_file(path, bucket.place, name, _REMEDY, digest=shard and shard.digest, index_of=index_of)

    def fetch(name: str) -> None:
        path = folder / name
        with suppress(FileNotFoundError, StoreError):
            check(path, name)  # an interrupted copy may have fetched this file
            return
        aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        try:
            try:
                bucket.fetch(name, aside)
            except (StoreNotFoundError, NotWholeError) as error:
                raise type(error)(f"{error}; {_AGAIN}") from error
            check(aside, name)
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    _for_each_file(table, fetch, bucket, progress)
    if bucket.has_md5 and bucket.differing:
        what = f"{bucket.place}: these objects did not match their MD5s: {sorted(bucket.differing)}"
        warnings.warn(f"{what}; check the copy with dbloader verify", stacklevel=2)
    for path in folder.rglob("*.lmdb.*"):
        path.unlink(missing_ok=True)  # an unfinished file of a killed copy
    if replaces:
        move_into(folder, table, target)
        shutil.rmtree(folder, ignore_errors=True)
    else:
        move_to(folder, table, target)
    return table.manifest
