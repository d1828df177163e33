"""Executors make the same store as one process, and an error names the part that failed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dbloader import convert
from dbloader.errors import ConversionError, OptionError, StoreNotFoundError
from dbloader.ext.parts.run import run_parts
from tests.support.children import run_program
from tests.support.images import plant, plant_photos
from tests.support.parts import plan_conversion


@pytest.mark.nightly
@pytest.mark.skipif(
    not (importlib.util.find_spec("distributed") or os.environ.get("CI")), reason="Dask is not installed"
)
def test_dask_makes_all_parts_after_a_worker_dies(root: Path, place: Path, tmp_path: Path) -> None:
    plant_photos(root, 120, width=64, height=48)
    line = [sys.executable, "-m", "tests.support.dask_cluster", root, place]
    printed, _ = run_program(*line, cwd=Path(__file__).parents[2])
    digest = convert(root, tmp_path / "one.lmdb").digest
    assert json.loads(printed.splitlines()[-1]) == {"digests": [digest] * 2, "kills": [1, 1]}


class Job:
    """A result like a job of submitit, with no method that waits for completion."""

    def __init__(self, future: Future[Any]) -> None:
        self.future = future

    def done(self) -> bool:
        return self.future.done()

    def result(self) -> Any:
        return self.future.result()

    def cancel(self) -> None:
        self.future.cancel()


class Jobs:
    """An executor with nothing but ``submit``."""

    def __init__(self, pool: Executor) -> None:
        self.pool = pool

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Job:
        return Job(self.pool.submit(function, *arguments, **options))


def test_executor_needs_only_submit_done_and_result(root: Path, place: Path, tmp_path: Path) -> None:
    plant_photos(root, 8)
    plan_conversion(root, place, 4)
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(OptionError, match=r"^part \d: workers must be at least 1, got 0$"):
            [*run_parts(str(place), range(4), Jobs(pool), 0)]
        report = convert(root, place, shards=4, executor=Jobs(pool), workers=2)
        assert pool.submit(int).result() == 0  # the pool still runs
    assert report.digest == convert(root, tmp_path / "one.lmdb").digest


class Failing:
    """An executor that fails at one part and never ends the others."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.futures: list[Future[Any]] = []

    def submit(self, function: Callable[..., Any], place: str, part: int, *rest: Any) -> Future[Any]:
        self.futures.append(Future())
        if part == 2:
            self.futures[-1].set_exception(self.error)
        return self.futures[-1]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConversionError("cat/1.jpg: bad"), r"^part 2: cat/1\.jpg: bad$"),
        (OSError(28, "No space left on device"), r"^part 2 could not be made: OSError: \[Errno 28\] No space .*; "),
        (CancelledError(), "^part 2 could not be made: CancelledError; finished parts are kept: "),
        (
            StoreNotFoundError("x has no plan"),
            r"^part 2 ran on a machine that cannot see .*out\.lmdb\.partial: all machines must see the source and",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_names_its_part_and_cancels_the_others(root: Path, place: Path, error: Exception, message: str) -> None:
    plant_photos(root, 4)
    failing = Failing(error)
    with pytest.raises(ConversionError, match=message) as caught:
        convert(root, place, shards=4, executor=failing)
    assert caught.value.__cause__ is error
    assert [future.cancelled() for future in failing.futures] == [True, True, False, True]


def test_error_asks_for_a_main_guard_if_the_script_has_none(root: Path, place: Path) -> None:
    plant_photos(root, 2)
    script = f"import dbloader\ndbloader.convert({str(root)!r}, {str(place)!r}, shards=2)\n"
    place.with_name("script.py").write_text(script)
    done = subprocess.run([sys.executable, place.with_name("script.py")], capture_output=True, text=True, check=False)
    assert "or a script calls convert outside of if __name__ == '__main__':; finished" in done.stderr
    assert not place.exists()


def test_wrong_executor_is_refused_before_anything_is_written(root: Path, place: Path) -> None:
    plant(root, {"cat/a.jpg": b""})
    with pytest.raises(OptionError, match=r'^executor must be "ray" or an object with submit\(\), got \'spark\'$'):
        convert(root, place, shards=1, executor="spark")
    with pytest.raises(TypeError, match=r'^executor must be "ray" or an object with submit\(\), got 3$'):
        convert(root, place, shards=1, executor=3)
    assert [*place.parent.iterdir()] == [root]


def test_error_without_ray_is_one_line_with_a_remedy(root: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_photos(root, 1)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"^making parts with Ray needs Ray: pip install 'dbloader\[ray\]'$"):
        convert(root, place, shards=1, executor="ray")
