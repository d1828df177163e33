"""Parts of a batch are smaller while workers are idle."""

import itertools

import pytest

from dbloader.loading.part_size import PartSize


def test_parts_get_smaller_only_while_workers_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(0, 10)
    monkeypatch.setattr("dbloader.loading.part_size.now", lambda: next(seconds))
    size = PartSize(2, 32)

    def after(idle_s: float) -> int:
        size.adapt(idle_s)
        return size.most

    assert [after(1.1) for _ in range(7)] == [16, 8, 4, 2, 1, 1, 1]
    sizes = [after(0.9) for _ in range(99)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (1, 32)
