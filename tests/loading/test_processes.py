"""Worker processes reuse the memory of batches that nobody holds."""

import errno
import gc
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dbloader import LMDBDataset, Record, create_loader, write_store
from dbloader.batches.fetchers import create_fetcher
from dbloader.batches.shared_memory import SharedBatchPool, SharedSlot
from dbloader.decoding import RandomResizedCrop
from tests.support.children import in_child
from tests.support.images import photo
from tests.support.samples import same

LENGTH = 48
SHAPE = (2, 8, 8, 3)
NBYTES = 2 * 8 * 8 * 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stores") / "photos.lmdb"
    write_store((Record(f"{n}.jpg", n, photo(n)) for n in range(LENGTH)), place)
    return place


def make(place: Path, workers: Any, **options: Any) -> Any:
    given = {"batch_size": 4, "input_size": 8, "is_training": True, "normalize": None, **options}
    return create_loader(LMDBDataset(place), num_workers=2, worker_type=workers, **given)


def expected(place: Path, epochs: int = 1, **options: Any) -> list[list[Any]]:
    loader = make(place, "threads", **options)
    return [list(loader) for _ in range(epochs)]


def taken(block: SharedSlot | None) -> SharedSlot:
    assert block is not None
    return block


def arrived(block: SharedSlot) -> torch.Tensor:
    tensor = pickle.loads(pickle.dumps(block))  # noqa: S301
    assert isinstance(tensor, torch.Tensor)
    return tensor


@pytest.mark.slow
def test_slot_is_reused_only_after_its_last_reference() -> None:
    blocks = SharedBatchPool(2, 1, NBYTES)
    block = taken(blocks.take(1, SHAPE))
    assert blocks.take(1, SHAPE) is None
    assert blocks.take(0, SHAPE) is not None, "another worker has a slot of its own"
    block.pixels[:] = 7
    tensor = arrived(block)
    assert (tensor.shape, tensor.dtype) == ((2, 3, 8, 8), torch.uint8)
    del block
    keepers = [tensor[1], tensor.numpy()[:, :1], tensor.untyped_storage(), tensor.numpy().data]
    del tensor
    while keepers:
        assert blocks.take(1, SHAPE) is None
        keepers.pop()
        gc.collect()
    assert blocks.take(1, (1, 8, 8, 3)) is not None, "a smaller batch fits too"


def test_forked_process_keeps_slots_of_its_parent() -> None:
    blocks = SharedBatchPool(1, 1, NBYTES)
    tensor = arrived(taken(blocks.take(0, SHAPE)))
    holder = [tensor]
    del tensor
    assert in_child(holder.clear) == 0
    assert blocks.take(0, SHAPE) is None


def test_slot_held_at_a_fork_is_not_reused() -> None:
    blocks = SharedBatchPool(1, 2, NBYTES)
    tensor = arrived(taken(blocks.take(0, SHAPE)))
    tensor[:] = 7
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.read(reading, 1)
        os._exit(int(tensor.sum() != 7 * NBYTES))
    del tensor
    for _ in range(2):
        taken(blocks.take(0, SHAPE)).pixels[:] = 9
    os.write(writing, b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(reading)
    os.close(writing)


@pytest.mark.slow
def test_process_batches_equal_thread_batches_and_reuse_memory(place: Path) -> None:
    loader = make(place, "processes", input_size=96)  # too large to be sent by value
    for batches in expected(place, 3, input_size=96):
        addresses, got = set(), []
        for images, labels in loader:
            assert not images.is_shared(), "the memory is not torch's, which is new for each batch"
            addresses.add(images.data_ptr())
            got.append([images.clone(), labels.clone()])
            del images
        assert same(got, batches)
        assert len(addresses) < len(batches), "memory is used again"
    loader.close()


def test_batches_arrive_without_free_file_descriptors(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = os.memfd_create
    made: list[int] = []

    def refuse_the_third(name: str) -> int:
        if len(made) == 2:
            raise OSError(errno.EMFILE, "Too many open files")
        made.append(create(name))
        return made[-1]

    monkeypatch.setattr(os, "memfd_create", refuse_the_third)
    loader = make(place, "processes")
    assert same(list(loader), expected(place)[0])
    loader.close()
    assert len(made) == 2
    for file in made:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(file)


@pytest.mark.slow
def test_concurrent_iterations_share_no_memory(place: Path) -> None:
    loader, other = make(place, "processes"), make(place, "processes")
    runs = list(zip(loader, other, strict=True))
    for number in range(2):
        assert same([run[number] for run in runs], expected(place)[0])
    loader.close()
    other.close()


def test_next_epoch_after_break_is_whole(place: Path) -> None:
    loader = make(place, "processes")
    batches = expected(place, 3)
    for epoch in range(2):
        for at, batch in enumerate(loader):
            assert same([batch], [batches[epoch][at]])
            if at == epoch:
                break
    assert same(list(loader), batches[2])
    loader.close()


def test_error_in_a_batch_frees_its_slot(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.batches.tensors.get_worker_info", lambda: SimpleNamespace(id=0))
    wrong: list[int] = []

    def label_of(label: int) -> int:
        return label if label not in wrong else 1 // 0

    maker = create_fetcher(LMDBDataset(place, target_transform=label_of, decode=RandomResizedCrop(8)))
    maker.shared_pool = SharedBatchPool(1, 1, NBYTES)
    made = maker.__getitems__([1, 2]).batch
    assert isinstance(made[0], SharedSlot)
    assert maker.shared_pool.take(0, SHAPE) is None
    del made
    wrong.append(2)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            maker.__getitems__([1, 2])
    gc.collect()
    assert maker.shared_pool.take(0, SHAPE) is not None


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
    done = subprocess.run([sys.executable, file, place], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("same\n", "", 0)
