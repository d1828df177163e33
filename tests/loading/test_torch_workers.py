"""Worker processes end as soon as their loader is dropped or the program ends. A killed worker is an error."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader

from dbloader import PrefetchLoader, create_loader
from dbloader.errors import LoaderError
from dbloader.loading.torch_workers import end_workers, own_workers
from tests.support.children import in_child
from tests.support.loaders import Numbers


def deaf(index: int) -> int:
    """Return the index, and ignore SIGTERM, which torch sends to a worker that does not answer."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return index


def stuck_at_7(index: int) -> int:
    while deaf(index) == 7:
        signal.pause()
    return index


def created(dataset: Any) -> PrefetchLoader[Any]:
    options: dict[str, Any] = {"transform": None, "normalize": None, "device": None}
    return create_loader(dataset, batch_size=2, num_workers=2, worker_type="processes", **options)


def over_torch(dataset: Any) -> PrefetchLoader[Any]:
    return PrefetchLoader(DataLoader(dataset, 2, num_workers=2, persistent_workers=True))


def nested(dataset: Any) -> PrefetchLoader[Any]:
    return PrefetchLoader(over_torch(dataset))


def prepared(dataset: Any) -> PrefetchLoader[Any]:
    accelerate = pytest.importorskip("accelerate")
    return PrefetchLoader(accelerate.Accelerator(cpu=True).prepare(over_torch(dataset).wrapped_loader))


def collect_in_a_thread() -> None:
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()


Make = Callable[[Any], PrefetchLoader[Any]]


@pytest.mark.parametrize(
    ("make", "collect", "stuck"),
    [
        (created, gc.collect, True),
        (created, collect_in_a_thread, False),
        (over_torch, gc.collect, False),
        (over_torch, collect_in_a_thread, True),
    ],
)
def test_garbage_collected_loader_ends_its_workers(
    make: Make, collect: Callable[[], Any], stuck: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    before = multiprocessing.active_children()
    gc.disable()
    try:
        cycle: list[Any] = [make(Numbers(20, stuck_at_7 if stuck else deaf))]
        # A background thread would wait for a stuck worker forever.
        iterator: Any = iter(cycle[0].wrapped_loader if stuck else cycle[0])
        own_workers(iterator)
        taken = [next(iterator) for _ in range(3)] if stuck else list(iterator)
        cycle += [iterator, cycle]
        assert len(multiprocessing.active_children()) == len(before) + 2
        assert len(taken) == (3 if stuck else 10)
        del cycle, iterator
        collect()
        assert multiprocessing.active_children() == before
    finally:
        gc.enable()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("make", [created, over_torch])
def test_loader_dropped_in_a_forked_child_keeps_its_workers(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    holder = [make(Numbers())]
    first = list(holder[0])
    assert in_child(holder.clear) == 0
    assert len(list(holder[0])) == len(first)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("owned", [True, False])
def test_iterator_dropped_in_a_forked_child_is_unknown_to_torch_there(owned: bool) -> None:
    loader = over_torch(Numbers(4))
    inner: Any = loader.wrapped_loader
    list(loader if owned else inner)  # only a PrefetchLoader replaces torch's shutdown of workers

    def drop() -> None:
        # torch would refuse a new iterator that Python creates at the address of a known one.
        inherited = id(inner._iterator)
        end_workers(inner, only_inherited=True)
        with pytest.raises(ValueError, match="Cannot find worker information"):
            _remove_worker_pids(inherited)

    assert in_child(drop) == 0
    assert len(list(loader)) == 2


@pytest.mark.parametrize("make", [created, over_torch, nested, prepared])
def test_forked_child_that_iterates_has_workers_of_its_own(make: Make) -> None:
    loader = make(Numbers(60))
    iterator = iter(loader)
    received = [batch.tolist() for _, batch in zip(range(3), iterator, strict=False)]

    def use() -> None:
        assert len(list(loader)) == 30
        with pytest.raises(LoaderError, match=r"call iter\(\)"):
            next(iterator)
        loader.close()
        assert len(list(loader)) == 30

    children = [multiprocessing.get_context("fork").Process(target=use) for _ in range(2)]
    for child in children:
        child.start()
    received += [batch.tolist() for batch in iterator]
    assert received == [[at, at + 1] for at in range(0, 60, 2)]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
        child.close()
    assert len(list(loader)) == 30


@pytest.mark.parametrize(
    "make", [created, over_torch, lambda dataset: PrefetchLoader(created(dataset)), nested, prepared]
)
@pytest.mark.parametrize("whole", [True, False])
def test_closed_loader_ends_its_workers_and_can_be_iterated_again(make: Make, whole: bool) -> None:
    before = multiprocessing.active_children()
    with make(Numbers(20)) as loader:
        iterator = iter(loader)
        next(iterator)
        assert len(multiprocessing.active_children()) == len(before) + 2
        assert not whole or len(list(iterator)) == 9
    assert multiprocessing.active_children() == before
    if not whole:
        with pytest.raises(LoaderError, match="its PrefetchLoader was closed"):
            next(iterator)
    assert len(list(loader)) == 10
    loader.close()
    assert multiprocessing.active_children() == before


def is_in(thread: threading.Thread, name: str) -> bool:
    """Return whether a thread runs a function with this name."""
    frame = sys._current_frames().get(thread.ident or 0)
    return any(each.f_code.co_name == name for each, _ in traceback.walk_stack(frame)) if frame else False


def test_closed_loader_kills_a_worker_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.loading.background.CLOSE_WAIT_S", 0.2)
    before = multiprocessing.active_children()
    loader = created(Numbers(20, stuck_at_7))
    iterator = iter(loader)
    assert [next(iterator).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    while not is_in(iterator.thread, "_receive"):  # otherwise the thread could end before it waits for the worker
        time.sleep(0.01)
    with pytest.warns(RuntimeWarning, match="the source has not returned an item"):
        loader.close()
    assert multiprocessing.active_children() == before
    assert iterator.thread.wait(60)


def die_at_20(index: int) -> int:
    if index == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return index


def test_killed_worker_of_a_dataloader_is_an_error() -> None:
    loader = PrefetchLoader(DataLoader(Numbers(200, die_at_20), num_workers=2))
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.*\) (is killed by signal|exited unexpectedly)"):
        list(loader)


class Dying:
    """An iterator like a DataLoader's, whose worker dies while the training receives its batch."""

    def __init__(self) -> None:
        self.reading, writing = multiprocessing.Pipe(duplex=False)
        self._workers = [multiprocessing.get_context("fork").Process(target=signal.pause)]
        self._workers[0].start()
        writing.close()
        self._shutdown_workers = self.reading.close

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self._workers[0].kill()
        return self.reading.recv()


def test_worker_that_dies_while_its_batch_arrives_is_named() -> None:
    iterator = Dying()
    pid = iterator._workers[0].pid
    with pytest.raises(LoaderError, match=rf"^DataLoader worker \(pid {pid}\) exited unexpectedly: "):
        list(PrefetchLoader(iterator))


PROGRAM = """
import gc, multiprocessing, signal, sys
from tests.loading.test_torch_workers import created, deaf
from tests.support.loaders import Numbers

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: None)  # as Lightning does; forked workers inherit it
    cycle = [created(Numbers(20, deaf))]
    assert len(list(cycle[0])) == 10
    cycle.append(cycle)
    del cycle
    gc.collect()
    print(len(multiprocessing.active_children()))
    kept = created(Numbers(20, deaf))
    next(iter(kept))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(method, marks=pytest.mark.nightly) for method in ("spawn", "forkserver"))]
)
def test_workers_end_with_the_program(method: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, file, method],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={"PYTHONPATH": str(root), "PATH": ""},
    )
    # The pipes close when the last process that has inherited them ends.
    assert (done.stdout, done.stderr, done.returncode) == ("0\n", "", 0)
