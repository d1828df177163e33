"""PyPI accepts the wheel and the source distribution, and the wheel works without torch."""

from __future__ import annotations

import os
import re
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

import pytest

import dbloader
from tests.support.children import run_program
from tests.support.images import plant_photos

HERE = Path(__file__).resolve().parents[2]
# Environment variables of a process that imports nothing from this checkout.
ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("distribution")]


class Built(NamedTuple):
    """The files that would be published."""

    wheel: Path
    sdist: Path

    @property
    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as file:
            return Parser().parsestr(file.read(f"dbloader-{dbloader.__version__}.dist-info/METADATA").decode())


def run(*line: object, cwd: str | Path = HERE, env: dict[str, str] | None = None) -> str:
    return run_program(*line, cwd=cwd, env=env)[0]


def python(*arguments: object) -> str:
    return run(sys.executable, "-m", *arguments, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the wheel from the source distribution, as ``python -m build`` does in publish.yml."""
    folder = tmp_path_factory.mktemp("dist")
    python("build", "--outdir", folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(wheel, sdist)


def test_pypi_accepts_the_files(built: Built) -> None:
    assert "PASSED" in python("twine", "check", "--strict", built.wheel, built.sdist)
    assert "Valid" in python("validate_pyproject", "pyproject.toml")


def test_wheel_of_the_checkout_equals_the_wheel_of_the_sdist(built: Built, tmp_path: Path) -> None:
    python("build", "--wheel", "--outdir", tmp_path)
    assert (tmp_path / built.wheel.name).read_bytes() == built.wheel.read_bytes()


def test_wheel_contains_exactly_the_package(built: Built) -> None:
    wanted = {
        path.relative_to(HERE).as_posix()
        for path in (HERE / "dbloader").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"dbloader/py.typed", "dbloader/ext/viewing/static/index.html"} <= wanted
    with zipfile.ZipFile(built.wheel) as file:
        assert {name for name in file.namelist() if ".dist-info/" not in name} == wanted
    with tarfile.open(built.sdist) as file:
        inside = {name.split("/", 1)[1] for name in file.getnames()}
    assert wanted | {"README.md", "LICENSE", "tests/conftest.py", "docs/index.md", "scripts/test"} <= inside


def test_pypi_page_has_no_relative_links(built: Built) -> None:
    text = built.metadata.get_payload()
    assert isinstance(text, str)
    assert re.findall(r"\]\((?!https?://|#)[^)]*\)|<img|<source", text) == []
    assert "- Quick start: train from your own folder" in text  # the text of a removed link is kept


def test_citation_and_recipe_match_pyproject(built: Built) -> None:
    assert f"\nversion: {dbloader.__version__}\n" in (HERE / "CITATION.cff").read_text(encoding="utf-8")
    recipe = (HERE / "recipe" / "recipe.yaml").read_text(encoding="utf-8")
    assert f"\n  version: {dbloader.__version__}\n" in recipe
    run_part = recipe.partition("\n  run:\n")[2].partition("\n  run_constraints:")[0]
    conda = {"lmdb": "python-lmdb", "isal": "python-isal", "torch": "pytorch"}
    wanted = [re.split("(?=>=)", one) for one in required(built)]
    assert sorted(re.findall("- ([a-z_-]+ >=[0-9.]+)$", run_part.replace("_ext", "-ext"), re.MULTILINE)) == sorted(
        f"{conda.get(name, name)} {least}" for name, least in wanted
    )
    of_extras = re.findall("- ([a-z]+) (>=[0-9.]+)$", recipe.partition("\n  run_constraints:")[2], re.MULTILINE)
    project = (HERE / "pyproject.toml").read_text(encoding="utf-8")
    assert [f'"{name}{least}"' in project for name, least in of_extras] == [True] * 3


def required(built: Built) -> list[str]:
    """Return the wheel's requirements without extras."""
    return [line for line in built.metadata.get_all("Requires-Dist", []) if ";" not in line]


@pytest.fixture(scope="module")
def bare(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and its requirements, but no torch."""
    folder = tmp_path_factory.mktemp("bare")
    run(sys.executable, "-m", "venv", folder)
    pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check")
    without_torch = [one for one in required(built) if not one.startswith("torch")]
    run(*pip, "-c", HERE / "scripts" / "parts" / "constraints.txt", *without_torch, env=ALONE)
    run(*pip, "--no-deps", built.wheel, env=ALONE)
    return folder / "bin"


def test_installed_wheel_converts_and_verifies_without_torch(bare: Path, tmp_path: Path) -> None:
    plant_photos(tmp_path / "images", 6)

    def call(*arguments: str) -> str:
        return run(bare / "dbloader", *arguments, env=ALONE, cwd=tmp_path)

    assert str(bare.parent) in run(bare / "python", "-c", "import dbloader; print(dbloader)", env=ALONE, cwd="/")
    assert "convert" in call("--help")
    assert "6 records" in call("convert", "images", "train.lmdb")
    assert "cat" in call("info", "train.lmdb")
    assert "6 records, all undamaged" in call("verify", "train.lmdb")
