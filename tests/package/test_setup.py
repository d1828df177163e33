"""scripts/setup installs only the requested packages into .venv, and system programs only with --system."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.children import run_program

HERE = Path(__file__).resolve().parents[2]
REQUIREMENTS = [f"scripts/parts/{name}.txt" for name in ("constraints", "mongod", "seaweedfs")]
NOTE = f"""#!{shutil.which("sh")}
echo "${{0##*/}} $*" >>"$NOTES"
"""


class Checkout:
    """A checkout with the files that scripts/setup reads. Its pip, apt-get and sudo only record their arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._notes, self._bin = folder / "checkout", folder / "notes", folder / "bin"
        for file in ("pyproject.toml", "scripts/setup", *REQUIREMENTS):
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(HERE / file, self.folder / file)
        for name in ("bash", "cat", "dirname", "basename", "id", "uname", "sed", "sha256sum"):
            self.link(name, str(shutil.which(name)))
        self.link("python3", sys.executable)
        for program in (self._bin / "apt-get", self._bin / "sudo", self.folder / ".venv" / "bin" / "python"):
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(NOTE)
            program.chmod(0o755)

    def link(self, name: str, program: str) -> None:
        self._bin.mkdir(parents=True, exist_ok=True)
        (self._bin / name).symlink_to(program)

    def setup(self, *arguments: str, status: int = 0) -> tuple[list[str], str]:
        """Run scripts/setup; return the commands that it ran, and what it wrote to stderr."""
        self._notes.write_text("")
        environment = {**os.environ, "PATH": str(self._bin), "NOTES": str(self._notes)}
        environment.pop("DBLOADER_CHROMIUM", None)
        environment.pop("PYTHON", None)
        _, stderr = run_program(self.folder / "scripts" / "setup", *arguments, status=status, env=environment)
        return self._notes.read_text().splitlines(), stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_setup_installs_system_programs_only_on_request(checkout: Checkout) -> None:
    commands, said = checkout.setup()
    assert [command for command in commands if "apt-get" in command] == []
    for missing, package in (("no jpegtran: ", "libjpeg-turbo-progs"), ("no Chromium: ", "chromium")):
        assert missing in said
        assert f"sudo apt install {package}\n" in said
    commands, said = checkout.setup("--system", status=1)  # this fake apt-get succeeds without installing anything
    assert commands[0].endswith("apt-get update -qq")
    assert commands[-1].endswith("apt-get install -qq -y --no-install-recommends chromium")
    assert "no jpegtran: " in said


def test_demo_setup_does_not_replace_the_full_setup(checkout: Checkout) -> None:
    demo, said = checkout.setup("--demo")
    assert [command.split()[-1] for command in demo] == [".[view]", "scikit-image"]
    assert "skipped" not in said
    tests, _ = checkout.setup()
    assert tests[0].endswith(" -e .[dev]")
    assert checkout.setup("--demo")[0] == checkout.setup()[0] == []
