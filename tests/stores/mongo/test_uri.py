"""Places in MongoDB: which places are valid, errors about invalid places, and credentials, which stay secret."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import pickle
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, unquote

import pytest

from dbloader import MongoDataset, Record, open_store
from dbloader._places import is_mongo
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
from dbloader.stores.mongo.uri import parse
from dbloader.stores.open import create_store
from tests.contracts.records import WAIT_S, make_records, write, write_nothing, write_partial
from tests.support.images import plant_photos
from tests.support.mongo import Mongod, Server
from tests.support.shell import Shell

USER, PASSWORD = "jane-sentinel", "s3cret-sentinel/@:%+"
SECRET = "sentinel"  # a part of both secrets that escaping does not change


def check_secret(*found: str | BaseException) -> None:
    """Check that no text, and nothing that an error or its causes can show, contains a secret."""
    todo, seen = [*found], []
    while todo:
        one = todo.pop()
        if isinstance(one, BaseException):
            seen.append(one)
            todo += [other for other in (one.__cause__, one.__context__) if other is not None and other not in seen]
            one = "\n".join([str(one), repr(one), *getattr(one, "__notes__", ()), *traceback.format_exception(one)])
        assert SECRET not in one


def uses_of(place: str) -> tuple[Callable[[], object], ...]:
    """Return functions that read and write at a place."""
    return lambda: len(open_store(place)), lambda: write_nothing(place)


def check_refused(place: str, kind: type[Exception], message: str) -> None:
    """Check that reading and writing at a place raise this error and show no secrets."""
    for use in uses_of(place):
        with pytest.raises(kind, match=message) as caught:
            use()
        check_secret(caught.value)


# ---- Valid places


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
def test_place_has_database_and_collection(place: str, database: str, collection: str, shown: str) -> None:
    assert is_mongo(place)
    parsed = parse(place)
    assert (parsed.database, parsed.collection, parsed.redacted) == (database, collection, shown)
    assert repr(parsed) == f"MongoURI({shown!r})"
    assert repr(open_store(place)) == f"MongoStore({shown!r})"
    assert parse(parsed.uri) == parsed


NOT_LIKE_THIS = [
    *("host", "host/", "host?w=1", "host/.a", "host/db", "host/db.?w=1", "/db.a", "host/db.a/b", "host/db/a"),
    *("u:sentinel", "u:sentinel@/db.a", "u:sentinel localhost/db.a", "u:sentinel/x/y", "u:sent/inel@host/db.a"),
    *("u:sentinel?x@host/db.a", "u-sentinel:x?y@host/db.a", "u:1/sentinel.a?x@host/db.a"),
]
MISTYPED = ("mongodb:/", "mongodb:", "mongodb//", "MongoDB:///x/", "mongo://", "mongodb+srv:/")
NAMES = [
    *("d$b.a", "d%20b.a", f"{'d' * 64}.a"),
    *(f"db.{name}" for name in ("a$b", "system.users", ".a", "a..b", "a.", "a%2Fb")),
]


@pytest.mark.parametrize(
    ("message", "places"),
    [
        (
            r"^the URI of a MongoDB collection has the form mongodb://host/database\.collection, got another form; ",
            [*(f"mongodb://{rest}" for rest in NOT_LIKE_THIS), *(f"{one}u:sentinel@host/db.a" for one in MISTYPED)],
        ),
        ("^MongoDB allows no collection '", [f"mongodb://host/{name}" for name in NAMES]),
    ],
)
def test_invalid_place_is_refused(message: str, places: list[str]) -> None:
    for place in places:
        for use in (parse, open_store, create_store, MongoDataset):
            with pytest.raises(PlaceError, match=message) as caught:
                use(place)
            assert SECRET not in str(caught.value)
            assert "sent/inel" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("wtimout=3", "Unknown option: wtimout"),
        ("w=majority&readPreference=nearby", "nearby is not a valid read preference"),
        ("authMechanismProperties=sentinel", "auth mechanism properties"),
        ("tlsCAFile=/nowhere/ca.pem&tls=true", "No such file"),
        ("w=1&replicaSet", "="),
    ],
)
def test_unusable_option_is_refused(options: str, message: str) -> None:
    check_refused(
        f"mongodb://localhost/db.a?{options}", PlaceError, rf"^mongodb://localhost/db\.a cannot be used: .*{message}"
    )


def test_writing_without_acknowledgement_is_refused() -> None:
    with pytest.raises(PlaceError, match="a store cannot be written with w=0"):
        write_nothing("mongodb://localhost/db.a?w=0")


def test_redact_hides_credentials() -> None:
    place = parse("mongodb://jane:p%40ss%2Fword@host/db.a?authMechanismProperties=AWS_SESSION_TOKEN:t0ken&w=1")
    text = "jane:p%40ss%2Fword p%40ss%2Fword p@ss/word jane AWS_SESSION_TOKEN:t0ken host w=1"
    assert place.redact(text) == "*** *** *** *** *** host w=1"
    assert parse("mongodb://a:b@host/db.a").redact("a bad word of a or b: abba") == "*** bad word of *** or ***: abba"
    bare = place.without_credentials()
    assert (bare.uri, bare.stripped) == ("mongodb://host/db.a?w=1", True)
    for user in ("jane@", "", "a%40b@"):  # without a password
        place = parse(f"mongodb://{user}host/db.a?w=1")
        assert place.without_credentials() == place


SECRET_OPTIONS = {
    "proxyPassword=sentinel%2F1": "proxyHost=127.0.0.1&proxyPort=1&proxyUsername=jane-sentinel",
    "tlsCertificateKeyFilePassword=sentinel%2F1": "tls=true&tlsCertificateKeyFile=/nowhere/client.pem",
    "authMechanismProperties=AWS_SESSION_TOKEN:sentinel%2F1": "authMechanism=MONGODB-AWS",
}


@pytest.mark.parametrize("secret", SECRET_OPTIONS)
def test_secret_option_is_redacted_and_in_no_error(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.connection.SELECTION_SECONDS", 0.3)
    place = f"mongodb://127.0.0.1:1/db.a?{SECRET_OPTIONS[secret]}&{secret}&w=1"
    parsed = parse(place)
    value = secret.partition("=")[2]
    check_secret(parsed.redact(f"{value} {unquote(value)}"), repr(parsed), parsed.without_credentials().uri)
    check_secret(pickle.dumps(parsed).decode("latin-1"))
    assert parsed.without_credentials().stripped
    for use in uses_of(place):
        with warnings.catch_warnings(record=True) as warned, pytest.raises(DBLoaderError, match="mongodb") as caught:
            use()
        check_secret(caught.value, *(str(one.message) for one in warned))


@pytest.mark.parametrize(
    "options",
    [
        "W=majority&JOURNAL=true&tz_aware=true&retryWrites=false&compressors=zlib",
        "w=1;wtimeoutMS=5000;appName=a%20b",
        "readPreference=secondaryPreferred",
    ],
)
def test_options_in_a_place_take_effect(mongo_uri: str, options: str) -> None:
    place = f"{mongo_uri}?{options}"
    write(place, make_records(5))
    with closing(Connection(parse(place), writing=True)) as connection:
        concern = connection.database.write_concern.document
        assert concern.get("w") == (1 if "w=1" in options else "majority")
        assert concern.get("j") == (True if "JOURNAL" in options else None)
        assert connection.client.options.pool_options.appname == ("a b" if "appName" in options else "dbloader")
    with open_store(place) as store:
        assert store.verify() == store.manifest.digest


# ---- Places without a server or a store


@pytest.mark.parametrize(
    ("host", "options", "seconds"), [("nowhere.invalid", "", 0.3), ("127.0.0.1:1", "?timeoutMS=700", 0.7)]
)
def test_missing_server_raises_within_seconds(
    monkeypatch: pytest.MonkeyPatch, host: str, options: str, seconds: float
) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.connection.SELECTION_SECONDS", 0.3)
    began = time.monotonic()
    message = rf"^no server answers at mongodb://{host}/db\.a within {seconds} s \(.*: is the host right, is the server"
    check_refused(f"mongodb://{USER}:{quote_plus(PASSWORD)}@{host}/db.a{options}", StoreUnreachableError, message)
    assert time.monotonic() - began < 10


@pytest.mark.slow
def test_reader_waits_for_a_primary(monkeypatch: pytest.MonkeyPatch, replica_set: Any, replica_set_uri: str) -> None:
    write(replica_set_uri, make_records(3))
    monkeypatch.setattr("dbloader.stores.mongo.connection.SELECTION_SECONDS", 0.3)
    replica_set.step_down(2)
    with open_store(replica_set_uri) as store:
        assert len(store) == 3


def test_error_distinguishes_missing_foreign_and_unfinished_stores(mongo_server: Server, mongo_uri: str) -> None:
    def check(kind: type[Exception], message: str) -> None:
        with open_store(mongo_uri) as store, pytest.raises(kind, match=message):
            len(store)

    at = parse(mongo_uri)
    with mongo_server.client() as client:
        database = client[at.database]
        check(StoreNotFoundError, "does not exist; dbloader convert")
        database[at.collection].insert_one({"img_name": "a", "bson_img": b"1"})
        check(NotAStoreError, r"is not a dbloader store: .*\.manifest has no manifest, or another program's manifest$")
        with pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"):
            write_nothing(mongo_uri, overwrite=True)
        assert database.list_collection_names() == [at.collection]
        database[f"{at.collection}.manifest"].insert_one({"_id": "store", "store": "x", "manifest": {"format": "x"}})
        check(NotAStoreError, "has no manifest, or another program's manifest$")
        client.drop_database(at.database)
    write_partial(mongo_uri, make_records(2))
    check(NotAStoreError, r"under way or was interrupted .*--resume")


# ---- Users


@pytest.fixture
def user_place(mongod_with_users: Mongod) -> Iterator[str]:
    """A place with a user who has the role readWrite, and with the user's password."""
    with mongod_with_users.client() as client:
        client.admin.command("createUser", USER, pwd=PASSWORD, roles=[{"role": "readWrite", "db": "dbloader_users"}])
    user = f"{USER}:{quote_plus(PASSWORD)}"
    yield f"mongodb://{user}@127.0.0.1:{mongod_with_users.port}/dbloader_users.a?authSource=admin"
    with mongod_with_users.client() as client:
        client.admin.command("dropUser", USER)
        client.drop_database("dbloader_users")


def test_role_read_write_suffices_to_convert(mongod_with_users: Mongod, user_place: str) -> None:
    for options in ({}, {"overwrite": True}, {"overwrite": True}):
        write(user_place, make_records(9), **options)
    with open_store(user_place) as store:
        assert store.verify() == store.manifest.digest
    with mongod_with_users.client() as client:
        assert client.dbloader_users.a.count_documents({}) == 9  # the view shows the last of the three stores


@pytest.mark.parametrize(("old", "new"), [("%2F", "x"), ("?authSource=admin", "")], ids=["password", "database"])
def test_error_of_a_refused_login_names_the_database_of_users(user_place: str, old: str, new: str) -> None:
    message = r"refuses this user or password .* not in the database 'dbloader_users', add "
    check_refused(user_place.replace(old, new), StoreAccessError, message)


def test_role_read_suffices_to_read_but_not_to_write(mongod_with_users: Mongod, user_place: str) -> None:
    write(user_place, make_records(4))
    with mongod_with_users.client() as client:
        client.admin.command("updateUser", USER, roles=[{"role": "read", "db": "dbloader_users"}])
    with open_store(user_place) as store:
        assert store.verify() == store.manifest.digest
    message = (
        r"this user lacks a permission \(not authorized on dbloader_users to execute \w+\); training "
        "needs the role read on the database, and converting needs readWrite$"
    )
    for name in ("a", "b"):
        with pytest.raises(StoreAccessError, match=message) as caught:
            write_nothing(user_place.replace("users.a", f"users.{name}"), overwrite=True)
        check_secret(caught.value)
    message = r"dbloader_others\.a: this user lacks a permission"
    check_refused(user_place.replace("users.a", "others.a"), StoreAccessError, message)


def test_place_without_a_user_on_a_server_with_users_is_told_to_name_one(user_place: str) -> None:
    write(user_place, make_records(4))
    place = f"mongodb://{user_place.partition('@')[2].partition('?')[0]}"
    why = r"the server asks for a user, but the URI names none \(command \w+ requires authentication\)"
    remedy = f"give {place.replace('://', '://USER@')}, and set DBLOADER_MONGODB_PASSWORD"
    message = rf"^{place}: {why}; {remedy}; perhaps \?authSource=DATABASE is needed too$"
    with pytest.raises(StoreAccessError, match=message), open_store(place) as store:
        len(store)
    with pytest.raises(StoreAccessError, match=message):
        write_nothing(place, overwrite=True)
    with open_store(user_place) as store:
        assert len(store) == 4
        lost = pickle.loads(pickle.dumps(store))  # noqa: S301 - it was pickled here
    with pytest.raises(StoreAccessError, match="was pickled without its password"), lost:
        len(lost)


# ---- Secrets


@pytest.mark.slow
def test_credentials_are_in_no_message_log_or_pickle(
    mongod_with_users: Mongod,
    user_place: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("dbloader.stores.mongo.connection.SELECTION_SECONDS", 1.0)
    with create_store(user_place) as writer:
        check_secret(repr(writer), writer.place, str(writer.report_path), str(writer.settings))
        with suppress(DBLoaderError):
            write_nothing(user_place)
        manifest = writer.finish()
    with open_store(user_place) as store, copy.copy(store) as one, copy.deepcopy(store) as other:
        assert len(store) == len(one) == len(other) == 0  # copies within the process keep the credentials
        pickled = pickle.dumps(store)
        check_secret(repr(store), repr(one), store.place, str(manifest), str(store.manifest), repr(parse(user_place)))
        check_secret(pickled.decode("latin-1"))
    for wrong in (user_place.replace("%2F", ""), user_place.replace(f"{mongod_with_users.port}", "1")):
        with open_store(wrong) as store, pytest.raises(DBLoaderError, match="mongodb") as caught:
            len(store)
        check_secret(caught.value)
    message = r"the store object was pickled without its password: open the store again"
    with pickle.loads(pickled) as stripped:  # noqa: S301 - our own
        with pytest.raises(StoreAccessError, match=message) as caught:
            len(stripped)
        check_secret(caught.value, pickle.dumps(stripped).decode("latin-1"))
    logged = [str(record.__dict__) for record in caplog.records]
    assert len(logged) > 20  # the driver's own log messages
    check_secret(*logged, *capfd.readouterr())


@pytest.mark.slow
def test_spawned_process_gets_credentials(user_place: str) -> None:
    write(user_place, make_records(4))
    with open_store(user_place) as store:
        process = multiprocessing.get_context("spawn").Process(target=store.read, args=([2],))
        process.start()
        process.join(WAIT_S)
        assert process.exitcode == 0  # without a password, the process ends with an error
        process.close()


def test_pickle_and_repr_of_a_dataset_have_no_credentials(user_place: str) -> None:
    write(user_place, [Record(label=index % 2, image=b"x") for index in range(4)])
    with MongoDataset(user_place, decode=None, query={"label": 1}) as dataset:
        check_secret(pickle.dumps(dataset).decode("latin-1"), repr(dataset), repr(dataset.store), dataset.root)


def test_command_line_prints_no_credentials(
    user_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root = plant_photos(tmp_path / "images", 3)
    (root / "cat" / "bad.jpg").write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)
    shell = Shell(monkeypatch, capfd)
    refused = user_place.replace("%2F", "")
    for status, *arguments in (
        (1, "convert", root, user_place),
        (0, "verify", user_place),
        *((2, *line, refused) for line in (["info"], ["convert", root])),
        (2, "info", f"{user_place}&unknown=sentinel"),
    ):
        done = shell(*arguments)
        assert done.status == status, done
        check_secret(*done[1:])
    done = shell("convert", root, user_place, "--overwrite")
    assert f"{parse(user_place).redacted}" in done.stdout
    reports = [path for path in tmp_path.iterdir() if path.is_file()]
    assert reports
    check_secret(*(path.name + path.read_text() for path in reports))
