"""A conversion in parts makes the same records as one file, and never an incomplete store."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import bson
import pytest

from dbloader import convert, open_store
from dbloader.conversion.file_list import FileList
from dbloader.conversion.transcode import ImageFormat
from dbloader.errors import (
    ConversionError,
    DamagedStoreError,
    OptionError,
    StoreExistsError,
    StoreFullError,
    StoreNotFoundError,
)
from dbloader.ext.parts.part import convert_part, list_parts
from dbloader.ext.parts.plan import list_name
from dbloader.ext.parts.publish import publish
from dbloader.records.document import open_sealed, seal
from tests.contracts.records import stored
from tests.support.children import in_child, traced_peak
from tests.support.images import KINDS, photo, plant, plant_kinds, plant_photos, run
from tests.support.parts import plan_conversion
from tests.support.sources import FILES, SOURCES


class Here(Executor):
    """Runs each task when it is submitted."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*arguments, **options))
        except Exception as error:
            done.set_exception(error)
        return done


def check_same(place: Path, other: Path) -> None:
    with open_store(place) as store, open_store(other) as expected:
        length = len(expected)
        assert stored(store, range(length)) == stored(expected, range(length))
        assert [*store.events()] == [*expected.events()]
        assert replace(store.manifest, created="") == replace(expected.manifest, created="")
        assert store.verify() == expected.verify()
        assert [*store.names()] == [*expected.names()]


@pytest.mark.parametrize(("shards", "shuffle_seed"), [(1, 5), (3, 5), (64, None)])
def test_shards_have_the_same_records_and_report_as_one_file(
    root: Path, place: Path, tmp_path: Path, shards: int, shuffle_seed: int | None
) -> None:
    plant_kinds(root, *KINDS)
    one = convert(root, tmp_path / "one.lmdb", shuffle_seed=shuffle_seed)
    report = convert(root, place, shuffle_seed=shuffle_seed, shards=shards, executor=Here())
    check_same(place, tmp_path / "one.lmdb")
    fewer = (f"shards (--shards) is 64, but there will be only {one.files}, one for each file",) if shards == 64 else ()
    facts: dict[str, Any] = {"place": "", "seconds": 0.0, "report_file": ""}
    assert replace(report, **facts) == replace(one, **facts, warnings=(*one.warnings, *fewer))
    assert Path(report.report_file).read_text() == Path(one.report_file).read_text()
    assert sorted(path.name for path in place.parent.glob("out.lmdb*")) == ["out.lmdb", "out.lmdb.report.jsonl"]
    assert len([*(place / "shards").iterdir()]) == min(shards, one.files)
    assert sorted(path.name[:5] for path in place.iterdir()) == ["index", "manif", "shard"]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_every_source_can_be_converted_in_parts(source: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    plant(tmp_path / "files", FILES)
    options = source(tmp_path)
    convert(**options, destination=tmp_path / "one.lmdb")
    convert(**options, destination=tmp_path / "out.lmdb", shards=3, executor=Here())
    check_same(tmp_path / "out.lmdb", tmp_path / "one.lmdb")


@pytest.mark.slow
def test_processes_make_the_parts(root: Path, place: Path, tmp_path: Path) -> None:
    plant_photos(root, 40)
    convert(root, tmp_path / "one.lmdb")
    convert(root, place, shards=5, workers=2)
    check_same(place, tmp_path / "one.lmdb")


def test_plan_names_the_missing_parts(root: Path, place: Path) -> None:
    plant_photos(root, 12)
    plan_conversion(root, place, 6)
    receipts = [convert_part(place, part) for part in (0, 2)]
    assert [convert_part(place, part) for part in (0, 2)] == receipts  # the finished parts are not made again
    assert list_parts(place).missing == [1, 3, 4, 5]
    with pytest.raises(ConversionError, match=r"^only 2 of 6 parts are made; missing 1,3-5: make them with "):
        publish(place)
    assert not place.exists()
    for part in (5, 4, 3, 1):  # in any order
        convert_part(place, part)
    assert publish(place).records == 12
    with pytest.raises(StoreNotFoundError, match="has no plan"):  # a late attempt at a part finds no plan
        convert_part(place, 1)


def test_publishing_again_finds_the_published_store(root: Path, place: Path, tmp_path: Path) -> None:
    plant_photos(root, 4)
    plant_kinds(root, "text")
    first = convert(root, place, shards=2, executor=Here())
    report = Path(first.report_file)
    lines = report.read_text()
    report.unlink()  # as if publish was killed before it wrote the report
    again = publish(place)
    assert (again.digest, again.records, again.files) == (first.digest, first.records, 0)
    assert again.report_file == str(report)
    assert report.read_text() == lines
    assert re.search("was published already, at .*; 1 file had been rejected$", again.warnings[0])
    plan_conversion(root, place, 2)
    for part in range(2):
        convert_part(place, part)
    shutil.copytree(f"{place}.partial", tmp_path / "kept")
    publish(place, overwrite=True)
    (tmp_path / "kept").rename(f"{place}.partial")  # as if publish was killed before it removed the plan
    assert publish(place).files == 0
    assert not Path(f"{place}.partial").exists()
    (place / "files").mkdir()
    for name in ("files/list-0", "plan.bson"):
        (place / name).write_bytes(b"")  # as if publish was killed before it removed these files
    publish(place)
    assert sorted(path.name[:5] for path in place.iterdir()) == ["index", "manif", "shard"]


def test_concurrent_attempts_at_one_part_all_succeed(root: Path, place: Path, tmp_path: Path) -> None:
    plant_photos(root, 30)
    convert(root, tmp_path / "one.lmdb")
    plan_conversion(root, place, 2)
    barrier = threading.Barrier(4)

    def attempt(number: int) -> str:
        barrier.wait(60)
        return convert_part(place, number % 2).digest

    with ThreadPoolExecutor(4) as pool:
        digests = [*pool.map(attempt, range(4))]
    assert digests[0] == digests[2]
    assert digests[1] == digests[3]
    publish(place)
    check_same(place, tmp_path / "one.lmdb")
    assert len([*(place / "shards").iterdir()]) == 2


@pytest.mark.parametrize("moment", ["part.LMDBWriter", "part.FileWriter", "plan.copy_durably", "plan.write_durably"])
def test_killed_part_is_made_again(
    root: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The process is killed before it creates, fills or copies the shard, or before it writes the receipt."""
    plant_photos(root, 8)
    convert(root, tmp_path / "one.lmdb")
    plan_conversion(root, place, 2)

    def die(*arguments: object, **_: object) -> None:
        if not str(arguments[0]).endswith("empty"):  # the file that shows that the part is being made
            os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        patched.setattr(f"dbloader.ext.parts.{moment}", die)
        assert in_child(lambda: convert_part(place, 0, scratch=tmp_path)) == -signal.SIGKILL
    assert list_parts(place).missing == [0, 1]
    for part in range(2):
        convert_part(place, part)
    publish(place)
    check_same(place, tmp_path / "one.lmdb")
    assert len([*(place / "shards").iterdir()]) == 2


def test_conversion_with_an_existing_plan_makes_only_missing_parts(root: Path, place: Path, tmp_path: Path) -> None:
    plant_photos(root, 20)
    convert(root, tmp_path / "one.lmdb")
    plan_conversion(root, place, 4)
    receipts = [convert_part(place, part) for part in (0, 3)]
    report = convert(root, place, shards=4, executor=Here())
    assert report.resumed_at == 10
    check_same(place, tmp_path / "one.lmdb")
    assert {receipt.shard for receipt in receipts} <= {path.name for path in (place / "shards").iterdir()}
    plan_conversion(root, place, 4)
    convert_part(place, 1)
    assert convert(root, place, shards=4, executor=Here(), overwrite=True).resumed_at == 0


def test_plan_has_the_id_of_versions_without_later_options(root: Path, place: Path) -> None:
    plant_photos(root, 4)
    plan = plan_conversion(root, place, 3)
    written = open_sealed((plan.folder / "plan.bson").read_bytes())
    options = {**written["options"], "source": None, "listing": None}
    assert not any(options.pop(name) for name in ("classes", "new_only", "class_folder", "boxes", "encoding"))
    names = ("parts", "described", "classes", "grows", "versions")
    known = {**{name: written[name] for name in names}, "options": options}
    with (plan.folder / list_name(plan.token)).open("rb") as data:
        files = FileList.of_span(data, 0, os.fstat(data.fileno()).st_size)
        digest = sha256(b"".join(files.sealed(position)[:-4] for position in range(len(files)))).hexdigest()
    assert plan.id == sha256(digest.encode() + bson.encode(known)).hexdigest()


def test_parts_say_how_the_source_is_read_as_one_file_does(root: Path, place: Path) -> None:
    plant_photos(root, 4)
    one, parts = (convert(root, place.with_name(f"{shards}.lmdb"), shards=shards) for shards in (None, 2))
    assert one.understood == parts.understood != []


def test_another_plan_is_refused_without_overwrite(root: Path, place: Path) -> None:
    plant_photos(root, 4)
    first = plan_conversion(root, place, 2)
    convert_part(place, 0)
    assert plan_conversion(root, place, 2).id == first.id
    assert list_parts(place).missing == [1]
    with pytest.raises(StoreExistsError, match="has the plan of another conversion"):
        plan_conversion(root, place, 2, check="structure")
    assert [*place.parent.glob("out.lmdb*")] == [first.folder]
    plant_photos(root, 5)
    with pytest.raises(StoreExistsError, match="has the plan of another conversion"):
        plan_conversion(root, place, 2)
    assert plan_conversion(root, place, 2, overwrite=True).files == 5
    assert list_parts(place).missing == [0, 1]
    (first.folder / "plan.bson").rename(first.folder / "mine.txt")
    with pytest.raises(StoreExistsError, match="has no plan"):
        plan_conversion(root, place, 1, overwrite=True)
    assert (first.folder / "mine.txt").exists()


class Replacing(Here):
    """An executor that runs each task after another conversion has replaced the plan."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        place = Path(arguments[0])
        plan_conversion(place.parent / "images", place, 2, check="structure", overwrite=True)
        return super().submit(function, *arguments, **options)


def test_conversion_does_not_publish_a_plan_that_replaced_its_own(root: Path, place: Path) -> None:
    plant_photos(root, 4)
    with pytest.raises(StoreExistsError, match="another conversion has replaced the plan"):
        convert(root, place, shards=2, executor=Replacing())
    assert not place.exists()


def test_only_a_store_of_shards_replaces_a_store_of_shards(root: Path, place: Path, tmp_path: Path) -> None:
    plant_photos(root, 6)
    convert(root, place, shards=2, executor=Here())
    with open_store(place) as old:
        before = stored(old, range(6))
        plant_photos(root, 9)
        with pytest.raises(StoreExistsError, match="exists already; overwrite"):
            convert(root, place, shards=3, executor=Here())
        with pytest.raises(StoreExistsError, match="is a folder of shards, and the new store is one file"):
            convert(root, place, overwrite=True)
        convert(root, place, shards=3, executor=Here(), overwrite=True)
        assert stored(old, range(6)) == before
    with open_store(place) as store:
        assert len(store) == 9
    assert len([*(place / "shards").iterdir()]) == 3
    (tmp_path / "file.lmdb").write_bytes(b"mine")
    with pytest.raises(StoreExistsError, match="exists and is not a folder of shards"):
        convert(root, tmp_path / "file.lmdb", shards=2, executor=Here(), overwrite=True)


def test_swapped_shard_of_a_part_is_refused(root: Path, place: Path) -> None:
    plant(root, {f"cat/{number}.jpg": photo() for number in range(8)})
    plan = plan_conversion(root, place, 2)
    receipts = [convert_part(place, part) for part in range(2)]
    shards = [plan.folder / "shards" / receipt.shard for receipt in receipts]
    whole = shards[0].read_bytes()
    shards[0].unlink()
    assert list_parts(place).missing == [0]
    shards[0].write_bytes(whole[:-1])
    assert list_parts(place).missing == [0]
    shutil.copy(shards[1], shards[0])
    assert shards[0].stat().st_size == len(whole)  # only the records differ
    with pytest.raises(DamagedStoreError, match="is not the shard that part 0 made"):
        publish(place)
    shards[0].write_bytes(whole)
    publish(place)


def test_reading_swapped_shards_of_a_published_store_raises(root: Path, place: Path) -> None:
    plant_photos(root, 8)
    convert(root, place, shards=2, executor=Here())
    one, two = sorted((place / "shards").iterdir())
    one.rename(place / "aside")
    two.rename(one)
    (place / "aside").rename(two)
    with open_store(place) as store:
        assert len(store) == 8
        for index in (0, 7):
            with pytest.raises(DamagedStoreError, match="is not the file that the manifest of"):
                store.read([index])


def test_receipts_of_another_plan_or_part_are_refused(root: Path, place: Path, tmp_path: Path) -> None:
    plant_photos(root, 8)
    plan = plan_conversion(root, place, 2)
    other = plan_conversion(root, tmp_path / "other.lmdb", 2, shuffle_seed=3)
    convert_part(place, 0)
    convert_part(tmp_path / "other.lmdb", 1)
    shutil.copytree(other.folder / "shards", plan.folder / "shards", dirs_exist_ok=True)
    shutil.copy(other.folder / other.receipt_name(1), plan.folder / plan.receipt_name(1))
    with pytest.raises(DamagedStoreError, match="is of another plan"):
        publish(place)
    shutil.copy(plan.folder / plan.receipt_name(0), plan.folder / plan.receipt_name(1))
    with pytest.raises(DamagedStoreError, match="is damaged"):
        publish(place)


def test_part_that_omits_some_of_its_files_is_refused(root: Path, place: Path) -> None:
    plant_photos(root, 8)
    plan = plan_conversion(root, place, 2)
    for part in range(2):
        convert_part(place, part)
    lacks: list[dict[str, Any]] = [{"records": 3}, {"rejected": 1}]
    for part, lacking in enumerate(lacks):
        path = plan.folder / plan.receipt_name(part)
        kept = path.read_bytes()
        path.write_bytes(seal({**open_sealed(kept, part), **lacking}, part))
        with pytest.raises(DamagedStoreError, match=rf"part {part} has \d records? and \d rejected files?, but 4 fi"):
            publish(place)
        path.write_bytes(kept)
    publish(place)


def test_receipts_of_an_earlier_version_can_be_published(root: Path, place: Path) -> None:
    plant_photos(root, 4)
    plan = plan_conversion(root, place, 2)
    for part in range(2):
        convert_part(place, part)
        path = plan.folder / plan.receipt_name(part)
        values = open_sealed(path.read_bytes(), part)
        del values["unchanged"]  # the name is not in receipts that were made before new_only
        path.write_bytes(seal(values, part))
    assert publish(place).records == 4


def test_part_is_refused_if_a_library_version_differs_from_the_plan(root: Path, place: Path) -> None:
    plant_photos(root, 2)
    path = plan_conversion(root, place, 1).folder / "plan.bson"
    values = open_sealed(path.read_bytes())
    path.write_bytes(seal({**values, "versions": {**values["versions"], "Pillow": "9.9"}}))
    what = r"^this machine has Pillow .* was planned with 9\.9, .*: pip install Pillow==9\.9, or plan again$"
    with pytest.raises(ConversionError, match=what):
        convert_part(place, 0)
    assert list_parts(place).attempts == []
    path.write_bytes(seal(values))
    done = run("part", place, "0", env={**os.environ, "DBLOADER_MAX_PIXELS": "1000"})
    assert "this machine has DBLOADER_MAX_PIXELS 1000 and" in done.stderr
    assert f": export DBLOADER_MAX_PIXELS={values['versions']['DBLOADER_MAX_PIXELS']}, or plan again" in done.stderr
    assert list_parts(place).missing == [0]


def test_part_is_refused_if_jpegtran_differs_from_the_plan(
    root: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_photos(root, 2)
    program = plant(tmp_path, {"bin/jpegtran": b"#!/bin/sh\necho version 2.1 >&2\n"}) / "bin" / "jpegtran"
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    plan_conversion(root, place, 1, images=ImageFormat(tile=True))
    program.write_text("#!/bin/sh\necho version 3.0\n")
    what = r"has jpegtran version 3\.0 and .* was planned with version 2\.1, .*: put version 2\.1 first on the PATH, or"
    with pytest.raises(ConversionError, match=what):
        convert_part(place, 0)


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("dog/9.jpg", "fix the file and run the same command again"),
        ("loose.jpg", r"fix it and plan again \(dbloader plan --overwrite\)"),
    ],
)
def test_part_is_made_after_the_remedy_for_its_bad_file(
    root: Path, place: Path, name: str, fix: str, fixed: bool
) -> None:
    plant_photos(root, 3)
    (root / name).write_bytes(b"nothing")
    convert_all = partial(convert, root, place, shards=2, executor=Here())
    choose = r"choose on_bad='reject' \(--on-bad reject\) and plan again \(dbloader plan --overwrite\)"
    with pytest.raises(ConversionError, match=rf"^part \d: {name}: .*; {fix}, or {choose}$"):
        convert_all(on_bad="fail")
    assert not place.exists()
    on_bad = "fail" if fixed else "reject"
    if fixed:
        (root / name).unlink()
        (root / "dog/9.jpg").write_bytes(photo())
    if "plan again" in (fix if fixed else choose):
        with pytest.raises(StoreExistsError, match="has the plan of another conversion"):
            convert_all(on_bad=on_bad)
        plan_conversion(root, place, 2, on_bad=on_bad, overwrite=True)
    report = convert_all(on_bad=on_bad)
    assert (report.records, report.rejected) == ((4, 0) if fixed else (3, 1))


def publish_with_others(place: Path, barrier: threading.Barrier) -> object:
    barrier.wait(60)
    try:
        return publish(place)
    except (StoreNotFoundError, StoreExistsError, ConversionError) as error:
        return error


@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.nightly) for number in range(1, 10))])
def test_concurrent_publish_has_one_winner(root: Path, place: Path, tmp_path: Path, number: int) -> None:
    plant_photos(root, 12)
    convert(root, tmp_path / "one.lmdb")
    plan_conversion(root, place, 3)
    for part in range(3):
        convert_part(place, part)
    with ThreadPoolExecutor(3) as pool:
        results = [*pool.map(publish_with_others, [place] * 3, [threading.Barrier(3)] * 3)]
    assert any(not isinstance(result, Exception) for result in results), results
    check_same(place, tmp_path / "one.lmdb")


def test_publish_syncs_all_files_before_the_manifest(root: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_photos(root, 4)
    synced: set[int] = set()
    ready: list[bool] = []
    fsync, replace = os.fsync, Path.replace

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def renamed(path: Path, target: Path) -> Path:
        if target.name == "manifest.bson":
            index = max(path.parent.glob("index-*.lmdb"), key=lambda file: file.stat().st_mtime_ns)
            needed = (*path.parent.glob("shards/*"), path.parent / "shards", path.parent, path, index)
            ready.append(synced >= {file.stat().st_ino for file in needed})
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(Path, "replace", renamed)
    for append in (False, True):
        synced.clear()
        folder = plan_conversion(root, place, 2, shuffle_seed=1, append=append).folder
        for part in range(2):
            convert_part(place, part)
        made = [path for path in folder.rglob("*") if path.is_file()]
        assert len(made) == 2 + 2 + 2  # plan and list, two shards, two receipts
        assert synced >= {path.stat().st_ino for path in made}
        synced |= {path.stat().st_ino for path in place.glob("shards/*")}  # the old shards were written earlier
        publish(place)
        assert place.parent.stat().st_ino in synced or append
    assert ready == [True, True]


def test_late_part_of_a_replaced_plan_is_ignored(root: Path, place: Path) -> None:
    plant_photos(root, 4)
    old = plan_conversion(root, place, 2)
    receipt = convert_part(place, 0)
    kept = (old.folder / old.receipt_name(0)).read_bytes()
    shard = (old.folder / "shards" / receipt.shard).read_bytes()
    plan_conversion(root, place, 2, overwrite=True)
    (old.folder / old.receipt_name(0)).write_bytes(kept)  # as if the late part ended now
    (old.folder / "shards" / receipt.shard).write_bytes(shard)
    assert list_parts(place).missing == [0, 1]
    for part in range(2):
        convert_part(place, part)
    assert publish(place).records == 4
    assert receipt.shard not in {path.name for path in (place / "shards").iterdir()}


@pytest.mark.slow
def test_limit_of_file_sizes_is_named_when_a_part_is_made(root: Path, place: Path) -> None:
    plant_photos(root, 40, width=320, height=240)
    plan = plan_conversion(root, place, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = convert_part(place, 0).nbytes
    (plan.folder / plan.receipt_name(0)).unlink()
    try:
        for limit in (10_000, size - 1):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
            with pytest.raises(StoreFullError, match=r"larger than a file may be here: raise .*ulimit -f"):
                convert_part(place, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    assert list_parts(place).missing == [0]
    assert len([*(plan.folder / "shards").iterdir()]) == 1  # the shard of the first attempt
    convert_part(place, 0)
    assert publish(place).records == 40


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data + b"x", None], ids=["cut", "long", "gone"]
)
def test_shard_with_a_wrong_size_raises(root: Path, place: Path, change: Callable[[bytes], bytes] | None) -> None:
    plant_photos(root, 4)
    (root / "cat" / "0.jpg").write_bytes(b"text")
    convert(root, place, shards=5, executor=Here())
    for path in sorted((place / "shards").iterdir()):
        whole = path.read_bytes()
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(whole))
        with open_store(place) as store:
            with pytest.raises(DamagedStoreError, match=f"{path.name}.*(bytes|missing)"):
                store.verify()
            with suppress(DamagedStoreError):
                store.read(range(4))
                assert path.name.startswith("00000")  # this shard has no records
        path.write_bytes(whole)
    with open_store(place) as store:
        store.verify()


def test_wrong_numbers_of_parts_and_workers_are_refused(root: Path, place: Path) -> None:
    plant_photos(root, 4)
    for shards in (0, 10**7):
        with pytest.raises(OptionError, match=r"^shards must be "):
            convert(root, place, shards=shards)
    plan_conversion(root, place, 2)
    for part in (2, -1):
        with pytest.raises(OptionError, match=r"^part must be "):
            convert_part(place, part)
    with pytest.raises(OptionError, match=r"^workers must be "):
        convert_part(place, 0, workers=0)


@pytest.mark.parametrize("at", [0, 1, 3, 8, -8, -1])  # the length of the first entry, its content, the last CRC-32
def test_damaged_list_of_files_is_refused_by_parts(root: Path, place: Path, at: int) -> None:
    plant_photos(root, 6)
    plan = plan_conversion(root, place, 2, shuffle_seed=1)
    path = plan.folder / list_name(plan.token)
    whole = path.read_bytes()
    for data in (whole[:at] + bytes([whole[at] ^ 16]) + whole[at:][1:], whole[:-8], b""):
        path.write_bytes(data)
        with pytest.raises(DamagedStoreError, match=r"damaged.*plan again"):
            [convert_part(place, part) for part in range(2)]
    path.write_bytes(whole)
    assert [convert_part(place, part).records for part in range(2)] == [3, 3]


def test_part_reads_a_list_that_is_larger_than_its_room(root: Path, place: Path, small_disk: Path) -> None:
    plant_photos(root, 1)
    listing, caption = root / "list.jsonl", "c" * 2**16
    # Up to nine tasks of 16 files are in work at once, and their captions take 9 MiB.
    paths = ["cat/0000.jpg", *(f"cat/missing {number}.jpg" for number in range(1000))]
    listing.write_text("".join(json.dumps({"path": path, "caption": caption}) + "\n" for path in paths))
    plan = plan_conversion(root, place, 1, listing=listing)
    size = (plan.folder / list_name(plan.token)).stat().st_size
    assert size > shutil.disk_usage(small_disk).total
    assert traced_peak(lambda: convert_part(place, 0, scratch=small_disk)) < size / 4
    assert (list_parts(place).missing, publish(place).records) == ([], 1)


def test_missing_list_of_files_is_refused_by_parts(root: Path, place: Path) -> None:
    plant_photos(root, 2)
    plan = plan_conversion(root, place, 1)
    (plan.folder / list_name(plan.token)).unlink()
    with pytest.raises(StoreNotFoundError, match=r" is missing: plan again with overwrite \(--overwrite\)$"):
        convert_part(place, 0)
