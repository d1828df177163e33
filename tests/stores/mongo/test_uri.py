"""Places in MongoDB: what they may be, how errors describe them, and that credentials stay secret."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import pickle
import time
import traceback
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import pytest

from dbloader import open_store
from dbloader.errors import (
    DBLoaderError,
    NotAStoreError,
    PlaceError,
    StoreAccessError,
    StoreExistsError,
    StoreNotFoundError,
    StoreUnreachableError,
)
from dbloader.stores.mongo.connection import Connection
from dbloader.stores.mongo.reader import MongoReader
from dbloader.stores.mongo.uri import is_mongo, parse
from dbloader.stores.open import create_store
from tests.contracts.records import WAIT_S, make_records, write, write_nothing, write_partial
from tests.support.images import plant_photos
from tests.support.shell import Shell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.mongo import Mongod, Server

USER, PASSWORD = "jane-sentinel", "s3cret-sentinel/@:%+"
SECRETS = ("sentinel",)  # a part of both, so that no way of escaping hides them


def everything_in(error: BaseException) -> str:
    """Return all that an error and those that led to it would show, also where that is not shown by default."""
    texts, todo, seen = [], [error], set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        texts += [str(one), repr(one), repr(one.args), *getattr(one, "__notes__", ())]
        texts += traceback.format_exception(one)
        todo += [other for other in (one.__cause__, one.__context__) if other is not None]
    return "\n".join(texts)


def check_secret(*texts: str) -> None:
    for text in texts:
        for secret in SECRETS:
            assert secret not in text


def uses_of(place: str) -> tuple[Callable[[], object], ...]:
    """Return what opens a place, to read and to write."""
    return lambda: len(open_store(place)), lambda: write_nothing(place)


# ---- What a place may be


@pytest.mark.parametrize(
    ("place", "database", "collection", "shown"),
    [
        ("mongodb://host/db.train", "db", "train", "mongodb://host/db.train"),
        ("mongodb://host:1,b:2,c/db.a?replicaSet=rs", "db", "a", "mongodb://host:1,b:2,c/db.a"),
        ("mongodb://[::1]:27017,b:1,c/db.a.b", "db", "a.b", "mongodb://[::1]:27017,b:1,c/db.a.b"),
        ("mongodb://u:p%40%2F%3A@[fe80::1%25eth0]/db.ü", "db", "ü", "mongodb://[fe80::1%25eth0]/db.ü"),
        ("mongodb://%2Ftmp%2Fmongodb.sock/db.a", "db", "a", "mongodb://%2Ftmp%2Fmongodb.sock/db.a"),
        ("MongoDB+SRV://cluster.example.org/db.a?w=1", "db", "a", "mongodb+srv://cluster.example.org/db.a"),
        ("mongodb://u@host/d-b.a b?authSource=x@y", "d-b", "a b", "mongodb://host/d-b.a b"),
    ],
)
def test_a_place_has_a_database_and_a_collection(place: str, database: str, collection: str, shown: str) -> None:
    assert is_mongo(place)
    parsed = parse(place)
    assert (parsed.database, parsed.collection, parsed.redacted) == (database, collection, shown)
    assert repr(parsed) == f"MongoURI({shown!r})"
    assert repr(open_store(place)) == f"MongoStore({shown!r})"
    assert parse(parsed.uri) == parsed


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            "mongodb://host",
            r"^mongodb://host/ names no database and no collection: a place in MongoDB is mongodb://host/",
        ),
        ("mongodb://host/", "names no database and no collection"),
        ("mongodb://host?w=1", "names no database and no collection"),
        ("mongodb://host/.a", "names no database and no collection"),
        ("mongodb://host/db", r"^mongodb://host/db names no collection: .*, such as mongodb://host/db\.train$"),
        ("mongodb://host/db.?w=1", "names no collection"),
        ("mongodb:///db.a", "got one without a host"),
        ("mongodb://u:sentinel", "got one whose port is not a number, or whose host is missing after a password"),
        ("mongodb://u:sentinel localhost/db.a", "got one whose port is not a number"),
        ("mongodb:/u:sentinel@host/db.a", "got one that begins with neither"),
        ("mongodb:u:sentinel@host/db.a", "got one that begins with neither"),
        ("mongo://u:sentinel@host/db.a", "got one that begins with neither"),
        ("mongodb://u:sentinel@/db.a", "got one without a host"),
        ("mongodb://host/d$b.a", r"no database can be named 'd\$b'"),
        ("mongodb://host/d%20b.a", "no database can be named"),
        (f"mongodb://host/{'d' * 64}.a", "no database can be named"),
        ("mongodb://host/db.a$b", "no collection can be named"),
        ("mongodb://host/db.system.users", "no collection can be named"),
        ("mongodb://host/db..a", "no collection can be named"),
        ("mongodb://host/db.a..b", "no collection can be named"),
        ("mongodb://host/db.a.", "no collection can be named"),
        ("mongodb://host/db.a%2Fb", "no collection can be named"),
        ("mongodb://host/db.a.manifest", "is the name of a part of a store"),
        (f"mongodb://host/db.a.{'0' * 24}", "is the name of a part of a store"),
        (f"mongodb://host/db.a.{'0' * 24}.large.files", "is the name of a part of a store"),
        (f"mongodb://host/db.{'a' * 220}", "is too long"),
        ("mongodb://user:sent/inel@host/db.a", r"'/', '\?', '@' and ':' must be escaped \(%2F, %3F, %40, %3A\)"),
        ("mongodb://user:sentinel?x@host/db.a", "must be escaped"),
        ("mongodb://user-sentinel:x?y@host/db.a", "must be escaped"),
        ("mongodb://host/db.a/b", "must be escaped"),
    ],
)
def test_a_place_that_cannot_be_says_why_and_shows_no_password(place: str, message: str) -> None:
    for use in (parse, open_store, create_store):
        with pytest.raises(PlaceError, match=message) as caught:
            use(place)
        check_secret(everything_in(caught.value).replace(place, ""))  # a traceback has the test's own lines
        assert "sent/inel" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("wtimout=3", "Unknown option: wtimout"),
        ("w=majority&readPreference=nearby", "nearby is not a valid read preference"),
        ("connectTimeoutMS=soon", "connecttimeoutms"),
        ("authMechanism=SCRAM-SHA-256", "requires a username"),
        ("authMechanismProperties=sentinel", "Malformed auth mechanism properties"),
        ("tlsCAFile=/nowhere/ca.pem&tls=true", "No such file"),
        ("w=1&replicaSet", "="),
    ],
)
def test_an_option_that_would_not_be_honoured_is_refused(options: str, message: str) -> None:
    place = f"mongodb://localhost/db.a?{options}"
    for use in uses_of(place):
        with pytest.raises(PlaceError, match=rf"^mongodb://localhost/db\.a cannot be used: .*(?i:{message})") as caught:
            use()
        check_secret(str(caught.value), *(str(error) for error in (caught.value.__context__, caught.value.__cause__)))


def test_what_a_library_says_is_shown_without_credentials() -> None:
    place = parse("mongodb://jane:p%40ss%2Fword@host/db.a?authMechanismProperties=AWS_SESSION_TOKEN:t0ken&w=1")
    text = "jane:p%40ss%2Fword p%40ss%2Fword p@ss/word jane AWS_SESSION_TOKEN:t0ken host w=1"
    assert place.redact(text) == "*** *** *** *** *** host w=1"
    assert parse("mongodb://a:b@host/db.a").redact("a bad word of a or b: abba") == "*** bad word of *** or ***: abba"
    bare = place.without_credentials()
    assert (bare.uri, bare.stripped) == ("mongodb://host/db.a?w=1", True)
    assert not parse(bare.uri).without_credentials().stripped


def test_waiting_without_end_is_refused(mongo_uri: str) -> None:
    for use in uses_of(f"{mongo_uri}?timeoutMS=0"):
        with pytest.raises(PlaceError, match=r"timeoutMS=0 would wait without end .*: leave it out, for about a min"):
            use()


def test_reading_what_a_shard_has_moved_away_is_refused(mongo_uri: str) -> None:
    for use in uses_of(f"{mongo_uri}?readConcernLevel=available"):
        with pytest.raises(PlaceError, match=r"readConcernLevel=available .* that it has moved away: leave it out"):
            use()


def test_writing_without_answers_is_refused(mongo_uri: str) -> None:
    with pytest.raises(PlaceError, match=r"without an answer to its writes \(w=0\)"):
        write_nothing(f"{mongo_uri}?w=0")


@pytest.mark.parametrize(
    "options",
    [
        "W=majority&JOURNAL=true&tz_aware=true&retryWrites=false&compressors=zlib",
        "w=1;wtimeoutMS=5000;appName=a%20b",
        "readPreference=secondaryPreferred",
    ],
)
def test_options_of_the_place_are_honoured(mongo_uri: str, options: str) -> None:
    place = f"{mongo_uri}?{options}"
    write(place, make_records(5))
    with closing(Connection(parse(place), writing=True)) as connection:
        concern = connection.database.write_concern.document
        assert concern.get("w") == (1 if "w=1" in options else "majority")
        assert concern.get("j") == (True if "JOURNAL" in options else None)
        assert connection.client.options.pool_options.appname == ("a b" if "appName" in options else "dbloader")
    with open_store(place) as store:
        assert store.verify() == store.manifest.digest
        assert MongoReader(parse(place)).may_lag == ("secondary" in options)


# ---- What is there, or is not


@pytest.mark.parametrize(
    ("host", "options", "seconds"),
    [
        ("nowhere.invalid", "", 0.3),
        ("127.0.0.1:1", "?timeoutMS=200", 0.2),
        ("nowhere.invalid,127.0.0.1:1", "?timeoutMS=700", 0.7),
    ],
)
def test_a_server_that_is_not_there_is_told_within_seconds(
    monkeypatch: pytest.MonkeyPatch, host: str, options: str, seconds: float
) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.clients.SELECTION_SECONDS", 0.3)
    place = f"mongodb://{USER}:{quote_plus(PASSWORD)}@{host}/db.a{options}"
    for use in uses_of(place):
        began = time.monotonic()
        message = (
            rf"^no server answers at mongodb://{host}/db\.a within {seconds} s \(.*: is the host right, is the server"
        )
        with pytest.raises(StoreUnreachableError, match=message) as caught:
            use()
        assert time.monotonic() - began < 5
        check_secret(everything_in(caught.value))


def test_a_name_that_the_name_server_does_not_know_is_told_within_seconds() -> None:
    place = f"mongodb+srv://{USER}:{quote_plus(PASSWORD)}@nowhere.invalid/db.a"
    began = time.monotonic()
    with open_store(place) as store, pytest.raises(StoreUnreachableError, match=r"nowhere\.invalid/db\.a") as caught:
        len(store)
    assert time.monotonic() - began < 10
    check_secret(everything_in(caught.value))


@pytest.mark.slow
def test_a_server_that_waits_for_its_election_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, replica_set: Any, replica_set_uri: str
) -> None:
    write(replica_set_uri, make_records(3))
    monkeypatch.setattr("dbloader.stores.mongo.clients.SELECTION_SECONDS", 0.3)
    replica_set.step_down(2)
    with open_store(replica_set_uri) as store:
        assert len(store) == 3


def test_what_is_no_finished_store_is_told_apart(mongo_server: Server, mongo_uri: str) -> None:
    at = parse(mongo_uri)
    with mongo_server.client() as client:
        with (
            open_store(mongo_uri) as store,
            pytest.raises(StoreNotFoundError, match="does not exist; dbloader convert"),
        ):
            len(store)
        client[at.database][at.collection].insert_one({"img_name": "a", "bson_img": b"1"})
        message = r"is not a dbloader store, or its conversion is not finished: there is no manifest in .*\.manifest"
        with open_store(mongo_uri) as store, pytest.raises(NotAStoreError, match=message):
            len(store)
        with pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"):
            write_nothing(mongo_uri, overwrite=True)
        assert client[at.database].list_collection_names() == [at.collection]
        client[at.database][f"{at.collection}.manifest"].insert_one(
            {"_id": "store", "store": "x", "manifest": {"format": "x"}}
        )
        with open_store(mongo_uri) as store, pytest.raises(NotAStoreError, match="another program made"):
            len(store)
        client.drop_database(at.database)
    write_partial(mongo_uri, make_records(2))
    message = r"under way or was interrupted .*--resume"
    with open_store(mongo_uri) as store, pytest.raises(NotAStoreError, match=message):
        len(store)


# ---- Users


@contextmanager
def user(server: Mongod, *roles: dict[str, str], database: str = "admin", password: str = PASSWORD) -> Iterator[str]:
    """Make a user for a while; return the beginning of a place."""
    with server.client() as client:
        client[database].command("createUser", USER, pwd=password, roles=list(roles))
    try:
        yield f"mongodb://{USER}:{quote_plus(password)}@127.0.0.1:{server.port}"
    finally:
        with server.client() as client:
            client[database].command("dropUser", USER)
            for name in ("dbloader_users", "dbloader_others"):
                client.drop_database(name)


ALL = {"role": "readWrite", "db": "dbloader_users"}
READ = {"role": "read", "db": "dbloader_users"}


def test_a_user_with_rights_can_do_all(mongod_with_users: Mongod) -> None:
    with user(mongod_with_users, ALL) as server:
        place = f"{server}/dbloader_users.a?authSource=admin"
        for options in ({}, {"overwrite": True}, {"overwrite": True}):
            write(place, make_records(9), **options)
        with open_store(place) as store:
            assert store.verify() == store.manifest.digest
        with mongod_with_users.client() as client:
            assert client.dbloader_users.a.count_documents({}) == 9  # the view is of the last of the three


@pytest.mark.parametrize("wrong", ["password", "database", "nobody"])
def test_a_user_who_is_refused_learns_where_users_are_looked_up(mongod_with_users: Mongod, wrong: str) -> None:
    with user(mongod_with_users, ALL) as server:
        place = {
            "password": f"{server.replace('%2F', 'x')}/dbloader_users.a?authSource=admin",
            "database": f"{server}/dbloader_users.a",
            "nobody": f"{server.replace(USER, 'sentinel')}/dbloader_users.a?authSource=admin",
        }[wrong]
        began = time.monotonic()
        for use in uses_of(place):
            with pytest.raises(
                StoreAccessError, match=r"refuses this user or password .* looked up in the database 'dbloader_users'"
            ) as caught:
                use()
            check_secret(everything_in(caught.value))
        assert time.monotonic() - began < 5


def test_a_user_who_may_only_read_can_read_and_not_convert(mongod_with_users: Mongod) -> None:
    with user(mongod_with_users, ALL) as server:
        write(f"{server}/dbloader_users.a?authSource=admin", make_records(4))
        with mongod_with_users.client() as client:
            client.admin.command("updateUser", USER, roles=[READ])
        place = f"{server}/dbloader_users.a?authSource=admin"
        with open_store(place) as store:
            assert store.verify() == store.manifest.digest
        for name in ("a", "b"):
            what = (
                r"this user has not the right to do that \(not authorized on dbloader_users to execute \w+\); training "
                "needs the role read on the database, converting readWrite$"
            )
            with pytest.raises(StoreAccessError, match=what) as caught:
                write_nothing(f"{server}/dbloader_users.{name}?authSource=admin", overwrite=True)
            check_secret(everything_in(caught.value))


def test_a_user_of_another_database_has_no_right(mongod_with_users: Mongod) -> None:
    with user(mongod_with_users, ALL) as server:
        place = f"{server}/dbloader_others.a?authSource=admin"
        for use in uses_of(place):
            with pytest.raises(StoreAccessError, match=r"dbloader_others\.a: this user has not the right") as caught:
                use()
            check_secret(everything_in(caught.value))


def test_without_a_password_a_server_that_wants_one_says_so(mongod_with_users: Mongod) -> None:
    place = f"mongodb://127.0.0.1:{mongod_with_users.port}/dbloader_users.a"
    with (
        open_store(place) as store,
        pytest.raises(StoreAccessError, match=r"has not the right .*requires authentication"),
    ):
        len(store)


# ---- Secrets


@pytest.mark.slow
def test_credentials_are_in_no_message_log_or_pickle(
    mongod_with_users: Mongod,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("dbloader.stores.mongo.clients.SELECTION_SECONDS", 1.0)
    with user(mongod_with_users, ALL) as server:
        place = f"{server}/dbloader_users.a?authSource=admin"
        caplog.clear()
        with create_store(place) as writer:
            check_secret(repr(writer), writer.place, str(writer.report_path), str(writer.settings))
            with suppress(DBLoaderError):
                write_nothing(place)
            manifest = writer.finish()
        with open_store(place) as store, copy.copy(store) as one, copy.deepcopy(store) as other:
            assert len(store) == len(one) == len(other) == 0  # within the process the credentials are copied
            pickled = pickle.dumps(store)
            check_secret(repr(store), repr(one), store.place, str(manifest), str(store.manifest), repr(parse(place)))
            check_secret(pickled.decode("latin-1"))
        for wrong in (place.replace("%2F", ""), place.replace(f"{mongod_with_users.port}", "1")):
            with open_store(wrong) as store, pytest.raises(DBLoaderError, match="mongodb") as caught:
                len(store)
            check_secret(everything_in(caught.value))
        with pickle.loads(pickled) as stripped:  # noqa: S301 - our own
            with pytest.raises(StoreAccessError, match=r"a password is not pickled: make the store again") as caught:
                len(stripped)
            check_secret(everything_in(caught.value), pickle.dumps(stripped).decode("latin-1"))
        logged = [str(record.__dict__) for record in caplog.records]
        assert len(logged) > 20  # the driver's
        check_secret(*logged, *capfd.readouterr())


@pytest.mark.slow
def test_a_process_that_is_being_started_is_given_the_credentials(mongod_with_users: Mongod) -> None:
    context = multiprocessing.get_context("spawn")
    with user(mongod_with_users, ALL) as server:
        place = f"{server}/dbloader_users.a?authSource=admin"
        write(place, make_records(4))
        with open_store(place) as store:
            expected = store.documents([2])
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=send_document, args=(sender, store))
            process.start()
            sender.close()
            assert receiver.poll(WAIT_S)
            assert receiver.recv() == expected
            process.join(WAIT_S)
            process.close()
            receiver.close()


def send_document(sender: Any, store: Any) -> None:
    sender.send(store.documents([2]))


def test_credentials_are_in_nothing_that_the_command_line_prints(
    mongod_with_users: Mongod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root = plant_photos(tmp_path / "images", 3)
    (root / "cat" / "bad.jpg").write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)
    shell = Shell(monkeypatch, capfd)
    with user(mongod_with_users, ALL) as server:
        place = f"{server}/dbloader_users.a?authSource=admin"
        for status, *arguments in (
            (1, "convert", root, place),
            (2, "convert", root, place),
            (0, "verify", place),
            *((2, *line, place.replace("%2F", "")) for line in (["info"], ["verify"], ["bench"], ["copy", place])),
            (1, "doctor", place.replace("%2F", "")),
            (2, "convert", place.replace("%2F", ""), "x.lmdb"),
            (2, "convert", root, place.replace("%2F", "")),
            (2, "info", f"{place}&unknown=sentinel"),
        ):
            done = shell(*arguments)
            assert done.status == status, done
            check_secret(*done[1:])
        done = shell("convert", root, place, "--overwrite")
        assert f"mongodb://127.0.0.1:{mongod_with_users.port}/dbloader_users.a" in done.stdout
    reports = [path for path in tmp_path.iterdir() if path.is_file()]
    assert reports
    check_secret(*(path.name + path.read_text() for path in reports))
