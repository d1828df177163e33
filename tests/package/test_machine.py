"""Affinity and quotas limit the number of CPUs, and control groups limit the memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dbloader._machine import available_memory, cpu_count
from dbloader.ext.measuring.file_system import file_system

CPUS = len(os.sched_getaffinity(0))
HUGE = 9223372036854771712  # the value that means no limit in version 1


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 64 CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))


def machine(root: Path, group: str, files: dict[str, str]) -> Path:
    """Return a root folder with this process's control group and files below sys/fs/cgroup."""
    for path, text in {"proc/self/cgroup": group, "proc/meminfo": "MemTotal: 2 kB\nMemAvailable: 9 kB\n"}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for path, text in files.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root


V1 = "12:memory:/kube/pod\n3:cpu,cpuacct:/kube/pod\n1:name=systemd:/\n0::/\n"
NESTED = "3:cpu,cpuacct:/a/b\n"


def nested(outer: str, inner: str) -> dict[str, str]:
    return {"pod/cpu.max": f"{outer} 1", "pod/box/cpu.max": f"{inner} 1", "other/cpu.max": "1 1"}


def version_1(quota: int, period: int, folder: str = "") -> dict[str, str]:
    return {f"cpu/{folder}cpu.cfs_quota_us": f"{quota}", f"cpu/{folder}cpu.cfs_period_us": f"{period}"}


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("group", "files", "cpus"),
    [
        ("0::/\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/\n", {"cpu.max": "250000 100000"}, 3),  # the quota is rounded up
        ("0::/\n", {"cpu.max": "max 100000"}, 64),
        ("0::/pod/box/none\n", nested("2", "8"), 2),  # the lowest quota of nested groups applies
        ("0::/pod/box/none\n", nested("5", "max"), 5),
        # A container may see its own group as the root of sys/fs/cgroup. proc has the path of the group on the machine.
        (V1, version_1(350_000, 100_000), 4),
        (V1, version_1(-1, 100_000), 64),
        (NESTED, {**version_1(-1, 100, "a/b/"), **version_1(300, 100, "a/"), **version_1(-1, 100)}, 3),
    ],
)
def test_number_of_cpus_follows_the_quota_of_the_container(
    tmp_path: Path, group: str, files: dict[str, str], cpus: int
) -> None:
    assert cpu_count(machine(tmp_path, group, files)) == cpus


def test_affinity_limits_cpus_without_control_groups(tmp_path: Path) -> None:
    assert cpu_count(tmp_path) == CPUS
    assert cpu_count(machine(tmp_path, "1:name=systemd:/\n", {"cpu.max": "1 100"})) == CPUS


@pytest.mark.parametrize(
    ("group", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "4000"}, 4000),
        ("0::/a/b\n", {"memory.max": "max", "a/memory.max": "3000", "a/b/memory.max": "5000"}, 3000),
        ("4:memory:/a\n0::/\n", {"memory/memory.limit_in_bytes": f"{HUGE}"}, None),
        ("4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "2000"}, 2000),
        ("0::/\n", {"memory.max": "max"}, None),
    ],
)
def test_memory_follows_the_limit_of_the_container(
    tmp_path: Path, group: str, files: dict[str, str], limit: int | None
) -> None:
    root = machine(tmp_path, group, files)
    assert available_memory(root) == (limit or 9 * 1024)


def test_limits_of_this_process_are_within_the_machine() -> None:
    assert 1 <= cpu_count() <= CPUS
    available = available_memory()
    assert available is not None
    assert 10**6 < available <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def mounts(root: Path, *folders_and_types: tuple[object, str]) -> Path:
    """Return a root folder with these mounts, in this order."""
    escaped = ((str(folder).replace(" ", r"\040"), kind) for folder, kind in folders_and_types)
    lines = [f"9 1 0:9 / {folder} rw,relatime shared:1 - {kind} server:/x rw\n" for folder, kind in escaped]
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("".join(lines))
    return root


def test_file_system_is_the_last_of_the_deepest_mounts(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    (folder / "c").mkdir(parents=True)
    root = mounts(tmp_path / "root", ("/", "ext4"), (folder, "nfs4"), (folder, "cifs"), (tmp_path, "xfs"))
    assert file_system(folder / "c/none.lmdb", root) == "cifs"
    assert file_system(tmp_path / "a bc", root) == "xfs"
    assert file_system("/", root) == "ext4"
    (tmp_path / "link").symlink_to(folder)
    assert file_system(tmp_path / "link/x.lmdb", root) == "cifs"
