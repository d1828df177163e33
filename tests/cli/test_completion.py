"""The Tab key completes commands, options and paths, in the shells that are there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.images import WAIT_S

BIN = Path(sys.executable).parent

# Each asks the shell what it makes of a line in which Tab was pressed at the end. What zsh's editor would show is
# printed, as there is none without a terminal.
BASH = """
eval "$(_DBLOADER_COMPLETE=bash_source dbloader)"
COMP_WORDS=(dbloader {words}); COMP_CWORD={at}
_dbloader_completion dbloader
echo "$(compopt -o default 2>/dev/null; printf '%s\\n' "${{COMPREPLY[@]}}")"
complete -p dbloader
"""
ZSH = """
autoload -Uz compinit; compinit -u -d "$HOME/dump"
compadd() {{ print -l -- $completions }}
_describe() {{ local -a items; items=(${{(P)3}}); print -l -- $items }}
_path_files() {{ print paths }}
eval "$(_DBLOADER_COMPLETE=zsh_source dbloader)"
words=(dbloader {words}); CURRENT={at}+1
_dbloader_completion
"""
FISH = """
_DBLOADER_COMPLETE=fish_source dbloader | source
complete -C "dbloader {line}"
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completed(shell: str, folder: Path, *words: str) -> str:
    executable = shutil.which(shell)
    if executable is None:
        pytest.skip(f"{shell} is not installed")
    quoted = " ".join(f'"{word}"' for word in words)
    script = SCRIPTS[shell].format(words=quoted, at=len(words), line=" ".join(words))
    done = subprocess.run(
        [executable, "-c", script],
        cwd=folder, env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)},
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert "Usage" not in done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", SCRIPTS)
def test_tab_completes_commands_and_options(shell: str, tmp_path: Path) -> None:
    shown = completed(shell, tmp_path, "")
    for name in ("bench", "convert", "info", "copy", "verify", "warm"):
        assert name in shown
    shown = completed(shell, tmp_path, "ver")
    assert "verify" in shown
    assert "convert" not in shown
    shown = completed(shell, tmp_path, "convert", "--on-")
    assert "--on-bad" in shown
    assert "--on-damaged" in shown
    assert "--quiet" not in shown
    assert "reject" in completed(shell, tmp_path, "convert", "--on-bad", "")


def test_tab_completes_paths(tmp_path: Path) -> None:
    (tmp_path / "train.lmdb").touch()
    (tmp_path / "with space.lmdb").touch()
    assert "train.lmdb" in completed("fish", tmp_path, "info", "tr")
    assert "paths" in completed("zsh", tmp_path, "info", "tr")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_is_for_the_shell(shell: str) -> None:
    done = subprocess.run(
        [BIN / "dbloader"],
        env={**os.environ, "_DBLOADER_COMPLETE": f"{shell}_source"},
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_DBLOADER_COMPLETE={shell}_complete" in done.stdout
    assert "Usage" not in done.stdout


@pytest.mark.parametrize(
    ("instruction", "told"),
    [
        ("foo", "must be one of bash_source, fish_source, zsh_source, which print what the shell of that name needs to "
                "complete words, got 'foo'; unset it"),
        ("bash", "must be one of bash_source,"),
        ("bash_sauce", "must be one of bash_source,"),
        ("tcsh_source", "must be one of bash_source,"),
        ("zsh_complete", "=zsh_complete is for the shell, which sets 'COMP_WORDS' too; unset it to run a command"),
    ],
)  # fmt: skip
def test_what_no_shell_asks_for_is_told(instruction: str, told: str) -> None:
    """As where the variable is left over from an attempt."""
    done = subprocess.run(
        [BIN / "dbloader", "--version"],
        env={**os.environ, "_DBLOADER_COMPLETE": instruction},
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert f"_DBLOADER_COMPLETE{told if told.startswith('=') else ' ' + told}" in done.stderr
