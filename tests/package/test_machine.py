"""Limits of the machine: CPUs by affinity and quota, memory by control group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dbloader._machine import available_memory, cpu_count, file_system, total_memory

CPUS = len(os.sched_getaffinity(0))
HUGE = 9223372036854771712  # version 1 says so where there is no limit


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 64 CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))


def machine(root: Path, group: str, files: dict[str, str]) -> Path:
    """Return a folder with this process's control group, and files below sys/fs/cgroup."""
    for path, text in {"proc/self/cgroup": group, "proc/meminfo": "MemTotal: 2 kB\nMemAvailable: 9 kB\n"}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for path, text in files.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("limit", "cpus"),
    [("400000 100000", 4), ("max 100000", 64), ("250000 100000", 3), ("1000 100000", 1), ("9900000 100000", 64)],
)
def test_a_container_has_the_cpus_of_its_quota_rounded_up(tmp_path: Path, limit: str, cpus: int) -> None:
    assert cpu_count(machine(tmp_path, "0::/\n", {"cpu.max": limit})) == cpus


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(("outer", "inner", "cpus"), [("2", "8", 2), ("8", "2", 2), ("max", "5", 5), ("5", "max", 5)])
def test_the_least_quota_of_nested_groups_holds(tmp_path: Path, outer: str, inner: str, cpus: int) -> None:
    files = {"pod/cpu.max": f"{outer} 1", "pod/box/cpu.max": f"{inner} 1", "other/cpu.max": "1 1"}
    assert cpu_count(machine(tmp_path, "0::/pod/box/none\n", files)) == cpus


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(("quota", "period", "cpus"), [(350_000, 100_000, 4), (-1, 100_000, 64), (50_000, 0, 64)])
def test_version_1_has_quota_and_period_in_two_files(tmp_path: Path, quota: int, period: int, cpus: int) -> None:
    # A container may see only its own group, as the root, while its path is that of the machine.
    files = {"cpu/cpu.cfs_quota_us": f"{quota}", "cpu/cpu.cfs_period_us": f"{period}"}
    group = "12:memory:/kube/pod\n3:cpu,cpuacct:/kube/pod\n1:name=systemd:/\n0::/\n"
    assert cpu_count(machine(tmp_path, group, files)) == cpus


@pytest.mark.usefixtures("many")
def test_a_group_of_version_1_without_a_quota_has_that_of_the_group_around_it(tmp_path: Path) -> None:
    quotas = {"cpu/a/b/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_quota_us": "300", "cpu/cpu.cfs_quota_us": "-1"}
    periods = {name.replace("quota", "period"): "100" for name in quotas}
    assert cpu_count(machine(tmp_path, "3:cpu,cpuacct:/a/b\n", {**quotas, **periods})) == 3


def test_without_control_groups_the_affinity_decides(tmp_path: Path) -> None:
    assert cpu_count(tmp_path) == CPUS
    assert cpu_count(machine(tmp_path, "1:name=systemd:/\n", {"cpu.max": "1 100"})) == CPUS


def test_where_the_system_has_no_affinity_all_cpus_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cpu_count(tmp_path) == os.cpu_count()


@pytest.mark.parametrize(
    ("group", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "4000"}, 4000),
        ("0::/a/b\n", {"memory.max": "max", "a/memory.max": "3000", "a/b/memory.max": "5000"}, 3000),
        ("0::/a/b\n", {"a/memory.max": "5000", "a/b/memory.max": "3000"}, 3000),
        ("4:memory:/a\n0::/\n", {"memory/memory.limit_in_bytes": f"{HUGE}"}, None),
        ("4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "2000"}, 2000),
        ("0::/\n", {"memory.max": "max"}, None),
        ("0::/\n", {}, None),
    ],
)
def test_a_container_has_no_more_memory_than_it_may_use(
    tmp_path: Path, group: str, files: dict[str, str], limit: int | None
) -> None:
    root = machine(tmp_path, group, files)
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert total_memory(root) == (limit or physical)
    assert available_memory(root) == (limit or 9 * 1024)


def test_without_proc_the_memory_is_that_of_the_machine(tmp_path: Path) -> None:
    assert total_memory(tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert available_memory(tmp_path) is None


def test_the_limits_of_this_process_are_within_those_of_the_machine() -> None:
    assert 1 <= cpu_count() <= CPUS
    available = available_memory()
    if Path("/proc/meminfo").exists():
        assert available is not None
        assert 10**6 < available <= total_memory()


def mounts(root: Path, *folders_and_types: tuple[object, str]) -> Path:
    """Return a folder with the mounts of a process, in their order."""
    escaped = ((str(folder).replace(" ", r"\040"), kind) for folder, kind in folders_and_types)
    lines = [f"9 1 0:9 / {folder} rw,relatime shared:1 - {kind} server:/x rw\n" for folder, kind in escaped]
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("".join(lines))
    return root


def test_a_file_is_on_the_deepest_mount_above_it_and_the_last_of_those(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    (folder / "c").mkdir(parents=True)
    root = mounts(tmp_path / "root", ("/", "ext4"), (folder, "nfs4"), (folder, "cifs"), (tmp_path, "xfs"))
    assert file_system(folder / "c/none.lmdb", root) == "cifs"
    assert file_system(tmp_path / "a bc", root) == "xfs"
    assert file_system("/", root) == "ext4"
    (tmp_path / "link").symlink_to(folder)
    assert file_system(tmp_path / "link/x.lmdb", root) == "cifs"


def test_the_file_system_is_unknown_without_mountinfo(tmp_path: Path) -> None:
    assert file_system(tmp_path, tmp_path) is None
    if Path("/proc/self/mountinfo").exists():
        assert file_system("/proc") == "proc"
