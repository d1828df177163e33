"""`dbloader bench` measures how fast a store is, and names what limits the speed."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from dbloader import Record, convert, write_store
from dbloader.batches.timed import Work
from dbloader.errors import DamagedImageError, OptionError, StoreNotFoundError
from dbloader.ext.measuring.benchmark import Benchmark, find_limit, measure
from tests.support.images import photo, plant_photos


@pytest.fixture
def place(tmp_path: Path) -> Path:
    convert(plant_photos(tmp_path / "images", 6), tmp_path / "store.lmdb")
    return tmp_path / "store.lmdb"


def quick(place: str | Path, **options: Any) -> Benchmark:
    return measure(place, **{"batch_size": 2, "size": 16, "seconds": 1e-6, "rounds": 1, "workers": [1], **options})


def test_reading_decoding_and_loaders_are_measured_in_turns(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dbloader.ext.measuring.benchmark.cpu_count", lambda: 2)
    seen: list[tuple[int, int]] = []
    result = quick(place, workers=[2, 1, 2], rounds=2, progress=lambda *done: seen.append(done))
    assert [one.name for one in result.measurements] == [
        "reading",
        "reading + decoding",
        "worker threads: 1",
        "worker processes: 1",
        "worker threads: 2",
        "worker processes: 2",
    ]
    for one in result.measurements:
        assert len(one.rounds) == 2
        assert 0 < min(one.rounds) <= one.images_per_s <= max(one.rounds)
    assert seen == [(done, 12) for done in range(13)]
    sizes = [path.stat().st_size for path in (tmp_path / "images").rglob("*.jpg")]
    assert (result.place, result.images) == (str(place), 6)
    assert result.image_bytes == pytest.approx(sum(sizes) / 6)
    loader = max(result.measurements[2:], key=lambda one: one.images_per_s)
    assert result.verdict.startswith(f"The fastest loader gives {loader.images_per_s:,.0f} images/s ({loader.name}). ")
    assert f"The limit is {result.limit}: {result.limit_share:.0%} of the workers' time. " in result.verdict
    assert "Try more workers" not in result.verdict
    default = "processes" if multiprocessing.get_start_method() == "fork" else "threads"
    advice = f"Pass worker_type to create_loader, which uses {default} here. "
    assert (advice in result.verdict) == (default not in loader.name)


def test_records_without_an_image_are_ignored(tmp_path: Path) -> None:
    write_store([Record(label=0), Record(image=photo())], tmp_path / "some.lmdb")
    assert quick(tmp_path / "some.lmdb").images == 1


def test_verdict_advises_more_workers_if_cpus_are_idle(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.ext.measuring.benchmark.cpu_count", lambda: 16)
    assert quick(place).verdict.endswith("Try more workers: this machine has 16 CPUs.")


@pytest.mark.parametrize(
    ("work", "limit"),
    [
        (Work(3, 1, 0), ("reading the store", 0.75)),
        (Work(1, 3, 0), ("decoding on this CPU", 0.75)),
        (Work(1, 0, 3), ("copying images into batches", 0.75)),
    ],
)
def test_verdict_names_the_largest_share_of_worker_time(work: Work, limit: tuple[str, float]) -> None:
    assert find_limit(work) == limit


def test_store_without_readable_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"none\.lmdb"):
        quick(tmp_path / "none.lmdb")
    write_store([Record(label=1)], tmp_path / "labels.lmdb", require_images=False)
    with pytest.raises(OptionError, match=r"labels\.lmdb: no record has an image, so there is nothing to measure$"):
        quick(tmp_path / "labels.lmdb")
    write_store([Record(image=photo()[:200])], tmp_path / "cut.lmdb")
    with pytest.raises(DamagedImageError):
        quick(tmp_path / "cut.lmdb")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("batch_size", 0, "batch_size must be at least 1, got 0"),
        ("workers", [1, 0], "workers must be at least 1, got 0"),
        ("workers", [], r"workers must be one or more numbers, got \[\]"),
        ("seconds", 0, "seconds must be above 0 and finite, got 0"),
    ],
)
def test_option_out_of_range_is_refused(place: Path, option: str, value: object, message: str) -> None:
    with pytest.raises(OptionError, match=f"^{message}$"):
        quick(place, **{option: value})
