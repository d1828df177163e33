"""No message of the command line repeats a password that was given to it, however the line is mistyped."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote_plus

import pytest

from dbloader import convert
from dbloader.cli.places import redacted, remember
from dbloader.errors import PlaceError
from dbloader.stores.mongo.uri import parse
from tests.support.images import plant_photos

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.shell import Shell

PASSWORD = "hunter2-Zx"
PLACE = f"mongodb://alice:{PASSWORD}@127.0.0.1:1/images.train"

LINES = [
    # Places as they should be, of a server that is not there.
    ["info", PLACE], ["info", PLACE, "--json"], ["info", PLACE, "--report"], ["info", "--json", PLACE],
    ["verify", PLACE], ["verify", "--quiet", PLACE], ["bench", PLACE],
    ["doctor", PLACE], ["doctor", PLACE, "--json"], ["doctor", f"--json={PLACE}"],
    ["copy", PLACE, "x.lmdb"], ["copy", "old.lmdb", PLACE], ["copy", PLACE, PLACE],
    ["convert", "images", PLACE], ["convert", PLACE, "x.lmdb"], ["convert", PLACE, "x.lmdb", "--listing", "all.csv"],
    ["convert", "images", PLACE, "--overwrite"], ["convert", "images", PLACE, "--resume"],
    # A command that is missing, mistyped or in the wrong place.
    [PLACE], [PLACE, "info"], ["inf", PLACE], [f"info={PLACE}"], ["--version-", PLACE], ["-x", PLACE], ["--", PLACE],
    # Too much or too little.
    ["info", PLACE, PLACE], ["info", "a", PLACE], ["info", "a", "b", PLACE], ["verify", "a", PLACE],
    ["bench", "a", PLACE], ["copy", "a", "b", PLACE], ["copy", PLACE],
    ["convert", "a", "b", PLACE], ["convert", PLACE], ["convert", "images", "x.lmdb", PLACE, PLACE],
    ["info", "--json", "--report", PLACE],
    # As the value of an option.
    *(
        ["convert", "images", "x.lmdb", *option]
        for name in (
            "--check", "--on-bad", "--on-damaged", "--listing", "--workers", "--max-side", "--short-side", "--quality",
            "--tile-width", "--shuffle-seed", "--name-field", "--image-field",
        )
        for option in ([name, PLACE], [f"{name}={PLACE}"])
    ),
    *(["bench", "old.lmdb", name, PLACE] for name in ("--workers", "--size", "--seconds", "--rounds", "--batch-size")),
    ["bench", "old.lmdb", f"--workers={PLACE}"],
    ["convert", PLACE, "x.lmdb", "--listing", PLACE],
    ["convert", PLACE, "x.lmdb", "--listing", PLACE, "--name-field", PLACE],
    # As the name of an option.
    ["info", f"--{PLACE}"], ["info", f"--json={PLACE}"], ["info", f"-{PLACE}"], [f"--{PLACE}"],
    ["verify", f"-q{PLACE}"],
    ["convert", "images", "x.lmdb", f"--quiet={PLACE}"], ["info", f"--jsno={PLACE}", PLACE],
]  # fmt: skip

# Mistyped, unescaped, or divided by the shell; every one stands where a place does.
MISTYPED = [
    PLACE.replace("://", ":/"), PLACE.replace("://", ":///"), PLACE.replace("://", ":"), PLACE.replace("://", "//"),
    PLACE.replace("://", "/"), PLACE.replace("://", ";//"), PLACE.replace("mongodb", "mongo"),
    PLACE.replace("mongodb", "mongodb+srvv"), PLACE.replace("mongodb", "MONGODB"), PLACE.replace("mongodb", "http"),
    PLACE.replace("mongodb", "mogodb"), PLACE.replace("mongodb", ""), PLACE.replace("mongodb:", ""),
    PLACE.removeprefix("mongodb://"), f" {PLACE}", f"'{PLACE}'", f"uri={PLACE}", f"./{PLACE}", f"{PLACE}\n",
    f"{PLACE}.",
    PLACE.replace("/images.train", ""), PLACE.replace(".train", ""), PLACE.replace("images.train", "images/train"),
    PLACE.replace("images", "im ages"), PLACE.replace("train", "$train"), PLACE.replace("127.0.0.1:1", ""),
    PLACE.replace(":1/", ":one/"), PLACE.replace("alice", ""), PLACE.replace("alice", "al/ice"),
    PLACE.replace("alice", "al@ice"), PLACE.replace("@127", "@@127"), PLACE.replace("@127", "/@127"),
    PLACE.replace("@127", "?@127"), PLACE.replace("@127", "#@127"), PLACE.replace("@127", ":x@127"),
    PLACE.replace(f":{PASSWORD}", f"/{PASSWORD}"), PLACE.replace("mongodb://", "mongodb+srv://"),
    f"{PLACE}?authSource=admin&bad", f"{PLACE}?tls=maybe", f"{PLACE}?authMechanism=none",
    f"mongodb://127.0.0.1:1/images.train?tlsCertificateKeyFilePassword={PASSWORD}&tls=false",
    f"mongodb://127.0.0.1:1/images.train?authMechanismProperties=AWS_SESSION_TOKEN:{PASSWORD}",
]  # fmt: skip

AROUND = [
    ["info"], ["doctor"], ["verify"], ["bench"], [], ["copy", "old.lmdb"], ["convert", "images"],
    ["info", "more"],
    ["convert", "images", "x.lmdb", "--listing"], ["convert", "images", "x.lmdb", "--check"],
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("here")
    convert(plant_photos(folder / "images", 3), folder / "old.lmdb")
    (folder / "all.csv").write_text("path,label\ncat/0000.jpg,cat\n")
    return folder


class Printed:
    """Runs a command, and returns all that it prints."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell

    def __call__(self, *arguments: str) -> str:
        outcome = self.shell(*arguments)
        assert "Traceback" not in outcome.stderr
        return outcome.stdout + outcome.stderr


@pytest.fixture
def printed(shell: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Printed]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("dbloader.stores.mongo.clients.SELECTION_SECONDS", 0.01)
    yield Printed(shell)
    for made in (*folder.glob("x.lmdb*"), *folder.glob("*.report.jsonl")):
        made.unlink()


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line).replace(PLACE, "URI"))
def test_no_line_prints_its_password(line: list[str], printed: Printed) -> None:
    shown = printed(*line)
    assert shown
    assert PASSWORD not in shown


@pytest.mark.parametrize("around", AROUND, ids=" ".join)
def test_no_mistyped_place_is_printed_with_its_password(around: list[str], printed: Printed) -> None:
    for place in MISTYPED:
        assert PASSWORD not in printed(*around, place), place


UNUSUAL = (
    "p@ss/w0rd", "p:a:ss", "pw", "ä%20ö", "a b c", "tab\tbed", "50%", "ünï+cödé", "a'b\"c\\d", "..//..", "\x1b[2J",
    "pa=ss&word", "what?no#way",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("around", AROUND, ids=" ".join)
def test_a_password_of_unusual_letters_is_not_printed_either(around: list[str], printed: Printed) -> None:
    for password in UNUSUAL:
        for given in (password, quote_plus(password)):
            for place in (f"mongodb://zo:{given}@127.0.0.1:1/x.y", f"mongodb:/zo:{given}@127.0.0.1:1/x.y"):
                printout = printed(*around, place)
                for shown in (given, password, repr(password)[1:-1]):
                    assert f"zo:{shown}" not in printout
                    assert f":{shown}@" not in printout
                    assert len(shown) < 3 or shown not in printout


@pytest.mark.parametrize("around", AROUND, ids=" ".join)
def test_a_password_that_is_cut_off_or_divided_by_the_shell_is_not_printed(around: list[str], printed: Printed) -> None:
    for place in (
        [f"mongodb://u:{PASSWORD}"], [f"mongodb://u:{PASSWORD}/x.y"], [f"mongodb://u:{PASSWORD}?tls=true"],
        [f"mongodb://u:{PASSWORD} localhost/x.y"], [f"mongodb://u:{PASSWORD}", "localhost/x.y"],
        [f"mongodb:/u:{PASSWORD}/x.y"], [f"mongodb://h:1,u:{PASSWORD}"], [f"mongodb://[::1]:{PASSWORD}/x.y"],
        ["mongodb://alice:first", PASSWORD, "last@127.0.0.1:1/x.y"], [f"mongodb://alice:{PASSWORD}", "last@h/x.y"],
    ):  # fmt: skip
        assert PASSWORD not in printed(*around, *place), place


@pytest.mark.parametrize("rest", ["", "/x.y", "/x", " localhost/x.y"])
def test_the_library_repeats_no_password_without_a_host_either(rest: str) -> None:
    with pytest.raises(PlaceError, match="port is not a number, or whose host is missing after a password") as error:
        parse(f"mongodb://u:{PASSWORD}{rest}")
    assert PASSWORD not in str(error.value)


@pytest.mark.parametrize("hosts", ["[::1]", "[::1]:27017", "a:1,[fe80::1]:2,c", "a,b:27017"])
def test_hosts_and_ports_are_still_shown(hosts: str) -> None:
    assert parse(f"mongodb://{hosts}/x.y").redacted == f"mongodb://{hosts}/x.y"
    remember([f"mongodb://{hosts}/x.y"])
    assert redacted(f"mongodb://{hosts}/x.y") == f"mongodb://{hosts}/x.y"


def test_paths_without_a_password_are_still_shown(printed: Printed) -> None:
    for place in ("at@home/x.lmdb", "/a:b@2x/c.lmdb", "//a@b/c.lmdb", "mongodb@home.lmdb", "a//b@c.lmdb"):
        assert f"Error: {place} does not exist" in printed("info", place)
    shown = printed(f"mongodb://u:{PASSWORD}@h/x.y")
    assert shown == "Error: No such command 'mongodb://***@h/x.y'. (see dbloader --help)\n"
