"""Conversion in parts to object storage by machines that share no folder."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dbloader.conversion.convert import convert
from dbloader.errors import OptionError, PlaceError
from dbloader.ext.collecting.write_store import write_store
from dbloader.ext.copying.copy_store import copy_store
from dbloader.ext.parts.part import list_parts
from dbloader.ext.parts.publish import publish
from dbloader.ext.remote.bucket import Bucket
from dbloader.stores.open import open_store
from tests.support.crash import trials
from tests.support.http_proxy import LOST, SLOW_DOWN, Change, HTTPProxy, other_etag, shorten
from tests.support.images import plant, plant_photos
from tests.support.object_store import HOST, WAIT_S, ObjectStore, Outside, free_ports, keys, put_folder, read_table
from tests.support.parts import plan_conversion
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("object_store")]

PARTS = 3


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = plant_photos(tmp_path_factory.mktemp("images") / "images", 24)
    return plant(folder, {"cat/bad.jpg": b"no image"})


@pytest.fixture(scope="module")
def digest(root: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a store in one file."""
    return convert(root, tmp_path_factory.mktemp("whole") / "whole.lmdb").digest


class Machine:
    """A machine with a folder of its own. It shares nothing with other machines except the bucket."""

    def __init__(self, folder: Path, server: ObjectStore, endpoint: str = "") -> None:
        self.folder = folder
        (folder / "tmp").mkdir(parents=True)
        self.environment = {**os.environ, **server.environment(endpoint=endpoint), "TMPDIR": str(folder / "tmp")}

    def start(self, *arguments: object, program: Sequence[str] = ("-m", "dbloader")) -> subprocess.Popen[str]:
        command = [sys.executable, *program, *map(str, arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: object, status: int = 0, program: Sequence[str] = ("-m", "dbloader")) -> str:
        """Run a command of dbloader or another program, and return what it prints."""
        with self.start(*arguments, program=program) as process:
            try:
                printed, errors = process.communicate(timeout=WAIT_S)
            finally:
                process.kill()
        assert process.returncode == status, errors
        return printed + errors


@pytest.fixture
def machine(object_store: ObjectStore, tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine", object_store)


def check_is(machine: Machine, place: str, digest: str, events: int = 1) -> None:
    """Check that the store at a place has this digest and this number of events."""
    machine.run("copy", place, "copy.lmdb", "--overwrite")
    with open_store(machine.folder / "copy.lmdb") as store:
        assert store.verify() == store.manifest.digest == digest
        assert len(list(store.events())) == events


def check_clean(outside: Outside, place: str) -> None:
    """Check that nothing but the store is at a place."""
    assert {*outside(keys, place)} == {*outside(read_table, place).files, "manifest.bson"}
    assert outside(keys, f"{place}.partial") == []


def test_machines_without_a_shared_folder_make_a_store_and_train(
    object_store: ObjectStore, outside: Outside, root: Path, digest: str, tmp_path: Path
) -> None:
    machines = [Machine(tmp_path / f"machine {number}", object_store) for number in range(3)]
    images, place = object_store.place("images"), object_store.place("train.lmdb")
    outside(put_folder, images, root)
    machines[0].run("plan", images, place, "--shards", PARTS)
    assert "0 of 3 parts are made; missing 0-2" in machines[1].run("parts", place, status=1)
    running = [machine.start("part", place, part) for part, machine in enumerate(machines)]
    for process in running:
        assert process.wait(WAIT_S) == 0, process.communicate()
        process.communicate()
    machines[1].run("publish", place, status=1)  # a file is rejected
    assert "bad.jpg" in (machines[1].folder / "train.lmdb.report.jsonl").read_text()
    check_is(machines[0], place, digest)
    check_clean(outside, place)
    program = (
        "import sys\nfrom dbloader import LMDBDataset, create_loader\n"
        "dataset = LMDBDataset(sys.argv[1], cache='cache')\n"
        "loader = create_loader(dataset, 32, 8, num_workers=0, device=None)\n"
        "print(sum(len(labels) for _, labels in loader))\n"
        "dataset.close()"
    )
    for machine in machines:
        assert machine.run(place, program=("-c", program)) == "24\n"


@pytest.mark.nightly
@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="Ray is not installed")
def test_ray_makes_the_parts_in_a_bucket(
    outside: Outside, machine: Machine, object_store: ObjectStore, root: Path, digest: str
) -> None:
    place = object_store.place("train.lmdb")
    with tempfile.TemporaryDirectory() as short:  # Ray's sockets need a short path
        machine.environment["RAY_TMPDIR"] = short
        machine.run("convert", root, place, "--shards", PARTS, "--executor", "ray", status=1)  # a file is rejected
    check_is(machine, place, digest)
    check_clean(outside, place)


def test_processes_of_an_executor_make_the_parts_in_a_bucket_unless_forked(
    outside: Outside, machine: Machine, object_store: ObjectStore, root: Path, digest: str
) -> None:
    place = object_store.place("train.lmdb")
    program = (
        "import sys\nfrom concurrent.futures import ProcessPoolExecutor\nfrom multiprocessing import get_context\n"
        "from dbloader import convert\nhow, root, place, shards = sys.argv[1:]\n"
        "with ProcessPoolExecutor(2, get_context(how)) as executor:\n"
        "    convert(root, place, shards=int(shards), executor=executor)"
    )
    refused = machine.run("fork", root, place, PARTS, status=1, program=("-c", program))
    assert re.search(r'OptionError: part \d: .* in a process that was forked: start processes with .* "spawn"', refused)
    machine.run("spawn", root, place, PARTS, program=("-c", program))
    check_is(machine, place, digest)
    check_clean(outside, place)


def held_at(what: str, count: int, held: Callable[[], object]) -> Callable[[str, str], None]:
    """For HTTPProxy: call ``held`` before each of the first ``count`` PUTs whose path contains ``what``."""
    seen, lock = Counter[str](), threading.Lock()

    def decide(method: str, path: str) -> None:
        if method == "PUT" and what in path:
            with lock:
                seen[what] += 1
                first = seen[what] <= count
            if first:
                held()

    return decide


@pytest.mark.nightly
def test_concurrent_attempts_at_a_part_leave_one_shard(
    outside: Outside, object_store: ObjectStore, root: Path, digest: str, tmp_path: Path
) -> None:
    place, both = object_store.place("train.lmdb"), threading.Barrier(2)
    # Each attempt waits before it uploads its receipt until both attempts have a receipt to upload.
    with HTTPProxy(object_store.port, held_at(".bson", 2, lambda: both.wait(WAIT_S))) as proxy:
        direct = Machine(tmp_path / "direct", object_store)
        direct.run("plan", root, place, "--shards", 1)
        attempts = [Machine(tmp_path / name, object_store, proxy.endpoint).start("part", place, 0) for name in "ab"]
        for process in attempts:
            assert process.wait(WAIT_S) == 0, process.communicate()
            process.communicate()
    assert len(outside(keys, f"{place}/shards")) == 1
    direct.run("publish", place, status=1)
    check_is(direct, place, digest)
    check_clean(outside, place)


def test_concurrent_publishers_make_one_store(
    outside: Outside, object_store: ObjectStore, root: Path, digest: str, tmp_path: Path
) -> None:
    place, both = object_store.place("train.lmdb"), threading.Barrier(2)
    with HTTPProxy(object_store.port, held_at("manifest.bson", 2, lambda: both.wait(WAIT_S))) as proxy:
        direct = Machine(tmp_path / "direct", object_store)
        direct.run("plan", root, place, "--shards", PARTS)
        for part in range(PARTS):
            direct.run("part", place, part)
        publishers = [Machine(tmp_path / name, object_store, proxy.endpoint).start("publish", place) for name in "ab"]
        for process in publishers:
            assert process.wait(WAIT_S) in (0, 1), process.communicate()
            process.communicate()
    check_is(direct, place, digest)
    check_clean(outside, place)


def test_late_part_of_a_replaced_plan_uploads_no_shard(
    outside: Outside, object_store: ObjectStore, root: Path, digest: str, tmp_path: Path
) -> None:
    place = object_store.place("train.lmdb")
    direct = Machine(tmp_path / "direct", object_store)
    direct.run("plan", root, place, "--shards", 2)

    def plan_again() -> None:
        assert "  part 0: begun 0 min ago on " in direct.run("parts", place, status=1)
        direct.run("plan", root, place, "--shards", PARTS, "--overwrite")

    with HTTPProxy(object_store.port, held_at("/shards/", 1, plan_again)) as proxy:
        late = Machine(tmp_path / "late", object_store, proxy.endpoint)
        assert "was planned again or removed while part 0 was made" in late.run("part", place, 0, status=2)
    assert outside(keys, f"{place}/shards") == []
    for part in range(PARTS):
        direct.run("part", place, part)
    direct.run("publish", place, status=1)
    check_is(direct, place, digest)
    check_clean(outside, place)


@pytest.mark.parametrize("newer", [True, False])
def test_late_part_fails_unless_its_own_plan_was_published(
    outside: Outside, object_store: ObjectStore, root: Path, digest: str, tmp_path: Path, newer: bool
) -> None:
    place = object_store.place("train.lmdb")
    direct = Machine(tmp_path / "direct", object_store)
    direct.run("plan", root, place, "--shards", 2)

    def publish_meanwhile() -> None:
        if newer:
            direct.run("plan", root, place, "--shards", 2, "--overwrite")
        for part in range(2):
            direct.run("part", place, part)
        direct.run("publish", place, status=1)

    with HTTPProxy(object_store.port, held_at("/shards/", 1, publish_meanwhile)) as proxy:
        late = Machine(tmp_path / "late", object_store, proxy.endpoint)
        printed = late.run("part", place, 0, status=2 if newer else 0)
    assert ("so this part is not used: dbloader parts" in printed) == newer
    check_is(direct, place, digest)
    check_clean(outside, place)


def test_commands_wait_for_a_server_that_is_away_when_they_start(
    outside: Outside, object_store: ObjectStore, root: Path, digest: str, tmp_path: Path
) -> None:
    images, place, (port,) = object_store.place("images"), object_store.place("train.lmdb"), free_ports(1)
    outside(put_folder, images, root)
    machine = Machine(tmp_path / "machine", object_store, f"http://{HOST}:{port}")
    store = tmp_path / "one.lmdb"
    convert(root, store)
    # The plan on a disk shows that a part waits for its source, too.
    outside(plan_conversion, images, machine.folder / "disk.lmdb", 1)
    steps: list[tuple[object, ...]] = [
        ("plan", root, place, "--shards", 1), ("part", place, 0), ("publish", place), ("copy", place, "copy.lmdb"),
        ("copy", store, object_store.place("other.lmdb")), ("part", "disk.lmdb", 0),
    ]  # fmt: skip
    for step in steps:
        with machine.start(*step) as process:
            assert process.stderr is not None
            warning = process.stderr.readline()
            assert re.search(r"Warning: .* no server answers at .*; the request is repeated for 60 s", warning), step
            with HTTPProxy(object_store.port, lambda *_: None, at=port):
                _, errors = process.communicate(timeout=WAIT_S)
            assert process.returncode == (1 if "publish" in step else 0), errors
    check_is(Machine(tmp_path / "direct", object_store), place, digest)


@pytest.mark.parametrize("has_md5", [True, False])
def test_short_answers_are_requested_again_at_every_step(
    outside: Outside, object_store: ObjectStore, root: Path, digest: str, tmp_path: Path, has_md5: bool
) -> None:
    images, place, asked = object_store.place("images"), object_store.place("train.lmdb"), Counter[str]()
    outside(put_folder, images, root)

    def decide(method: str, path: str) -> Change | None:
        if method != "GET":
            return None
        asked[path] += 1
        if asked[path] > 2 or path.endswith(".jpg"):
            return None if has_md5 else other_etag
        return shorten if has_md5 else lambda *answer: other_etag(*shorten(*answer))

    with HTTPProxy(object_store.port, decide) as proxy:
        machine = Machine(tmp_path / "machine", object_store, proxy.endpoint)
        machine.run("plan", images, place, "--shards", 1)
        machine.run("part", place, 0)
        machine.run("parts", place)
        machine.run("publish", place, status=1)
        machine.run("publish", place)
        machine.run("info", place)
        machine.run("copy", place, "back.lmdb")
    with open_store(machine.folder / "back.lmdb") as store:
        assert store.verify() == digest
    short = [path.rpartition("/")[2] for path in asked]
    for what in ("list-type", "plan.bson", "files/list-", "parts/00000-", "manifest.bson", "index-", "shards/00000-"):
        assert any(what in path for path in asked), short


def test_each_file_is_uploaded_once(outside: Outside, object_store: ObjectStore, root: Path, tmp_path: Path) -> None:
    place, puts = object_store.place("train.lmdb"), Counter[str]()

    def decide(method: str, path: str) -> None:
        if method == "PUT":
            puts[path.partition("?")[0].partition(place.rpartition("/")[2])[2]] += 1

    with HTTPProxy(object_store.port, decide) as proxy:
        machine = Machine(tmp_path / "machine", object_store, proxy.endpoint)
        machine.run("convert", root, place, "--shards", PARTS, status=1)
    assert set(puts.values()) == {1}
    kinds = Counter(path.rpartition("/")[0] for path in puts)
    assert (kinds["/shards"], kinds[".partial/files"]) == (PARTS, 1)
    assert puts["/manifest.bson"] == puts[".partial/plan.bson"] == 1
    assert sum(path.startswith(".partial/parts/") and path.endswith(".bson") for path in puts) == PARTS
    nbytes = sum(shard.nbytes for shard in outside(read_table, place).shards)
    sent = sum(count for path, count in proxy.received.items() if "/shards/" in path)
    assert nbytes <= sent <= 1.05 * nbytes


def test_append_uploads_only_new_files(
    outside: Outside, machine: Machine, object_store: ObjectStore, root: Path, tmp_path: Path
) -> None:
    place = object_store.place("train.lmdb")
    machine.run("convert", root, place, "--shards", PARTS, status=1)
    before = outside(read_table, place)
    more = plant_photos(tmp_path / "more", 5)
    machine.run("convert", more, place, "--append", "--shards", 2)
    after = outside(read_table, place)
    assert [*after.shards[:PARTS]] == [*before.shards]
    assert after.manifest.length == before.manifest.length + 5
    assert {*before.files} < {*outside(keys, place)}  # readers of the old store still find its index
    assert "exists already" in machine.run("convert", more, place, "--shards", 1, status=2)
    machine.run("plan", more, place, "--shards", 1)
    machine.run("part", place, 0)
    machine.run("publish", place, "--overwrite", "--keep-hours", 0)
    check_clean(outside, place)
    check_is(machine, place, convert(more, tmp_path / "whole.lmdb").digest, events=0)


# Publish 24 hours after a moment. So for keep_hours, which is 24 by default, whatever is older than the moment is old.
A_DAY_LATER = """
import sys
from datetime import datetime, timedelta
from dbloader.ext.parts import publish
now = datetime.fromisoformat(sys.argv[2]) + timedelta(hours=24)
publish.datetime = type("Clock", (), {"now": lambda zone: now.astimezone(zone)})
publish.publish(sys.argv[1], overwrite=True)
"""


def last_written(place: str) -> datetime:
    """Return when the newest object below a place was written, by the server's clock."""
    return max(item.modified for item in Bucket(place).items())


def test_publish_keeps_a_replaced_store_for_keep_hours(
    outside: Outside, machine: Machine, object_store: ObjectStore, tmp_path: Path
) -> None:
    place, tick = object_store.place("train.lmdb"), object_store.place("tick")
    stores: list[set[str]] = []
    for number in range(3):
        machine.run("plan", plant_photos(tmp_path / str(number), 3), place, "--shards", 1)
        machine.run("part", place, 0)
        if stores:  # let the server's clock pass the last file of the store at the place
            newest = outside(last_written, place)

            def has_ticked(newest: datetime = newest) -> bool:
                outside(put_folder, tick, tmp_path / "0")
                return outside(last_written, tick) > newest

            wait_for(has_ticked, "the server's clock")
            machine.run(place, outside(last_written, tick).isoformat(), program=("-c", A_DAY_LATER))
        else:
            machine.run("publish", place)
        stores.append({*outside(read_table, place).files})
        present = {*outside(keys, place)}
        assert stores[-1] | {*(stores[-2] if number else ())} <= present
    assert not stores[0] & present
    machine.run("publish", place, "--keep-hours", 0)
    assert {*outside(keys, place)} == {*stores[2], "manifest.bson"}


@pytest.mark.nightly
def test_append_planned_before_a_replacement_is_refused(
    machine: Machine, object_store: ObjectStore, root: Path, tmp_path: Path
) -> None:
    place, more = object_store.place("train.lmdb"), plant_photos(tmp_path / "more", 5)
    machine.run("convert", root, place, "--shards", 1, status=1)
    machine.run("plan", more, place, "--shards", 1, "--append")
    machine.run("part", place, 0)
    machine.run("convert", more, tmp_path / "one.lmdb")
    machine.run("copy", tmp_path / "one.lmdb", place, "--overwrite")
    assert "missing 0" in machine.run("publish", place, status=2)  # copying has removed the shard
    machine.run("part", place, 0)
    assert "plan again with append" in machine.run("publish", place, status=2)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("s3://images//", "s3://images names only a bucket: name the store too, as in s3://images/train.lmdb"),
        ("https://host/train.lmdb", "cannot be put on a web server"),
    ],
)
def test_place_that_cannot_hold_a_store_is_refused(
    outside: Outside, root: Path, tmp_path: Path, place: str, message: str
) -> None:
    convert(root, tmp_path / "one.lmdb")
    ways: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = [
        (plan_conversion, (root, place, 1), {}),
        (list_parts, (place,), {}),
        (publish, (place,), {}),
        (convert, (root, place), {"append": True}),
        (copy_store, (tmp_path / "one.lmdb", place), {}),
    ]
    for way, arguments, options in ways:
        with pytest.raises((OptionError, PlaceError), match=message):
            outside(way, *arguments, **options)
    # These two functions cannot write to any place in object storage.
    for arguments in ((convert, root, place), (write_store, [], place)):
        with pytest.raises(PlaceError, match="is in object storage, which this operation does not support"):
            outside(*arguments)


class Killer:
    """Decides to kill a process at its n-th request, before or after the server executes the request."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.at, self.after, self.requests = at, after, 0
        self.process: subprocess.Popen[str] | None = None
        self.known = threading.Event()

    def __call__(self, method: str, path: str) -> Any:
        self.known.wait(WAIT_S)
        self.requests += 1
        if self.process is not None and self.requests == self.at:
            if not self.after:
                self.process.kill()
                return SLOW_DOWN
            # The server executes the request, but the process does not get the answer.
            threading.Timer(0.05, self.process.kill).start()
            return LOST
        return SLOW_DOWN if self.process is not None and self.requests > self.at else None


def run_and_kill(killer: Killer, server: ObjectStore, folder: Path, *arguments: object) -> None:
    """Run a command on a new machine, and let the killer kill the command's process."""
    with HTTPProxy(server.port, killer) as proxy:
        killer.process = Machine(folder, server, proxy.endpoint).start(*arguments)
        killer.known.set()
        killer.process.wait(WAIT_S)
        killer.process.communicate()


# The step that is killed, and the latest request at which it is killed. A step may end with fewer requests.
STEPS = {"plan": 10, "part": 14, "publish": 30, "append": 50}


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=[pytest.mark.nightly] * (step != "publish")) for step in STEPS]
)
@pytest.mark.parametrize("trial", trials(30, 0))
def test_conversion_repeated_after_a_kill_at_any_request_has_the_same_digest(
    outside: Outside, object_store: ObjectStore, root: Path, digest: str, tmp_path: Path, step: str, trial: int
) -> None:
    generator = random.Random(f"{step} {trial}")
    killer = Killer(generator.randint(1, STEPS[step]), after=generator.random() < 0.5)
    place, direct = object_store.place("train.lmdb"), Machine(tmp_path / "direct", object_store)
    steps: dict[str, list[tuple[object, ...]]] = {
        "plan": [("plan", root, place, "--shards", 2)],
        "part": [("part", place, 0), ("part", place, 1)],
        "publish": [("publish", place, "--keep-hours", 0)],
    }
    append = ("convert", root, place, "--shards", 2, "--append")
    if step == "append":
        direct.run("convert", plant_photos(tmp_path / "old", 3), place, "--shards", 1)
    else:
        for earlier in [*steps][: [*steps].index(step)]:
            for arguments in steps[earlier]:
                direct.run(*arguments)
    run_and_kill(killer, object_store, tmp_path / "victim", *(append if step == "append" else steps[step][0]))
    if step == "append":
        direct.start(*steps["publish"][0]).communicate()  # fails if the kill left no plan or not all parts
        if outside(read_table, place).manifest.length == 3:
            direct.run(*append, status=1)
        assert [shard.length for shard in outside(read_table, place).shards] == [3, 12, 12]
        direct.run("copy", place, "copy.lmdb")
        direct.run("verify", "copy.lmdb")
        return
    for later in [*steps][[*steps].index(step) :]:
        for arguments in steps[later]:
            again = direct.start(*arguments)
            _, errors = again.communicate(timeout=WAIT_S)
            assert again.returncode in ((0, 1) if later == "publish" else (0,)), errors  # 1: a file was rejected
    check_is(direct, place, digest)
    check_clean(outside, place)


@pytest.mark.nightly
@pytest.mark.parametrize("trial", trials(30, 0))
def test_copy_to_a_bucket_killed_at_any_request_can_be_repeated(
    outside: Outside, object_store: ObjectStore, root: Path, digest: str, tmp_path: Path, trial: int
) -> None:
    generator = random.Random(f"upload {trial}")
    killer = Killer(generator.randint(1, 14), after=generator.random() < 0.5)
    place, direct = object_store.place("train.lmdb"), Machine(tmp_path / "direct", object_store)
    convert(root, tmp_path / "folder.lmdb", shards=PARTS)
    if generator.random() < 0.5:  # the copy replaces a store
        direct.run("convert", plant_photos(tmp_path / "old", 3), place, "--shards", 1)
    copy = ("copy", tmp_path / "folder.lmdb", place, "--overwrite")
    run_and_kill(killer, object_store, tmp_path / "victim", *copy)
    direct.run(*copy)
    check_is(direct, place, digest)
    check_clean(outside, place)


@pytest.mark.nightly
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_conversion_survives_refused_requests_and_lost_answers(
    outside: Outside, object_store: ObjectStore, root: Path, digest: str, tmp_path: Path, share: float
) -> None:
    generator, place = random.Random(share), object_store.place("train.lmdb")

    def decide(*_: str) -> Any:
        return None if generator.random() >= share else SLOW_DOWN if generator.random() < 0.8 else LOST

    with HTTPProxy(object_store.port, decide) as proxy:
        machine = Machine(tmp_path / "machine", object_store, proxy.endpoint)
        steps: list[tuple[object, ...]] = [("plan", root, place, "--shards", 2), ("part", place, 0), ("part", place, 1)]
        for arguments in [*steps, ("publish", place)]:
            attempts = 0
            # A command gives up after a minute of refusals, and is repeated, as a job would be.
            while (process := machine.start(*arguments)).wait(3 * WAIT_S) == 2 and attempts < 5:
                _, errors = process.communicate()
                assert "try again later" in errors or "repeated for 60 s" in errors
                attempts += 1
            process.communicate()
            assert attempts < 5
    check_is(Machine(tmp_path / "direct", object_store), place, digest)
    check_clean(outside, place)
