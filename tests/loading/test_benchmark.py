"""`dbloader bench`: what is measured, what is told of it, and what cannot be measured."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, BinaryIO

import click
import matplotlib as mpl
import numpy as np
import pytest

import dbloader.loading.benchmark.chart
import dbloader.loading.benchmark.images
from dbloader import ImageFormat, Record, convert, copy_store, write_store
from dbloader.batches.timed import Work
from dbloader.cli.bench import _print, bench_command
from dbloader.errors import DamagedImageError, OptionError, SourceError, SourceNotFoundError, StoreNotFoundError
from dbloader.images.pillow import open_pillow
from dbloader.loading.benchmark.contenders import take
from dbloader.loading.benchmark.folder import FolderDataset
from dbloader.loading.benchmark.images import EndlessShuffle
from dbloader.loading.benchmark.machine import Machine, describe_machine
from dbloader.loading.benchmark.measure import benchmark, checked_workers
from dbloader.loading.benchmark.report import Benchmark, Measurement
from dbloader.loading.benchmark.verdict import find_limit, verdict
from tests.support.images import WAIT_S, photo, plant, plant_photos

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from PIL import ImageFile

# No time to speak of: what takes one turn takes a turn.
SHORT = 1e-6


def loader(kind: str, workers: int, rate: float) -> Measurement:
    return Measurement(
        name=f"batches, {workers} {kind}",
        kind=kind,  # type: ignore[arg-type]
        workers=workers,
        images_per_s=rate,
        rounds=(rate - 100, rate, rate + 100),
        first_batch_s=0.1,
    )


def folder(rate: float) -> Measurement:
    return replace(loader("processes", 2, rate), name="folder, 2 processes", kind="folder")


READ = Measurement(name="read", kind="read", workers=0, images_per_s=9e4, rounds=(8e4, 9e4, 9.9e4), bytes_per_s=8e9)
RESULT = Benchmark(
    place="out.lmdb",
    folder="/images",
    folder_left_out=0,
    records=10,
    images=8,
    image_bytes=87_000,
    batch_size=64,
    size=224,
    seconds=2,
    machine=Machine(
        processor="EPYC",
        processors=2,
        memory=24 * 2**30,
        system="Linux 6",
        python="3.11",
        versions={"torch": "2.13.0"},
        date="2026-11-21",
    ),
    measurements=(READ, loader("threads", 2, 1500), folder(500)),
    limit="decoding",
    limit_share=0.95,
    verdict="the verdict",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return plant_photos(tmp_path / "images", 6)


@pytest.fixture
def place(root: Path, tmp_path: Path) -> Path:
    convert(root, tmp_path / "store.lmdb")
    return tmp_path / "store.lmdb"


def quick(place: str | Path, **options: object) -> Benchmark:
    return benchmark(place, **{"batch_size": 2, "size": 16, "seconds": SHORT, "rounds": 1, "workers": [0], **options})  # type: ignore[arg-type]


def names(result: Benchmark) -> list[str]:
    return [one.name for one in result.measurements]


# What is measured


def test_reading_decoding_and_loaders_of_each_number_of_workers_are_measured(place: Path, root: Path) -> None:
    result = quick(place, workers=[1, 0], folder=root, rounds=2)
    assert names(result) == [
        "read",
        "decode whole",
        "decode, crop and resize",
        "batches, no workers",
        "batches, 1 thread",
        "batches, 1 process",
        "folder, no workers",
        "folder, 1 process",
    ]
    for one in result.measurements:
        assert len(one.rounds) == 2
        assert min(one.rounds) <= one.images_per_s <= max(one.rounds)
        assert (one.first_batch_s is not None) == one.name.startswith(("batches", "folder"))
        assert (one.bytes_per_s is not None) == (one.name == "read")
    assert (result.records, result.images, result.folder) == (6, 6, str(root))
    sizes = [path.stat().st_size for path in root.rglob("*.jpg")]
    assert result.image_bytes == pytest.approx(sum(sizes) / 6)
    read = result.measurements[0]
    assert read.bytes_per_s == pytest.approx(read.images_per_s * result.image_bytes, rel=0.5)


def test_contenders_take_turns(place: Path) -> None:
    told: list[tuple[int, int, str]] = []
    quick(place, rounds=2, progress=lambda *what: told.append(what))
    turn = ["read", "decode whole", "decode, crop and resize", "batches, no workers"]
    assert told == [*((at, 8, name) for at, name in enumerate([*turn, *turn])), (8, 8, "")]


def test_a_store_in_mongodb_is_measured(place: Path, mongo_uri: str) -> None:
    copy_store(place, mongo_uri)
    result = quick(mongo_uri, workers=[1])
    assert "batches, 1 process" in names(result)
    assert result.images == 6


def test_a_store_of_pixels_is_measured(root: Path, tmp_path: Path) -> None:
    convert(root, tmp_path / "raw.lmdb", images=ImageFormat(raw=True))
    assert quick(tmp_path / "raw.lmdb").image_bytes == 128 + 40 * 30 * 3  # with the head of a .npy file


def test_records_without_labels_are_measured(tmp_path: Path) -> None:
    write_store((Record(image=photo(n), label=n or None) for n in range(3)), tmp_path / "some.lmdb")
    assert quick(tmp_path / "some.lmdb", batch_size=3).images == 3


def test_records_without_images_are_left_out(tmp_path: Path) -> None:
    write_store([Record(image=None, label=0), Record(image=photo(), label=1)], tmp_path / "some.lmdb")
    result = quick(tmp_path / "some.lmdb", batch_size=None)
    assert (result.records, result.images, result.batch_size) == (2, 1, 1)


def test_the_endless_order_takes_each_record_equally_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dbloader.loading.benchmark.images, "LONG", 100)
    order = [*EndlessShuffle(np.array([3, 7, 8]))]
    assert sorted(order) == [3] * 34 + [7] * 34 + [8] * 34
    assert order != [3, 7, 8] * 34


def test_batches_are_counted_in_bursts_of_one_from_each_worker_after_a_first_one() -> None:
    taken: list[int] = []

    def batches() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield number

    run = take(batches(), 10, 3, SHORT)
    assert run.images == 30
    assert len(taken) == 1 + 3 + 3
    assert run.first_s is not None


def test_images_of_a_folder_are_what_imagefolder_gives(root: Path) -> None:
    dataset = FolderDataset(root, 16)
    assert len(dataset) == 6
    image, label = dataset[5]
    assert (tuple(image.shape), str(image.dtype), label) == ((3, 16, 16), "torch.uint8", 1)
    assert image.is_contiguous()


def test_the_numbers_of_workers_go_up_to_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, wanted in {1: [0, 1], 2: [0, 1, 2], 6: [0, 1, 2, 4, 6], 8: [0, 1, 2, 4, 8]}.items():
        monkeypatch.setattr("dbloader.loading.benchmark.measure.processors", lambda count=count: count)
        assert checked_workers(None) == wanted
    assert checked_workers([2, 1, 2]) == [1, 2]


# What cannot be measured


def test_a_store_without_images_says_so(tmp_path: Path) -> None:
    place = tmp_path / "labels.lmdb"
    write_store([Record(label=1)], place)
    with pytest.raises(OptionError, match=r"labels\.lmdb: no record has an image, so there is nothing to measure$"):
        quick(place)


def test_a_place_without_a_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"none\.lmdb"):
        quick(tmp_path / "none.lmdb")


def test_a_folder_that_is_none_or_has_no_images_says_so(place: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="there is no such folder"):
        quick(place, folder=tmp_path / "none")
    plant(tmp_path / "texts", {"cat/a.txt": b""})
    with pytest.raises(SourceError, match="texts"):
        quick(place, folder=tmp_path / "texts")


@pytest.mark.parametrize("data", [photo()[:200], b"", b"<html>", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_a_file_of_the_folder_that_does_not_decode_is_tried_once_and_the_next_taken(
    root: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "dog" / "0005.jpg").write_bytes(data)
    dataset = FolderDataset(root, 16)
    opened: list[bytes] = []

    def spy(file: BinaryIO) -> ImageFile.ImageFile:
        opened.append(os.fsencode(file.name))
        return open_pillow(file)

    monkeypatch.setattr("dbloader.loading.benchmark.folder.open_pillow", spy)
    assert [dataset[5][1], dataset[5][1]] == [0, 0]
    assert [os.path.basename(path) for path in opened] == [b"0005.jpg", b"0000.jpg", b"0000.jpg"]  # noqa: PTH119 - bytes
    assert dataset.left_out == 1


def test_files_of_the_folder_that_worker_processes_leave_out_are_counted_once(place: Path, root: Path) -> None:
    for name in ("cat/0000.jpg", "dog/0001.jpg"):
        (root / name).write_bytes(photo()[:200])
    assert quick(place, folder=root, workers=[0, 2], rounds=2, batch_size=6).folder_left_out == 2
    assert quick(place, folder=root, workers=[2], batch_size=6).folder_left_out == 2
    assert quick(place).folder_left_out == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_a_folder_of_which_nothing_decodes_is_an_error(place: Path, root: Path, workers: int) -> None:
    for path in root.rglob("*.jpg"):
        path.write_bytes(b"text")
    with pytest.raises(DamagedImageError, match=r"images: none of its 6 images decodes: .*\.jpg does not: cannot"):
        quick(place, folder=root, workers=[workers])


def test_a_folder_without_class_folders_is_not_advised_a_listing(place: Path, tmp_path: Path) -> None:
    plant(tmp_path / "flat", {"a.jpg": photo()})
    with pytest.raises(SourceError, match=r"put each class in a folder of its own$"):
        quick(place, folder=tmp_path / "flat")


def test_a_batch_has_no_more_images_than_the_store(place: Path) -> None:
    assert quick(place, batch_size=None).batch_size == 6
    with pytest.raises(OptionError, match=rf"^batch_size \(--batch-size\) must be at most 6, as many as {place} has"):
        quick(place, batch_size=7)


def test_a_batch_has_64_images_if_nothing_is_said(tmp_path: Path) -> None:
    place = tmp_path / "many.lmdb"
    write_store((Record(image=photo(), label=n) for n in range(70)), place)
    assert quick(place, batch_size=None).batch_size == 64


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("batch_size", 0, r"batch_size \(--batch-size\) must be at least 1, got 0"),
        ("size", 0, "size must be at least 1, got 0"),
        ("rounds", 0, "rounds must be at least 1, got 0"),
        ("seconds", 0, "seconds must be a number above 0, got 0"),
        ("seconds", float("nan"), "seconds must be a number above 0, got nan"),
        ("seconds", float("inf"), "seconds must be a number above 0, got inf"),
        ("workers", [], r"workers must be one or more numbers of at least 0, got \[\]"),
        ("workers", [1, -1], r"workers must be one or more numbers of at least 0, got \[1, -1\]"),
        ("plot", "bars.gif", r"plot must be a file that ends in \.png, \.svg, \.pdf, got bars.gif"),
        ("plot", "nowhere/bars.png", "plot must be a file in a folder that is there, got nowhere/bars.png"),
    ],
)
def test_options_out_of_their_range_are_refused(place: Path, option: str, value: object, message: str) -> None:
    with pytest.raises(OptionError, match=f"^{message}$"):
        quick(place, **{option: value})


def test_a_chart_without_matplotlib_is_refused_before_anything_is_measured(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dbloader.loading.benchmark.chart, "find_spec", lambda _: None)
    with pytest.raises(OptionError, match=r"plot needs matplotlib, which is not installed: pip install matplotlib"):
        quick(place, plot="bars.png", progress=lambda *_: pytest.fail("it began"))


# What is told of it


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a chart in each format; of a module, as matplotlib keeps its font files open."""
    folder = tmp_path_factory.mktemp("charts")
    with mpl.rc_context({"svg.fonttype": "none"}):
        for suffix in ("png", "svg", "pdf"):
            dbloader.loading.benchmark.chart.Chart(folder / f"bars.{suffix}").draw(RESULT)
    return folder


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_chart_is_drawn_in_the_format_of_its_ending(charts: Path, suffix: str, begins: bytes) -> None:
    assert (charts / f"bars.{suffix}").read_bytes().startswith(begins)


def test_a_chart_names_what_was_measured_but_reading(charts: Path) -> None:
    text = (charts / "bars.svg").read_text()
    for one in RESULT.measurements:
        assert (f">{one.name}<" in text) == (one.kind != "read")
    assert ">1,500<" in text


def test_the_verdict_names_the_fastest_way_and_what_limits_it() -> None:
    several = (loader("threads", 2, 1500), loader("processes", 2, 1200), folder(500))
    assert verdict(several, "decoding", 0.95, processors=2) == (
        "a training can have 1,500 images/s (2 threads), 3.0 x what the folder gives; decoding limits, with 95% of the "
        "workers' time; more processors, or images that are cheaper to decode (dbloader convert --short-side or "
        "--tile), give more"
    )
    told = verdict(several[:2], "reading", 0.6, processors=2)
    assert "folder" not in told
    assert "reading limits, with 60% of the workers' time; faster storage gives more" in told
    assert "at most 2 were measured, and there are 16 processors" in verdict(several, "decoding", 0.9, processors=16)


def test_a_store_of_images_made_smaller_is_said_to_be_compared_with_full_size(root: Path, tmp_path: Path) -> None:
    for max_side, told in ((8, True), (None, False)):
        small = convert(root, tmp_path / "small.lmdb", overwrite=True, images=ImageFormat(max_side=max_side)).place
        result = benchmark(small, folder=root, workers=[0], seconds=1e-6, rounds=1, size=8)
        assert ("the folder gives in full size (" in result.verdict) == told
        assert ("of the store's images were made smaller when it was converted)" in result.verdict) == told


@pytest.mark.parametrize(
    ("work", "limit"),
    [(Work(3, 1, 0), ("reading", 0.75)), (Work(1, 3, 0), ("decoding", 0.75)), (Work(1, 0, 3), ("collating", 0.75))],
)
def test_what_takes_most_of_the_workers_time_limits(work: Work, limit: tuple[str, float]) -> None:
    assert find_limit(work) == limit


def test_the_machine_is_told_in_one_line() -> None:
    machine = describe_machine()
    assert machine.processors >= 1
    assert machine.memory > 2**28
    assert {"dbloader", "torch", "lmdb"} <= machine.versions.keys()
    assert "\n" not in str(machine)
    assert f"torch {machine.versions['torch']}" in str(machine)


def test_the_terminal_shows_a_table_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    _print(RESULT)
    assert (
        capsys.readouterr().out
        == """\
out.lmdb: 8 images of 87.0 kB (2 records without one left out), to 224 x 224, batches of 64
folder: /images
2 processors (EPYC), 24 GiB; Linux 6; Python 3.11; torch 2.13.0; 2026-11-21

                         images/s     least - greatest      MB/s  first batch
  read                     90,000      80,000 - 99,000     8,000
  batches, 2 threads        1,500        1,400 - 1,600                 0.10 s
  folder, 2 processes         500            400 - 600                 0.10 s

the verdict
"""
    )


def test_the_command_prints_the_same_as_json(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dbloader", "bench", place, "--json", "--workers", "1", "--seconds", "1e-6",
         "--rounds", "1", "--size", "16", "--batch-size", "2"],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    printed = json.loads(done.stdout)
    assert printed.keys() == {*asdict(quick(place))}
    assert [one["workers"] for one in printed["measurements"]] == [0, 0, 0, 1, 1]
    assert printed["verdict"].startswith("a training can have ")


def test_images_of_the_folder_that_were_left_out_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    _print(replace(RESULT, folder_left_out=1))
    assert "\nfolder: /images (1 image left out as it does not decode)\n" in capsys.readouterr().out
    _print(replace(RESULT, folder_left_out=2))
    assert "\nfolder: /images (2 images left out as they do not decode)\n" in capsys.readouterr().out


@pytest.mark.parametrize("workers", ["1;2", "", "-1", "1,", "two"])
def test_workers_that_are_no_numbers_are_refused(workers: str) -> None:
    message = f"must be whole numbers of at least 0 with commas between them, such as 0,1,2, got '{workers}'$"
    with pytest.raises(click.BadParameter, match=message):
        bench_command.make_context("bench", ["x.lmdb", f"--workers={workers}"])


def test_workers_may_have_spaces_between_them() -> None:
    assert bench_command.make_context("bench", ["x.lmdb", "--workers", "2, 1"]).params["workers"] == [2, 1]
