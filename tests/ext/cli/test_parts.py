"""``dbloader plan``, ``part``, ``parts`` and ``publish``."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

from dbloader import convert, open_store
from dbloader.ext.parts import part as making
from dbloader.ext.parts.part import list_parts
from tests.support.images import plant_kinds
from tests.support.shell import Shell
from tests.support.waiting import wait_for


def test_published_parts_have_the_digest_of_an_unsharded_store(shell: Shell, place: Path, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    plant_kinds(root, "photo", "text", "png", "no end marker")
    one = convert(root, tmp_path / "one.lmdb")
    outcome = shell("plan", root, place, "--shards", "4")
    assert outcome.stdout.splitlines() == [
        f"{place}.partial: 5 files in 4 parts, 0 to 3",
        f"  images: {root}",
        "  labels: the first folder of each path: 2 classes, 'cat' is 0 and 'dog' is 1",
    ]
    outcome = shell("part", place, "1", "--scratch", tmp_path)
    assert outcome.stdout.startswith("part 1: 1 record, ")
    outcome = shell("parts", place, "--scratch", tmp_path)
    assert (outcome.status, outcome.stdout) == (1, f"{place}.partial: 1 of 4 parts are made; missing 0,2-3\n")
    assert shell("parts", place, "--missing").stdout == "0,2-3\n"
    assert shell("publish", place).status == 2
    for part in (0, 2, 3):
        assert json.loads(shell("part", place, part, "--json").stdout)["part"] == part
    found = json.loads(shell("parts", place, "--scratch", tmp_path, "--json").stdout)
    assert [receipt["part"] for receipt in found.pop("receipts")] == [0, 1, 2, 3]
    assert found == {"parts": 4, "made": [0, 1, 2, 3], "missing": [], "making": [], "left": []}
    made = shell("parts", place, "--scratch", tmp_path, "--made").stdout.splitlines()
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


def test_parts_command_names_the_machine_that_makes_a_part(shell: Shell, root: Path, place: Path) -> None:
    shell("plan", root, place, "--shards", "3")
    plan = list_parts(place).plan
    for name in (plan.attempt_name(1), "parts/00002-0badcafe.elsewhere.making"):  # the latter is of a replaced plan
        (plan.folder / name).touch()
    line = f"{place}.partial: 0 of 3 parts are made; missing 0-2\n  part 1: begun 0 min ago on {socket.gethostname()}"
    assert shell("parts", place, "--scratch", place.parent).stdout == f"{line}; still running, or killed\n"
    (plan.folder / plan.attempt_name(1)).unlink()
    assert shell("part", place, "1").status == 0
    assert "running" not in shell("parts", place).stdout


def test_only_folders_of_killed_parts_are_removed(shell: Shell, root: Path, place: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    shell("plan", root, place, "--shards", "3")

    def wait_in_part() -> None:
        def make(*_: Any) -> Any:
            (scratch / "begun").touch()
            signal.pause()

        making._make_shard = make  # type: ignore[assignment]
        making.convert_part(place, 1, scratch=scratch)

    process = multiprocessing.get_context("fork").Process(target=wait_in_part)
    process.start()
    wait_for((scratch / "begun").exists, "the part has begun")
    line = f"{place}.partial: 0 of 3 parts are made; missing 0-2\n  part 1: begun 0 min ago on {socket.gethostname()}"
    (folder,) = scratch.glob("dbloader-part-*")
    os.utime(folder, (0, 0))
    assert shell("parts", place, "--scratch", scratch, "--clean").stdout == f"{line}; still running, or killed\n"
    assert folder.exists(), "it is in use"
    process.kill()
    process.join()
    process.close()
    outcome = shell("parts", place, "--scratch", scratch)
    assert re.search(rf"  {folder}: \d+ bytes of a killed part \(--clean removes them\)\n$", outcome.stdout)
    (folder / "half").write_bytes(bytes(10**6))
    os.utime(folder, (0, 0))
    outcome = shell("parts", place, "--scratch", scratch, "--clean")
    assert outcome.stdout.endswith(f"  {folder}: 1.0 MB of a killed part were removed\n")
    assert not folder.exists()
    assert shell("part", place, "1", "--scratch", scratch).status == 0
