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
from dbloader.ext.measuring.doctor import Finding, examine_machine, examine_place
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


def test_report_about_this_machine_is_complete() -> None:
    findings = examine_machine()
    names = [finding.name for finding in findings]
    assert names[:7] == ["Python", "dbloader", "lmdb", "pymongo", "Pillow", "numpy", "simplejpeg"]
    assert names[7:9] == ["/dev/shm", "torch"]
    assert one(findings, "torch") == Finding("torch", "ok", torch.__version__)
    for finding in findings:
        assert finding.found
        assert finding.state == "ok" or (finding.consequence and finding.remedy)


def test_missing_or_small_shared_memory_is_a_problem(root: Path, small_disk: Path) -> None:
    found = one(examine_machine(root), "/dev/shm")
    assert (found.state, found.found, found.remedy) == ("problem", "No such file or directory", "mount a tmpfs there")
    (root / "dev/shm").symlink_to(small_disk)
    found = one(examine_machine(root), "/dev/shm")
    assert (found.state, found.found) == ("problem", "21.0 MB, 21.0 MB free")
    assert "bus error" in found.consequence
    assert "--shm-size" in found.remedy


def test_limit_on_file_sizes_is_a_warning() -> None:
    def examine() -> Finding:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10**9, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return one(examine_machine(), "file limit")

    found = from_child(examine)
    assert (found.state, found.found, found.remedy) == ("warning", "1.0 GB (ulimit -f)", "ulimit -f unlimited")


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


@pytest.mark.parametrize(
    ("kind", "state", "said"),
    [
        *((kind, "warning", "reads wait for the network") for kind in ("nfs4", "cifs", "lustre", "ceph", "fuse.sshfs")),
        ("overlay", "warning", "is deleted with the container"),
        ("ext4", "ok", ""),
        ("fuseblk", "ok", ""),
    ],
)
def test_network_file_system_and_container_layer_are_warnings(
    root: Path, place: Path, kind: str, state: str, said: str
) -> None:
    (root / "proc/self/mountinfo").write_text(f"1 1 0:1 / {place.parent} rw - {kind} x rw\n")
    found = one(examine_place(place, root), "file system")
    assert (found.state, found.found) == (state, f"{place} is on {kind}")
    assert said in found.consequence
    assert bool(said) == bool(found.remedy)


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
    with pytest.raises(PlaceError, match="has the form mongodb://host/"):
        examine_place("mongodb://localhost/images")


def test_report_contains_the_version_of_the_server(place: Path, mongod: Mongod, mongod_uri: str) -> None:
    with pytest.raises(StoreNotFoundError):
        examine_place(mongod_uri)
    copy_store(place, mongod_uri)
    (server,) = examine_place(mongod_uri)
    with mongod.client() as client:
        assert server.found.endswith(f" answers, version {client.server_info()['version']}")
    assert server.state == "ok"


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
