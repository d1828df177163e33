"""Objects on a real server: listings, copies in parts, conditional puts, and errors in forked processes."""

from __future__ import annotations

import multiprocessing
import random
import resource
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dbloader.errors import (
    OptionError,
    StoreAccessError,
    StoreError,
    StoreExistsError,
    StoreFullError,
    StoreNotFoundError,
    StoreUnreachableError,
)
from dbloader.ext.remote.errors import NotWholeError
from tests.support.http_proxy import CUT, SLOW_DOWN, Change, HTTPProxy, empty, flip, other_etag, shorten, web_server
from tests.support.images import plant
from tests.support.object_store import WAIT_S, ObjectStore, Outside, keys, put, within

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("object_store")]


def fetch(place: str, names: list[str], folder: Path) -> None:
    from dbloader.ext.remote.bucket import Bucket

    bucket = Bucket(place)
    for name in names:
        bucket.fetch(name, folder / name)


def send(place: str, paths: list[Path], most_parts: int = 10_000) -> None:
    """Upload files under their names, unless these keys exist."""
    import dbloader.ext.remote.bucket as module

    before, module.MAX_PARTS = module.MAX_PARTS, most_parts
    bucket = module.Bucket(place)
    for path in paths:
        bucket.put_file(path.name, path, bucket.head(path.name))
    module.MAX_PARTS = before


def test_files_of_any_size_are_uploaded_only_if_changed_and_fetched_whole(
    object_store: ObjectStore, outside: Outside, tmp_path: Path
) -> None:
    place = object_store.place()
    part = 8 * 2**20
    files = plant(tmp_path, {f"{size}": random.Random(size).randbytes(size) for size in (0, 1, part, 2 * part + 1)})
    paths = [*files.iterdir()]
    sent: list[str] = []

    def decide(method: str, path: str) -> None:
        if method in ("PUT", "POST"):
            sent.append(path)

    with HTTPProxy(object_store.port, decide) as proxy:
        environment = object_store.environment(endpoint=proxy.endpoint)
        outside(send, place, paths, environment=environment)
        assert len({path.partition("?")[0] for path in sent}) == 4
        sent.clear()
        outside(send, place, [path for path in paths if path.stat().st_size], environment=environment)
        assert not sent
        with (tmp_path / f"{2 * part + 1}").open("r+b") as file:
            file.write(b"other")
        sent.clear()
        outside(send, place, paths, 2, environment=environment)
        assert len({path for path in sent if "partNumber=" in path}) == 2
        assert {path.partition("?")[0].rpartition("/")[2] for path in sent} == {"0", f"{2 * part + 1}"}
    back = tmp_path / "back"
    back.mkdir()
    outside(fetch, place, [path.name for path in paths], back)
    assert {path.name: path.read_bytes() for path in back.iterdir()} == {path.name: path.read_bytes() for path in paths}
    with pytest.raises(StoreNotFoundError, match="none does not exist"):
        outside(fetch, place, ["none"], back)
    assert not (back / "none").exists()


def get(place: str, key: str, size: int) -> bytes:
    from dbloader.ext.remote.bucket import Bucket

    return Bucket(place).get(key, size=size)


@pytest.mark.parametrize("has_md5", [True, False])
@pytest.mark.parametrize("change", [shorten, flip])
def test_incomplete_answer_is_requested_again(
    change: Change, has_md5: bool, object_store: ObjectStore, outside: Outside, tmp_path: Path
) -> None:
    place, data = object_store.place(), random.Random(0).randbytes(5000)
    outside(put, place, {"one": data})
    asked: list[str] = []

    def decide(method: str, path: str) -> Change | None:
        if method != "GET":
            return None
        asked.append(path)
        if len(asked) > 1:
            return None if has_md5 else other_etag
        return change if has_md5 else lambda *answer: other_etag(*change(*answer))

    with HTTPProxy(object_store.port, decide) as proxy:
        environment = object_store.environment(endpoint=proxy.endpoint)
        assert outside(get, place, "one", len(data), environment=environment) == data
        assert len(asked) >= 2
        if has_md5:
            asked.clear()
            outside(fetch, place, ["one"], tmp_path, environment=environment)
            assert (tmp_path / "one").read_bytes() == data
            assert len(asked) == 2


def read_all(place: str, names: list[str]) -> tuple[list[bytes], set[str]]:
    """Return the bytes of objects, and the keys of objects whose bytes have another MD5 than the server states."""
    from dbloader.ext.remote.bucket import Bucket

    bucket = Bucket(place)
    return [bucket.get(name) for name in names], bucket.differing


@pytest.mark.parametrize("change", [shorten, flip])
@pytest.mark.parametrize("wrong", [2, 99])
def test_equal_answers_with_another_md5_are_confirmed_over_another_connection(
    wrong: int, change: Change, object_store: ObjectStore, outside: Outside
) -> None:
    place, good, bad = object_store.place(), b"x" * 100, random.Random(0).randbytes(5000)
    outside(put, place, {"good": good, "bad": bad})
    asked: list[str] = []

    def decide(method: str, path: str) -> Change | None:
        if not path.endswith("bad"):
            return None
        asked.append(method)
        return change if len(asked) <= wrong else None

    with HTTPProxy(object_store.port, decide) as proxy:
        environment = object_store.environment(endpoint=proxy.endpoint)
        found, differing = outside(read_all, place, ["good", "bad", "good"], environment=environment)
        (ports,) = (ports for path, ports in proxy.ports.items() if path.endswith("bad"))
    assert asked == ["GET"] * 3
    assert ports[2] not in ports[:2]
    assert found == [good, change({}, bad)[1] if wrong == 99 else bad, good]
    assert differing == ({"bad"} if wrong == 99 else set())


def read_manifest(place: str) -> bytes:
    from dbloader.ext.publishing import objects
    from dbloader.ext.remote.bucket import Bucket

    return objects.read_manifest(Bucket(place))


def test_short_manifest_of_a_server_without_etags_is_requested_again(outside: Outside, tmp_path: Path) -> None:
    folder = plant(tmp_path / "files", {"manifest.bson": b"x" * 1000})
    asked: list[str] = []

    def decide(method: str, path: str) -> Change | None:
        asked.append(method)
        return shorten_untagged if method == "GET" and asked.count("GET") <= 2 else None

    def shorten_untagged(headers: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
        assert "etag" not in map(str.lower, headers)
        return shorten(headers, body)

    with web_server(folder.parent) as address, HTTPProxy(urlsplit(address).port or 0, decide) as proxy:
        assert outside(read_manifest, f"{proxy.endpoint}/files") == b"x" * 1000
    assert asked == ["GET", "HEAD"] * 3


def test_object_without_a_complete_answer_raises(object_store: ObjectStore, outside: Outside, tmp_path: Path) -> None:
    place = object_store.place()
    outside(put, place, {"one": bytes(5000)})
    with HTTPProxy(object_store.port, lambda method, _: shorten if method == "GET" else None) as proxy:
        environment = object_store.environment(endpoint=proxy.endpoint)
        with pytest.raises(NotWholeError, match="one cannot be read whole: 5 answers had another size or MD5 than"):
            outside(fetch, place, ["one"], tmp_path, environment=environment)


def fetch_while_it_changes(place: str, name: str, path: Path) -> None:
    """Fetch an object that is replaced before its second part is requested."""
    from dbloader.ext.remote.bucket import Bucket

    class Changing(Bucket):
        def get(
            self, key: str, etag: str = "", span: tuple[int, int] | None = None, *, size: int | None = None
        ) -> bytes:
            if span and span[0]:
                put(place, {key: bytes(span[1])})
            return super().get(key, etag, span, size=size)

    Changing(place).fetch(name, path)


def test_copy_never_mixes_two_objects(object_store: ObjectStore, outside: Outside, tmp_path: Path) -> None:
    place = object_store.place()
    outside(put, place, {"large": b"x" * (8 * 2**20 + 1)})
    with pytest.raises(StoreError, match="large was changed after it was listed"):
        outside(fetch_while_it_changes, place, "large", tmp_path / "copy")


def fetch_with_little_room(place: str, name: str, folder: Path) -> None:
    """Fetch an object while files are limited to 1,000 bytes.

    A write across the limit stores only the bytes that fit.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        fetch(place, [name], folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_download_to_a_full_disk_raises(object_store: ObjectStore, outside: Outside, tmp_path: Path) -> None:
    place = object_store.place()
    outside(put, place, {"large": bytes(1001)})
    with pytest.raises(StoreFullError, match="large cannot be written: File too large"):
        outside(fetch_with_little_room, place, "large", tmp_path)


def test_listing_is_complete_after_refused_and_truncated_pages(object_store: ObjectStore, outside: Outside) -> None:
    place = object_store.place()
    names = [f"{number:04}" for number in range(1_100)]
    outside(put, place, dict.fromkeys(names, b""))
    outside(put, f"{place}-not", {"x": b""})
    failures: list[tuple[int, str] | str] = [CUT, SLOW_DOWN]
    first_pages: list[str] = []

    def decide(_: str, path: str) -> tuple[int, str] | str | None:
        if "continuation-token" in path:
            return failures.pop() if failures else None
        first_pages.append(path)
        return None

    with HTTPProxy(object_store.port, decide) as proxy:
        assert outside(keys, place, environment=object_store.environment(endpoint=proxy.endpoint)) == names
    assert not failures
    assert len(first_pages) == 2  # only the truncated page makes the listing start again


@pytest.mark.parametrize("change", [shorten, empty])
def test_short_listing_is_requested_again(change: Change, object_store: ObjectStore, outside: Outside) -> None:
    place, names = object_store.place(), ["a", "b", "c"]
    outside(put, place, dict.fromkeys(names, b""))
    for ask in (keys, top_keys):
        lists: list[str] = []

        def decide(_: str, path: str, lists: list[str] = lists) -> Change | None:
            lists.append(path)
            return change if len(lists) < 3 else None

        with HTTPProxy(object_store.port, decide) as proxy:
            assert outside(ask, place, environment=object_store.environment(endpoint=proxy.endpoint)) == names
        assert len(lists) == 3


def test_key_that_cannot_be_listed_is_named(object_store: ObjectStore, outside: Outside) -> None:
    place = object_store.place()
    object_store.put_any(place, "cat/a\nb.jpg", b"x")
    with pytest.raises(StoreError, match=r"(?s)invalid path.*cat/a.*b\.jpg"):
        outside(keys, place)


def top_keys(place: str) -> list[str]:
    from dbloader.ext.remote.bucket import Bucket

    return [item.key for item in Bucket(place).folders()[1]]


def test_overloaded_server_raises_within_the_time_limit(object_store: ObjectStore, outside: Outside) -> None:
    asked: list[str] = []

    def decide(_: str, path: str) -> tuple[int, str]:
        asked.append(path)
        return SLOW_DOWN

    with HTTPProxy(object_store.port, decide) as proxy:
        environment = object_store.environment(endpoint=proxy.endpoint)
        with pytest.raises(StoreUnreachableError, match=r"overloaded .*; the request was repeated for 1 s"):
            outside(within, 1.0, top_keys, object_store.place(), environment=environment)
    assert 2 <= len(asked) <= 9


def test_refused_upload_is_retried_like_a_download(object_store: ObjectStore, outside: Outside, tmp_path: Path) -> None:
    place, refused = object_store.place(), list[str]()
    files = plant(tmp_path, {"one": b"x"})

    def decide(method: str, path: str) -> tuple[int, str] | None:
        if method != "PUT" or len(refused) == 14:  # more failures than obstore retries by default
            return None
        refused.append(path)
        return SLOW_DOWN

    with HTTPProxy(object_store.port, decide) as proxy:
        outside(send, place, [files / "one"], environment=object_store.environment(endpoint=proxy.endpoint))
    assert outside(keys, place) == ["one"]


def replace(place: str, data: bytes, *, stale: bool = False) -> None:
    from dbloader.ext.remote.bucket import Bucket

    bucket = Bucket(place)
    item = bucket.head("one")
    if stale:
        put(place, {"one": b"of another process"})
    bucket.put_if("one", data, item)


def test_conditional_put_has_one_winner(object_store: ObjectStore, outside: Outside) -> None:
    place = object_store.place()
    outside(replace, place, b"first")
    outside(replace, place, b"second")
    with pytest.raises(StoreExistsError, match="another process has written"):
        outside(replace, place, b"third", stale=True)
    with pytest.raises(StoreExistsError, match="another process has written"):
        outside(replace, object_store.place(), b"third", stale=True)


@pytest.mark.parametrize("as_file", [True, False])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((501, "NotImplemented"), r"refuses the request \(501, NotImplemented\): dbloader needs .* conditional puts"),
        ((507, "XMinioStorageFull"), r"refuses the request \(507, XMinioStorageFull\)$"),
        ((405, "MethodNotAllowed"), r"refuses the request \(405, MethodNotAllowed\)$"),
    ],
)
def test_lasting_refusal_of_a_put_raises_at_once(
    answer: tuple[int, str], message: str, as_file: bool, object_store: ObjectStore, outside: Outside, tmp_path: Path
) -> None:
    puts: list[str] = []
    (tmp_path / "one").write_bytes(b"x")

    def decide(method: str, path: str) -> tuple[int, str] | None:
        if method != "PUT":
            return None
        puts.append(path)
        return answer

    with HTTPProxy(object_store.port, decide) as proxy:
        environment = object_store.environment(endpoint=proxy.endpoint)
        with pytest.raises(StoreError, match=message):
            outside(
                send if as_file else replace,
                object_store.place(),
                [tmp_path / "one"] if as_file else b"x",
                environment=environment,
            )
    assert len(puts) == 1


def test_wrong_clock_is_named_although_the_first_request_has_no_code(
    object_store: ObjectStore, outside: Outside
) -> None:
    with HTTPProxy(object_store.port, lambda *_: (403, "RequestTimeTooSkewed")) as proxy:
        environment = object_store.environment(endpoint=proxy.endpoint)
        with pytest.raises(StoreAccessError, match=r"refused \(403, RequestTimeTooSkewed\): set the clock of this"):
            outside(replace, object_store.place(), b"x", environment=environment)


def in_forked_child(place: str) -> object:
    """Return the error that a forked child gets when it uses object storage after its parent."""
    from dbloader.ext.remote.bucket import Bucket

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


@pytest.mark.parametrize("endpoint", ["nonsense", "http://a b", "ftp://host"])
def test_invalid_endpoint_is_refused(object_store: ObjectStore, outside: Outside, endpoint: str) -> None:
    with pytest.raises(OptionError, match=r"AWS_ENDPOINT_URL must be an address such as https://host:9000$"):
        outside(keys, object_store.place(), environment=object_store.environment(endpoint=endpoint))


def test_use_in_a_forked_process_raises(object_store: ObjectStore, outside: Outside) -> None:
    error = outside(in_forked_child, object_store.place())
    assert isinstance(error, OptionError), error
    assert "cannot be used in a process that was forked" in str(error)
