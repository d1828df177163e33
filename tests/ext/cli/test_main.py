"""What all commands share: errors, exit statuses, help, streams and names, for the commands around the core."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dbloader.checking.verify_store import verify_store
from dbloader.conversion.convert import convert
from dbloader.ext.parts.part import convert_part
from dbloader.ext.parts.publish import publish
from tests.cli.test_main import (  # noqa: F401 - folder is a fixture
    CLOSED,
    NEW,
    at_each_start,
    check_closed_pipe,
    check_ctrl_c,
    check_error_about_stdout,
    check_help,
    check_json,
    check_refusal,
    folder,
    interrupt,
)
from tests.cli.test_main import COMMANDS as CORE
from tests.support.children import descendants
from tests.support.engine_kills import makes_a_part
from tests.support.images import WAIT_S, Outcome, command, photo, plant, running, subcommands, wait_until
from tests.support.parts import plan_conversion
from tests.support.shell import Shell

COMMANDS = {name: command for name, command in subcommands().items() if name not in CORE}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "file.txt", "new.lmdb"], "file.txt: convert cannot read this file: give"),
        (["convert", "images", "s3://bucket/x"], "s3://bucket/x is in object storage, which this operation does not s"),
        (["convert", "images", " ", "--shards", "2"], "a place must be the path of an LMDB file"),
        (["copy", " ", "new.lmdb"], "a place must be the path of an LMDB file or .*, got ' '"),
        (["copy", "old.lmdb", " "], "a place must be the path of an LMDB file or .*, got ' '"),
        (["copy", "old.lmdb", "--", "-q"], "got '-q', which looks like an option; for a file: ./-q"),
        (["export", "old.lmdb", " "], "the destination must be the path of a folder, such as ./images, got ' '"),
        (["export", "old.lmdb", "--", "--format"], "path of a folder, such as ./images, got '--format'"),
        (["convert", "new.lmdb", "images", "--shards", "2"], "swapped, write dbloader convert images new.lmdb"),
        (["bench", "old.lmdb", "--workers", "1;2"], "must be numbers separated by commas, such as 1,2,4, got '1;"),
    ],
)
def test_invalid_input_prints_one_line_on_stderr_and_changes_no_file(
    shell: Shell,
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    check_refusal(shell, folder, arguments, message)


def test_interruption_prints_one_line_and_gives_status_130(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.cli.convert.convert", interrupt)
    monkeypatch.setattr("dbloader.ext.cli.copy.copy_store", interrupt)
    message = "Interrupted: committed records are kept; --resume continues after them\n"
    assert shell("copy", "images", "out.lmdb") == Outcome(130, "", message)
    message = "Interrupted: copied files are kept; the same command copies the remaining files\n"
    assert shell("copy", "s3://bucket/train.lmdb", "out.lmdb") == Outcome(130, "", message)
    for options, again in (((), "the same command"), (("--overwrite",), "the same command with --resume")):
        message = f"Interrupted: finished parts are kept; {again} makes the remaining parts\n"
        assert shell("convert", "images", "out.lmdb", "--shards", "2", *options) == Outcome(130, "", message)


@pytest.mark.slow
@at_each_start
def test_ctrl_c_at_the_start_prints_one_line(store: Path, began: Callable[[int], bool]) -> None:
    check_ctrl_c(store, ["convert", "images", "new.lmdb", "--shards", "4"], began)


@pytest.mark.slow
def test_background_conversion_ignores_sigint_as_its_shell_asks(store: Path) -> None:
    ignore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_IGN)  # as a shell does for a job with &
    arguments = command("convert", "images", "new.lmdb", "--shards", "2")
    options = {"stderr": subprocess.PIPE, "start_new_session": True, "preexec_fn": ignore}
    with running(arguments, cwd=store.parent, **options) as process:
        assert wait_until(process, lambda: any(map(makes_a_part, descendants(process.pid))))
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=WAIT_S)
    assert (process.returncode, stderr) == (0, "")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_each_command_describes_every_option_and_ends_with_examples(shell: Shell, name: str) -> None:
    check_help(shell, name, COMMANDS[name])


def test_help_names_the_commands(shell: Shell) -> None:
    printed = shell("--help").stdout
    assert [name for name in COMMANDS if f"\n  {name} " not in printed] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["ls", "out.lmdb"], 0),
        (["ls", "out.lmdb", "--json"], 0),
        (["show", "out.lmdb", "0"], 0),
        (["doctor"], 2),
    ],
)
def test_closed_pipe_prints_nothing(store: Path, arguments: list[str], status: int) -> None:
    check_closed_pipe(store, arguments, status)


@pytest.mark.slow
@pytest.mark.parametrize("closed", CLOSED)
def test_error_about_stdout_says_that_the_result_is_complete(tmp_path: Path, closed: str) -> None:
    convert(plant(tmp_path / "src", {"cat/0.jpg": photo()}), tmp_path / "x.lmdb")
    check_error_about_stdout(tmp_path, closed, ["copy", "x.lmdb", "y.lmdb"])
    check_error_about_stdout(tmp_path, closed, ["export", "x.lmdb", "out"])
    assert verify_store(tmp_path / "y.lmdb").problems == {}
    assert (tmp_path / "out" / "cat" / "0.jpg").is_file()


# The test replaces STORE by a store, NEW by a new place, FOLDER by a folder of images, PLAN by a plan with its part,
# and SHARDS by a store of shards.
ARGUMENTS = {
    "cache": ("NEW", "--fill", "SHARDS"),
    "copy": ("STORE", "NEW"),
    "export": ("STORE", "NEW"),
    "plan": ("FOLDER", "NEW", "--shards", "2"),
    "part": ("PLAN", "0"),
    "parts": ("PLAN",),
    "publish": ("PLAN",),
    "show": ("STORE", "0"),
    "bench": ("STORE", "--seconds", "0.01", "--rounds", "1", "--workers", "1"),
}
LINES = ("ls",)  # commands that print one line of JSON for each record


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"view"}))
def test_command_prints_only_valid_json(name: str, root: Path, store: Path, tmp_path: Path) -> None:
    planned = str(tmp_path / "planned")
    words = {"STORE": str(store), "NEW": str(tmp_path / "new"), "FOLDER": str(root), "PLAN": planned, "SHARDS": planned}
    if {"PLAN", "SHARDS"} & {*ARGUMENTS.get(name, ())}:
        plan_conversion(root, planned, 1)
        convert_part(planned, 0)
    if name == "cache":
        publish(planned)
    arguments = [words.get(word, word) for word in ARGUMENTS.get(name, ("STORE",))]
    check_json(name, *arguments, lines=name in LINES)
