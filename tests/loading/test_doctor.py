"""`dbloader doctor` reports problems of machines and of the places of stores."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch

from dbloader import Record, copy_store, write_store
from dbloader._describe import size
from dbloader.errors import NotAStoreError, PlaceError, StoreNotFoundError
from dbloader.loading.doctor import Finding, examine_machine, examine_place
from tests.support.children import from_child
from tests.support.mongo import Mongod


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_store((Record(image=os.urandom(10_000)) for _ in range(50)), tmp_path / "store.lmdb")
    return tmp_path / "store.lmdb"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root folder of an imaginary machine."""
    (tmp_path / "root/proc/self").mkdir(parents=True)
    (tmp_path / "root/dev").mkdir()
    return tmp_path / "root"


def one(findings: list[Finding], name: str) -> Finding:
    (found,) = [finding for finding in findings if finding.name == name]
    return found


def place_on(root: Path, kind: str, place: Path) -> list[Finding]:
    (root / "proc/self/mountinfo").write_text(f"1 1 0:1 / {place.parent} rw - {kind} x rw\n")
    return examine_place(place, root)


def test_report_about_this_machine_is_complete() -> None:
    findings = examine_machine()
    names = [finding.name for finding in findings]
    assert names[:7] == ["Python", "dbloader", "lmdb", "pymongo", "Pillow", "numpy", "simplejpeg"]
    assert names[7:12] == ["memory", "/dev/shm", "open files", "libjpeg-turbo", "torch"]
    assert one(findings, "torch") == Finding("torch", "ok", torch.__version__)
    for finding in findings:
        assert finding.found
        assert finding.state == "ok" or (finding.consequence and finding.remedy)


def test_missing_shared_memory_is_a_problem(root: Path) -> None:
    found = one(examine_machine(root), "/dev/shm")
    assert (found.state, found.found, found.remedy) == ("problem", "No such file or directory", "mount a tmpfs there")


def test_small_shared_memory_is_a_problem(root: Path, small_disk: Path) -> None:
    (root / "dev/shm").symlink_to(small_disk)
    found = one(examine_machine(root), "/dev/shm")
    assert (found.state, found.found) == ("problem", "21.0 MB, 21.0 MB free")
    assert "bus error" in found.consequence
    assert "--shm-size" in found.remedy


@pytest.mark.parametrize(
    ("soft", "state", "remedy"),
    [(100, "problem", "ulimit -n 1500"), (1000, "warning", "ulimit -n 1500"), (1100, "ok", "")],
)
def test_low_limit_of_open_files_is_reported_with_a_command(soft: int, state: str, remedy: str) -> None:
    def limited() -> Finding:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, 1500))
        return one(examine_machine(), "open files")

    found = from_child(limited)
    assert (found.state, found.found, found.remedy) == (state, f"at most {soft:,}", remedy)


def test_little_memory_is_a_warning(root: Path) -> None:
    (root / "proc/meminfo").write_text("MemAvailable: 1000000 kB\n")
    found = one(examine_machine(root), "memory")
    assert (found.state, found.found.endswith(", 1.0 GB available")) == ("warning", True)
    (root / "proc/meminfo").unlink()
    assert one(examine_machine(root), "memory").found.endswith("; how much is available is unknown")


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a device")
def test_driver_without_a_cuda_device_is_a_problem(root: Path) -> None:
    assert one(examine_machine(root), "CUDA").state == "ok"
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").touch()
    found = one(examine_machine(root), "CUDA")
    assert found.state == "problem"
    assert found.found.startswith("no device, torch is made for ")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_each_cuda_device_is_reported() -> None:
    assert one(examine_machine(), "cuda:0") == Finding("cuda:0", "ok", torch.cuda.get_device_name(0))


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "lustre", "ceph", "fuse.sshfs", "9p"])
def test_network_file_system_is_a_warning(root: Path, place: Path, kind: str) -> None:
    found = one(place_on(root, kind, place), "file system")
    assert (found.state, found.found) == ("warning", f"{place} is on {kind}")
    assert found.remedy == "copy the file to a local disk"


def test_container_layer_is_a_warning_but_a_local_disk_is_not(root: Path, place: Path) -> None:
    assert one(place_on(root, "ext4", place), "file system") == Finding("file system", "ok", f"{place} is on ext4")
    assert one(place_on(root, "fuseblk", place), "file system").state == "ok"
    assert "is deleted with the container" in one(place_on(root, "overlay", place), "file system").consequence


def test_file_larger_than_the_memory_is_a_warning(root: Path, place: Path) -> None:
    assert one(examine_place(place), "file size").state == "ok"
    (root / "proc/meminfo").write_text("MemAvailable: 300 kB\n")
    found = one(examine_place(place, root), "file size")
    assert (found.state, found.found) == ("warning", f"{size(place.stat().st_size)}, more than the memory")


def test_missing_store_and_invalid_place_are_errors(place: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"none\.lmdb does not exist"):
        examine_place(tmp_path / "none.lmdb")
    (tmp_path / "text").write_text("text")
    with pytest.raises(NotAStoreError, match="not an LMDB file"):
        examine_place(tmp_path / "text")
    with pytest.raises(PlaceError, match="names no collection"):
        examine_place("mongodb://localhost/images")


def test_report_contains_the_version_of_the_server(place: Path, mongod: Mongod, mongod_uri: str) -> None:
    with pytest.raises(StoreNotFoundError):
        examine_place(mongod_uri)
    copy_store(place, mongod_uri)
    server, topology = examine_place(mongod_uri)
    with mongod.client() as client:
        assert server.found.endswith(f" answers, version {client.server_info()['version']}")
    assert (server.state, topology.state) == ("ok", "ok")
    assert topology.found == "none, a standalone server"


def test_unreachable_server_is_a_problem_and_its_password_is_hidden(
    mongod_with_users: Mongod, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = mongod_with_users.place("images")
    host = place.rpartition("@")[2]
    monkeypatch.setattr("dbloader.stores.mongo.connection.SELECTION_SECONDS", 0.5)
    for uri, what in (
        (f"mongodb://root:hunter2-Zx@{host}", "refuses this user or password"),
        ("mongodb://root:hunter2-Zx@127.0.0.1:1/a.b", "no server answers"),
    ):
        (found,) = examine_place(uri)
        assert (found.state, what in found.found) == ("problem", True)
        assert "hunter2-Zx" not in str(found)
