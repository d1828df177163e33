"""The start of worker processes, and the memory that they reuse when no reference to a batch is left."""

import copy
import gc
import multiprocessing
import os
import pickle
import resource
import subprocess
import sys
import textwrap
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from dbloader import LMDBDataset, Record, create_loader
from dbloader.batches.shared_memory import SharedBatchPool, SharedSlot
from dbloader.decoding import RandomResizedCrop
from dbloader.errors import LoaderError
from dbloader.loading.board import Board
from dbloader.loading.worker_start import WorkerStart
from tests.support.children import from_child, in_child, run_program
from tests.support.images import WAIT_S, photo
from tests.support.loaders import batches_of, process_loader
from tests.support.samples import same
from tests.support.stores import store_samples

LENGTH = 48
SHAPE = (2, 8, 8, 3)
NBYTES = 2 * 8 * 8 * 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stores") / "photos.lmdb"
    store_samples((Record(f"{n}.jpg", n, photo(n)) for n in range(LENGTH)), place)
    return place


def make(place: Path, workers: Any, **options: Any) -> Any:
    given = {"batch_size": 4, "input_size": 8, "is_training": True, "normalize": None, "num_workers": 2, **options}
    return create_loader(LMDBDataset(place), worker_type=workers, **given)


def expected(place: Path, epochs: int = 1, **options: Any) -> list[list[Any]]:
    loader = make(place, "threads", **options)
    return [list(loader) for _ in range(epochs)]


def taken(pool: SharedBatchPool, shape: tuple[int, ...] = SHAPE) -> SharedSlot:
    slot = pool.reserve()
    assert slot is not None
    block, _ = pool.allocate(slot, shape)
    assert isinstance(block, SharedSlot)
    return block


def arrived(block: SharedSlot) -> torch.Tensor:
    tensor = pickle.loads(pickle.dumps(block))  # noqa: S301
    assert isinstance(tensor, torch.Tensor)
    return tensor


@pytest.mark.slow
def test_slot_is_reused_only_after_its_last_reference_is_gone() -> None:
    pool = SharedBatchPool(1, NBYTES)
    block = taken(pool)
    assert pool.reserve() is None
    block.pixels[:] = 7
    tensor = arrived(block)
    assert (tensor.shape, tensor.dtype) == ((2, 3, 8, 8), torch.uint8)
    assert tensor.sum() == 7 * NBYTES
    del block
    keepers = [tensor[1], tensor.numpy()[:, :1], tensor.untyped_storage(), tensor.numpy().data]
    del tensor
    while keepers:
        assert pool.reserve() is None
        keepers.pop()
        gc.collect()
    assert taken(pool, (1, 8, 8, 3)).pixels.shape == (1, 8, 8, 3), "a smaller batch must reuse the slot"
    assert not isinstance(pool.allocate(0, (3, 8, 8, 3))[0], SharedSlot), "a larger one does not"


def test_forked_process_keeps_slots_of_its_parent() -> None:
    pool = SharedBatchPool(1, NBYTES)
    tensor = arrived(taken(pool))
    holder = [tensor]
    del tensor
    assert in_child(holder.clear) == 0
    assert pool.reserve() is None


def test_slot_held_at_a_fork_is_not_reused() -> None:
    pool = SharedBatchPool(2, NBYTES)
    tensor = arrived(taken(pool))
    tensor[:] = 7
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.read(reading, 1)
        os._exit(int(tensor.sum() != 7 * NBYTES))
    del tensor
    for _ in range(2):
        block = taken(pool)
        block.pixels[:] = 9
        del block
        pool.free(1)
    os.write(writing, b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(reading)
    os.close(writing)


@pytest.mark.slow
def test_process_batches_equal_thread_batches_and_reuse_memory(place: Path) -> None:
    loader = make(place, "processes", input_size=160)  # batches too large to be sent by value
    for batches in expected(place, 3, input_size=160):
        addresses, got = set(), []
        for images, labels in loader:
            assert not images.is_shared(), "the memory must not be torch's shared memory, which is new for each batch"
            addresses.add(images.data_ptr())
            got.append([images.clone(), labels.clone()])
            del images
        assert same(got, batches)
        assert len(addresses) < len(batches), "memory must be reused"
    loader.close()


class Named(NamedTuple):
    part: Any


def tensors_of_many_kinds(_: list[Any]) -> dict[str, Any]:
    image = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    return {
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 3),
        "containers": (torch.tensor([True, False]), [Named(torch.tensor([1.5], dtype=torch.bfloat16))]),
        "transposed": torch.arange(6).reshape(2, 3).T,
        "channels_last": image.to(memory_format=torch.channels_last),
        "gradient": torch.ones(2, requires_grad=True),
        "large": torch.arange(2**16),
    }


def lazy_conjugates(_: list[Any]) -> dict[str, Any]:
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    large = torch.full((2**17,), 1 + 2j)  # too large to be sent by value
    return {"conjugates": numbers.conj(), "named": Named(numbers.conj().imag), "large": large.conj().imag}


def other_layouts(_: list[Any]) -> dict[str, Any]:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    return {"coordinates": torch.eye(3).to_sparse(), "rows": torch.eye(3).to_sparse_csr(), "nested": nested}


def described(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: described(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [described(part) for part in value]
    if value.is_nested:
        return described(list(value.unbind()))
    if value.layout is not torch.strided:
        return [value.layout, described(value.to_dense())]
    return value.dtype, value.shape, value.tolist(), value.requires_grad


# torch warns that it may change these layouts.
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.filterwarnings("ignore:Sparse (invariant checks are|CSR tensor support is)")
@pytest.mark.parametrize("make_batch", [tensors_of_many_kinds, lazy_conjugates, other_layouts])
def test_processes_change_no_tensor_that_a_collate_fn_returns(place: Path, make_batch: Any) -> None:
    with make(place, "processes", num_workers=1, collate_fn=make_batch) as loader:
        sent = next(iter(loader))
    assert described(sent) == described(make_batch([]))
    del sent
    gc.collect()  # torch's shared memory is an open file


def test_processes_keep_the_strides_of_tensors(place: Path) -> None:
    with make(place, "processes", num_workers=1, collate_fn=tensors_of_many_kinds) as loader:
        sent, made = next(iter(loader)), tensors_of_many_kinds([])
    for name in ("transposed", "channels_last", "large"):
        assert sent[name].stride() == made[name].stride(), name
    del sent
    gc.collect()


def one_tensor_twice(_: list[Any]) -> dict[str, Any]:
    tensor, large = torch.zeros(3), torch.zeros(2**17)
    return {"input": tensor, "target": tensor, "large": large}


def test_only_large_tensors_are_sent_in_shared_memory(place: Path) -> None:
    with make(place, "processes", num_workers=1, collate_fn=one_tensor_twice) as loader:
        sent = next(iter(loader))
    assert sent["input"] is sent["target"]
    assert (sent["input"].is_shared(), sent["large"].is_shared()) == (False, True)
    del sent
    gc.collect()


@pytest.mark.slow
def test_concurrent_iterations_share_no_memory(place: Path) -> None:
    loader, other = make(place, "processes"), make(place, "processes")
    runs = list(zip(loader, other, strict=True))
    for number in range(2):
        assert same([run[number] for run in runs], expected(place)[0])
    loader.close()
    other.close()


def test_next_epoch_after_break_is_complete(place: Path) -> None:
    loader = make(place, "processes")
    batches = expected(place, 3)
    for epoch in range(2):
        for at, batch in enumerate(loader):
            assert same([batch], [batches[epoch][at]])
            if at == epoch:
                break
    assert same(list(loader), batches[2])
    loader.close()


def test_slots_are_freed_after_errors_and_abandoned_epochs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[SharedBatchPool] = []
    counts: list[int] = []

    class Watched(SharedBatchPool):
        def __init__(self, slots: int, nbytes: int) -> None:
            super().__init__(slots, nbytes)
            pools.append(self)
            counts.append(slots)

    def label_of(label: int) -> int:
        return label if label != 20 else 1 // 0

    monkeypatch.setattr("dbloader.loading.processes.SharedBatchPool", Watched)
    dataset = LMDBDataset(place, target_transform=label_of, decode=RandomResizedCrop(8))
    loader = process_loader(dataset, 4, num_workers=2)
    for epoch in range(8):
        iterator = iter(loader)
        if epoch % 2:
            next(iterator)
        else:
            with pytest.raises(ZeroDivisionError):
                batches_of(iterator)
        iterator.close()  # type: ignore[attr-defined]
    next(iter(loader))  # waits until the batches of the epoch before are ended
    gc.collect()  # the tracebacks of the errors hold batches
    (pool,) = pools
    under_way = 4
    assert len([*iter(pool.reserve, None)]) >= counts[0] - under_way


@pytest.mark.slow
def test_spawned_workers_reuse_memory_and_end_with_the_program(place: Path) -> None:
    program = textwrap.dedent(
        """
        import multiprocessing, sys
        from dbloader import LMDBDataset, create_loader
        if __name__ == "__main__":
            multiprocessing.set_start_method("spawn")
            def loader(workers):
                return create_loader(LMDBDataset(sys.argv[1]), batch_size=4, input_size=8, is_training=True,
                                     normalize=None, num_workers=1, worker_type=workers)
            addresses, total = set(), 0
            for images, labels in loader("processes"):
                addresses.add(images.data_ptr())
                total += int(images.sum()) + int(labels.sum())
                del images
            assert len(addresses) < 12, addresses
            assert total == sum(int(images.sum()) + int(labels.sum()) for images, labels in loader("threads"))
            print("same")
        """
    )
    file = place.with_name("program.py")
    file.write_text(program)
    assert run_program(sys.executable, file, place) == ("same\n", "")


def test_loader_that_may_open_no_more_files_raises_and_closes_its_files(place: Path) -> None:
    loader = make(place, "processes").wrapped_loader
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - names
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [number for number in range(soft) if str(number) not in before]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[6], hard))  # too few for the slots of the batches
    try:
        with pytest.raises(OSError, match="Too many open files"):
            iter(loader)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208 - names


@pytest.mark.parametrize(
    ("limit", "error"), [(10**11, ""), (2 * 10**9, ""), (10**6, "raise the limit (ulimit -f unlimited)")]
)
def test_worker_processes_respect_the_limit_on_file_sizes(place: Path, limit: int, error: str) -> None:
    def run() -> bool:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        with make(place, "processes") as loader:
            return same(list(loader), expected(place)[0])

    result = from_child(run)
    if error:
        assert isinstance(result, LoaderError)
        assert str(result).startswith("worker processes need files of ")
        assert error in str(result)
    else:
        assert result is True


def test_board_refuses_a_task_that_would_reach_the_next_area() -> None:
    least = 2**26  # bytes of an area

    def run() -> bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 * least, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        board = Board(multiprocessing.get_context("fork"), 1)
        board.put(0, 1, bytes(least - 8))
        with pytest.raises(LoaderError, match=r"^worker processes need files of 201.3 MB, .* \(ulimit -f"):
            board.put(0, 1, bytes(least - 7))
        return bytes(board.task(0)[:5])

    assert from_child(run) == bytes(5)


class Reported:
    """Samples that a worker reports when it makes them."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.made.release()
        return index


def test_worker_makes_the_next_batch_while_the_program_uses_the_batch_before() -> None:
    made = multiprocessing.get_context("fork").Semaphore(0)
    options: dict[str, Any] = {"worker_type": "processes", "transform": None, "normalize": None, "device": None}
    loader: Any = create_loader(Reported(made), batch_size=1, num_workers=1, prefetch_factor=1, **options)
    batches = iter(loader.wrapped_loader)
    assert made.acquire(timeout=WAIT_S)
    for _ in range(3):
        next(batches)
        assert made.acquire(timeout=WAIT_S), "the next batch is made only when the program asks for it"


class CollectorState:
    """Is unpickled as whether the garbage collector is enabled at that moment."""

    def __reduce__(self) -> tuple[Any, ...]:
        return gc.isenabled, ()


def send_collector_state(connection: Connection, at_start: bool) -> None:
    connection.send((at_start, gc.isenabled(), gc.get_freeze_count() > 0))


def test_spawned_worker_unpickles_its_work_without_garbage_collections() -> None:
    context = multiprocessing.get_context("spawn")
    reading, writing = context.Pipe(duplex=False)
    process = context.Process(target=WorkerStart(send_collector_state, writing, CollectorState()))
    process.start()
    assert reading.recv() == (False, True, True)
    process.join()


def test_worker_keeps_a_stopped_garbage_collector_stopped() -> None:
    start = WorkerStart(print)
    gc.disable()
    try:
        copy.copy(start)  # calls the same functions as unpickling
        assert not gc.isenabled()
    finally:
        gc.unfreeze()
        gc.enable()


def test_workers_for_lmdb_import_neither_pymongo_nor_slow_parts_of_pillow() -> None:
    modules = "dbloader.loading.worker_process, dbloader.batches.fetchers, dbloader.datasets.lmdb"
    program = f"import sys, {modules}; sys.exit(not {{'pymongo', 'PIL.TiffImagePlugin'}}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
