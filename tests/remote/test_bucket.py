"""Objects of a real server: listed in pages, copied in parts, replaced by conditions, and never in a forked process."""

from __future__ import annotations

import multiprocessing
import random
import resource
from typing import TYPE_CHECKING

import pytest

from dbloader.errors import OptionError, StoreExistsError, StoreFullError, StoreNotFoundError
from tests.support.object_store import WAIT_S, keys, put

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.object_store import ObjectStore, Outside

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("object_store")]


def fetch(place: str, names: list[str], folder: Path) -> None:
    from dbloader.remote.bucket import Bucket
    from dbloader.remote.download import download

    bucket = Bucket(place)
    for name in names:
        download(bucket, name, folder / name)


def test_an_object_of_any_size_is_copied_byte_for_byte(
    object_store: ObjectStore, outside: Outside, tmp_path: Path
) -> None:
    place = object_store.place()
    part = 8 * 2**20
    files = {f"{size}": random.Random(size).randbytes(size) for size in (0, 1, part, 2 * part + 1)}
    outside(put, place, files)
    outside(fetch, place, [*files], tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    with pytest.raises(StoreNotFoundError, match="none does not exist"):
        outside(fetch, place, ["none"], tmp_path)
    assert not (tmp_path / "none").exists()


def fetch_with_little_room(place: str, name: str, folder: Path) -> None:
    """Fetch an object where a file may have 1,000 bytes; a call that begins below them writes up to them."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        fetch(place, [name], folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_copy_that_the_disk_takes_in_part_is_an_error(
    object_store: ObjectStore, outside: Outside, tmp_path: Path
) -> None:
    place = object_store.place()
    outside(put, place, {"large": bytes(1001)})
    with pytest.raises(StoreFullError, match="large cannot be written: File too large"):
        outside(fetch_with_little_room, place, "large", tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_listing_of_several_pages_is_whole_and_sorted(object_store: ObjectStore, outside: Outside) -> None:
    place = object_store.place()
    names = [f"{number:04}" for number in range(1_100)]
    outside(put, place, dict.fromkeys(names, b""))
    outside(put, f"{place}-not", {"x": b""})
    assert outside(keys, place) == names


def replace(place: str, data: bytes, *, stale: bool = False) -> None:
    from dbloader.remote.bucket import Bucket

    bucket = Bucket(place)
    item = bucket.head("one")
    if stale:
        put(place, {"one": b"of another process"})
    bucket.put_if("one", data, item)


def test_an_object_is_made_once_and_replaced_only_by_whom_has_seen_it(
    object_store: ObjectStore, outside: Outside
) -> None:
    place = object_store.place()
    outside(replace, place, b"first")
    outside(replace, place, b"second")
    with pytest.raises(StoreExistsError, match="was written by another process meanwhile"):
        outside(replace, place, b"third", stale=True)
    with pytest.raises(StoreExistsError, match="was written by another process meanwhile"):
        outside(replace, object_store.place(), b"third", stale=True)


def in_forked_child(place: str) -> object:
    """Return the error of a child that uses object storage after its parent has used it."""
    from dbloader.remote.bucket import Bucket

    Bucket(place).head("x")
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def use() -> None:
        try:
            Bucket(place)
        except OptionError as error:
            sender.send(error)

    process = context.Process(target=use)
    process.start()
    try:
        return receiver.recv() if receiver.poll(WAIT_S / 2) else "it hangs"
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("endpoint", ["nonsense", "http://", "http://a b", "ftp://host"])
def test_an_address_of_a_server_that_is_none_is_refused(
    object_store: ObjectStore, outside: Outside, endpoint: str
) -> None:
    with pytest.raises(OptionError, match=r"AWS_ENDPOINT_URL must be an address such as https://host:9000$"):
        outside(keys, object_store.place(), environment=object_store.environment(endpoint=endpoint))


def test_a_forked_process_gets_an_error_and_does_not_hang(object_store: ObjectStore, outside: Outside) -> None:
    error = outside(in_forked_child, object_store.place())
    assert isinstance(error, OptionError), error
    assert "cannot be used in a process that was forked" in str(error)
