"""``dbloader plan``, ``part``, ``parts`` and ``publish``."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

from dbloader import convert, open_store
from dbloader.conversion.parts.part import list_parts
from tests.support.images import plant_kinds
from tests.support.shell import Shell


def test_published_parts_have_the_digest_of_an_unsharded_store(shell: Shell, place: Path, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    plant_kinds(root, "photo", "text", "png", "no end marker")
    one = convert(root, tmp_path / "one.lmdb")
    outcome = shell("plan", root, place, "--shards", "4")
    assert outcome.stdout == f"{place}.partial: 5 files in 4 parts, 0 to 3\n"
    outcome = shell("part", place, "1", "--scratch", tmp_path)
    assert outcome.stdout.startswith("part 1: 1 record, ")
    outcome = shell("parts", place)
    assert (outcome.status, outcome.stdout) == (1, f"{place}.partial: 1 of 4 parts are made; missing 0,2-3\n")
    assert shell("parts", place, "--missing").stdout == "0,2-3\n"
    assert shell("publish", place).status == 2
    for part in (0, 2, 3):
        assert json.loads(shell("part", place, part, "--json").stdout)["part"] == part
    found = json.loads(shell("parts", place, "--json").stdout)
    assert [receipt["part"] for receipt in found.pop("receipts")] == [0, 1, 2, 3]
    assert found == {"parts": 4, "made": [0, 1, 2, 3], "missing": [], "making": []}
    made = shell("parts", place, "--made").stdout.splitlines()
    assert re.fullmatch(rf"  part 3: 1 record, .* made in \d+ s by {socket.gethostname()}", made[-1])
    outcome = shell("publish", place)
    assert outcome.status == 1  # one file was rejected
    assert f"  digest    {one.digest}\n" in outcome.stdout
    assert "images/s" not in outcome.stdout
    with open_store(place) as store:
        assert store.verify() == one.digest
    again = shell("publish", place)  # as a restarted job does
    assert again.status == 0
    assert one.digest in again.stdout
    assert "was published already" in again.stderr


def test_commands_accept_a_folder_of_shards(shell: Shell, root: Path, place: Path, tmp_path: Path) -> None:
    assert shell("convert", root, place, "--shards", "3", "-q").status == 0
    with open_store(place) as store:
        digest = store.manifest.digest
    assert shell("verify", place).status == 0
    assert len(shell("ls", place).stdout.splitlines()) == 12
    assert json.loads(shell("show", place, "5", "--json").stdout)["index"] == 5
    for name in ("copy", "convert"):
        assert shell(name, place, tmp_path / f"{name}.lmdb", "-q").status == 0
        with open_store(tmp_path / f"{name}.lmdb") as store:
            assert store.manifest.digest == digest
    assert shell("verify", place, "--against", tmp_path / "copy.lmdb").status == 0
    assert shell("export", place, tmp_path / "files", "-q").status == 0
    assert shell("doctor", place).status in (0, 1)


def test_parts_names_the_machine_that_makes_a_part(shell: Shell, root: Path, place: Path) -> None:
    shell("plan", root, place, "--shards", "3")
    plan = list_parts(place).plan
    for name in (plan.attempt_name(1), "parts/00002-0badcafe.elsewhere.making"):  # the latter is of a replaced plan
        (plan.folder / name).touch()
    line = f"{place}.partial: 0 of 3 parts are made; missing 0-2\n  part 1: begun 0 min ago on {socket.gethostname()}"
    assert shell("parts", place).stdout == f"{line}; still running, or killed\n"
    (plan.folder / plan.attempt_name(1)).unlink()
    assert shell("part", place, "1").status == 0
    assert "running" not in shell("parts", place).stdout
