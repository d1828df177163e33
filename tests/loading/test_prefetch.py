"""PrefetchLoader prefetches the batches of torch DataLoaders and other iterables."""

import functools
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from dbloader.device import Preparation, transfer
from dbloader.device.transfer import Transfer
from dbloader.errors import LoaderError
from dbloader.loading.background import BackgroundThread
from dbloader.loading.prefetch import PrefetchLoader
from dbloader.sampling import OrderedSampler
from tests.support.loaders import Numbers, numbers, process_loader, thread_loader
from tests.support.preparations import Noise


class Stream(IterableDataset[int]):
    """An iterable dataset that ends by raising StopIteration itself."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        self.numbers = iter(range(self.length))
        return self

    def __next__(self) -> int:
        return next(self.numbers)


class Epochs:
    """A loader that records when its iterators begin and end."""

    def __init__(self, length: int = 10) -> None:
        self.length = length
        self.notes: list[str] = []
        self.made_in: list[threading.Thread] = []
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.made_in.append(threading.current_thread())
        return self.produce()

    def produce(self) -> Iterator[int]:
        self.notes.append("begin")
        try:
            yield from range(self.length)
        finally:
            self.notes.append("end")

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def pid_of(_: int) -> int:
    return os.getpid()


def threads() -> list[BackgroundThread[Any]]:
    return [thread for thread in threading.enumerate() if isinstance(thread, BackgroundThread)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_prefetching_does_not_change_the_order_of_a_seed(workers: int) -> None:
    def epochs(prefetch: bool) -> list[Any]:
        loader: Any = DataLoader(Numbers(40), batch_size=8, shuffle=True, num_workers=workers)
        other: Any = DataLoader(Numbers(40), batch_size=8, shuffle=True)
        if prefetch:
            loader, other = PrefetchLoader(loader), PrefetchLoader(other)
        torch.manual_seed(5)
        result: list[Any] = []
        for _ in range(2):
            iterators = [iter(loader), iter(other)]
            result.append(torch.rand(1).tolist())  # between iter() and the first next()
            for batches in zip(*iterators, strict=True):
                result.append([batch.tolist() for batch in batches])
                result.append(torch.rand(1).tolist())
        return result

    assert epochs(prefetch=True) == epochs(prefetch=False)


@pytest.mark.parametrize("workers", [0, 1])
def test_iterable_dataset_may_end_with_stop_iteration(workers: int) -> None:
    loader = DataLoader(Stream(5), batch_size=2, num_workers=workers)
    assert numbers(PrefetchLoader(loader)) == [[0, 1], [2, 3], [4]]


def test_wrapped_loader_gives_length_and_attributes() -> None:
    loader = DataLoader(Numbers(20), batch_size=3, drop_last=True)
    prefetched = PrefetchLoader(PrefetchLoader(loader))
    assert len(prefetched) == 6
    for name in ("dataset", "sampler", "batch_sampler", "batch_size", "drop_last", "num_workers", "collate_fn"):
        assert getattr(prefetched, name) is getattr(loader, name)


@pytest.mark.parametrize("name", ["dataset", "sampler", "batch_sampler", "batch_size", "drop_last"])
def test_attribute_that_a_dataloader_refuses_cannot_be_assigned(name: str) -> None:
    loader = DataLoader(Numbers(4), batch_size=2)
    prefetched = PrefetchLoader(loader)
    with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"):
        setattr(prefetched, name, [[0]])
    assert getattr(prefetched, name) is getattr(loader, name)


def seed_with(number: int, worker: int) -> None:
    torch.manual_seed(number + worker)


def drawn(_: int) -> float:
    return float(torch.rand(()))


def test_assigned_attribute_of_the_wrapped_loader_takes_effect() -> None:
    loader = DataLoader(Numbers(4, drawn), num_workers=1)
    prefetched = PrefetchLoader(PrefetchLoader(loader))
    prefetched.worker_init_fn = functools.partial(seed_with, 3)
    prefetched.collate_fn = sum
    assert loader.worker_init_fn is prefetched.worker_init_fn
    received = list(prefetched)
    torch.manual_seed(3)
    assert received == [float(torch.rand(())) for _ in range(4)]


def test_attribute_that_the_wrapped_loader_would_ignore_cannot_be_assigned() -> None:
    for loader in ([[1]], iter([1]), thread_loader(Numbers()), process_loader(Numbers(), num_workers=2)):
        prefetched: Any = PrefetchLoader(loader)
        for name in ("worker_init_fn", "collate_fn", "prefetch_factor"):
            with pytest.raises(AttributeError, match=f"{name}"):
                setattr(prefetched, name, seed_with)
    for loader, kind in (([[1]], "list"), ((number for number in [1]), "generator")):
        message = f"^timeout is an option of a DataLoader, and this loader is a {kind}: wrap a DataLoader$"
        with pytest.raises(AttributeError, match=message):
            PrefetchLoader(loader).timeout = 3


def test_further_attributes_belong_to_the_object_they_are_assigned_to() -> None:
    class Named(PrefetchLoader[Any]):
        def __init__(self, loader: Any, name: str) -> None:
            self.name = name
            super().__init__(loader)
            self.more = [name]

    loader = DataLoader(Numbers())
    first, second = Named(loader, "first"), Named(loader, "second")
    first.note = second.note = 0
    first.note, first.depth = 7, 5
    assert (first.name, first.more, first.note, first.depth) == ("first", ["first"], 7, 5)
    assert (second.name, second.more, second.note, second.depth) == ("second", ["second"], 0, 2)
    assert not {"name", "more", "note", "depth"} & {*vars(loader)}
    with pytest.raises(AttributeError, match=r"property 'device' of .* object has no setter"):
        setattr(first, "device", "cpu")  # noqa: B010 # mypy knows that this is an error


def test_loader_without_a_length_can_be_passed_to_list() -> None:
    prefetched = PrefetchLoader(Epochs(3))
    with pytest.raises(TypeError, match=r"object of type 'Epochs' has no len\(\)"):
        len(prefetched)
    assert list(prefetched) == [0, 1, 2]


def test_set_epoch_calls_the_wrapped_loader_instead_of_its_sampler() -> None:
    class Loader(Epochs):
        sampler: Any = Epochs()

    loader = Loader()
    PrefetchLoader(PrefetchLoader(loader)).set_epoch(4)
    assert (loader.epoch, loader.sampler.epoch) == (4, 0)


class Recorded(Numbers):
    """A dataset or sampler that records its epochs."""

    def __init__(self, length: int = 20) -> None:
        super().__init__(length)
        self.epochs: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


def test_set_epoch_reaches_sampler_and_dataset_once() -> None:
    dataset, sampler = Recorded(), Recorded()
    PrefetchLoader(DataLoader(dataset, sampler=sampler)).set_epoch(3)
    assert (sampler.epochs, dataset.epochs) == ([3], [3])
    batch_sampler = BatchSampler(sampler, 2, drop_last=False)
    PrefetchLoader(DataLoader(dataset, batch_sampler=batch_sampler)).set_epoch(4)
    assert (sampler.epochs, dataset.epochs) == ([3, 4], [3, 4])


def test_loader_must_be_iterable() -> None:
    message = "loader must be a DataLoader or another iterable of batches, got "
    with pytest.raises(TypeError, match=rf"{message}Numbers: pass DataLoader\(dataset\)$"):
        PrefetchLoader(Numbers())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=f"{message}int$"):
        PrefetchLoader(5)  # type: ignore[arg-type]


def test_stop_iteration_raised_by_iter_is_an_error() -> None:
    class Empty:
        def __iter__(self) -> Iterator[int]:
            raise StopIteration

    with pytest.raises(LoaderError, match=r"^iter\(\) of the loader raised StopIteration, which would end the epoch$"):
        list(PrefetchLoader(Empty()))


def test_skipping_batches_with_accelerate_is_an_error_with_a_remedy() -> None:
    with pytest.raises(LoaderError, match=r"^accelerate\.skip_first_batches .*, and continue with load_state_dict\(\)"):
        _ = PrefetchLoader(DataLoader(Numbers())).multiprocessing_context


def test_second_iteration_over_a_generator_is_an_error() -> None:
    prefetched = PrefetchLoader(number for number in range(3))
    assert list(prefetched) == [0, 1, 2]
    with pytest.raises(LoaderError, match=r"iterated only once, got a second iter\(\) of generator"):
        iter(prefetched)


def test_new_iterator_waits_for_an_abandoned_iterator() -> None:
    loader = Epochs(10**9)
    prefetched = PrefetchLoader(loader)
    for _ in range(50):
        for _ in prefetched:
            break
    prefetched.close()
    assert loader.notes == ["begin", "end"] * 50


def test_new_iterator_ends_the_previous_iterator_but_keeps_persistent_workers() -> None:
    loader = DataLoader(Numbers(8, pid_of), num_workers=1, persistent_workers=True)
    prefetched = PrefetchLoader(loader)
    first = iter(prefetched)
    pid = next(first).item()
    assert [batch.item() for batch in prefetched] == [pid] * 8
    for _ in range(2):
        with pytest.raises(LoaderError, match="ended by a new iterator over the same DataLoader"):
            next(first)


def test_closed_loader_ends_its_iterators_with_an_error() -> None:
    loader = Epochs(50)
    with PrefetchLoader(loader) as prefetched:
        iterators = [iter(prefetched), iter(prefetched)]
        assert [next(iterator) for iterator in iterators] == [0, 0]
    assert not threads()
    for iterator in iterators:
        with pytest.raises(LoaderError, match="its PrefetchLoader was closed"):
            next(iterator)
    assert loader.notes == ["begin", "begin", "end", "end"]
    assert len(list(prefetched)) == 50


def test_iterator_that_was_closed_does_not_end_the_epoch() -> None:
    loader: Any = PrefetchLoader(DataLoader(Numbers(6), 2, sampler=OrderedSampler(range(6))))
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    iterator.close()
    assert next(iterator, "closed") == "closed"
    assert loader.state_dict() == state
    assert state["position"] == 2


class Batch:
    """A batch to which a weak reference can point."""


def test_batches_are_freed_when_the_consumer_drops_them() -> None:
    class Made:
        def __iter__(self) -> Iterator[Batch]:
            return iter(Batch, None)

    iterator = iter(PrefetchLoader(Made(), device="cpu"))
    references = [weakref.ref(next(iterator)) for _ in range(5)]
    assert [reference() for reference in references] == [None] * 5


def test_forked_process_starts_its_own_iteration() -> None:
    prefetched = PrefetchLoader(DataLoader(Numbers(6), batch_size=2))
    iterator = iter(prefetched)
    next(iterator)
    # A worker is also a forked process, and inherits the loader with its running iterator.
    numbers = Numbers(3, lambda _: sum(batch.sum().item() for batch in prefetched))
    sums = DataLoader(numbers, num_workers=1, multiprocessing_context="fork")
    assert [batch.item() for batch in sums] == [15, 15, 15]
    assert [batch.tolist() for batch in iterator] == [[2, 3], [4, 5]]


def changed(loader: Any) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [batch["pixels"] for batch in PrefetchLoader(loader, preparation=Preparation(Noise(), image="pixels"))]


def test_random_preparation_without_a_seeded_sampler_depends_on_the_torch_seed() -> None:
    pixels = torch.ones(12, 3, 8, 8)
    # The first tensor of a batch is not an image.
    batches = [{"scale": torch.ones(1), "pixels": part} for part in (pixels[:5], pixels[5:])]
    first = torch.cat(changed(batches))
    assert torch.equal(torch.cat(changed([{"pixels": part} for part in (pixels[:3], pixels[3:])])), first)
    assert len({image.numpy().tobytes() for image in first}) > 6
    loader = PrefetchLoader(batches, preparation=Preparation(Noise(), image="pixels"))
    assert not torch.equal(torch.cat([batch["pixels"] for batch in loader]), first)


def waited_s(loader: PrefetchLoader[Any]) -> float:
    return loader.stats().first_s + loader.stats().waited_s


def test_stats_describe_the_latest_epoch() -> None:
    prefetched = PrefetchLoader(Epochs(10))
    assert waited_s(prefetched) == 0.0
    first = iter(prefetched)
    next(first)
    waited = waited_s(prefetched)
    assert waited > 0.0
    list(first)
    assert waited_s(prefetched) > waited
    live = [iter(prefetched), iter(prefetched)]
    next(live[0])
    assert waited_s(prefetched) == 0.0
    next(live[1])
    assert waited_s(prefetched) > 0.0


def test_thread_begins_a_batch_only_after_an_earlier_batch_is_received(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = [threading.Event() for _ in range(4)]

    def produce() -> Iterator[int]:
        for number, event in enumerate(begun):
            event.set()
            yield number

    class Watching(Transfer):
        def receive(self, in_transit: Any) -> Any:
            # The consumer has this batch from the thread, but has not yet received it. If the thread could begin the
            # next batch now, a CUDA stream would not wait for the work that the consumer has queued so far.
            assert not begun[in_transit + 1].wait(0.2)
            return in_transit

    monkeypatch.setattr(transfer, "create_transfer", lambda device: Watching(torch.device("cpu")))
    iterator = iter(PrefetchLoader(produce(), "cpu", 1))
    assert [next(iterator), next(iterator)] == [0, 1]


def test_preparation_records_no_gradients() -> None:
    weight = torch.ones(1, requires_grad=True)
    [result] = PrefetchLoader([torch.ones(2, 3, 4, 4)], preparation=lambda images: images * weight)
    assert not result.requires_grad
