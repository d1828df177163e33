"""create_loader has useful defaults, checks its options, and returns the same batches with any workers."""

import inspect
import io
import itertools
import multiprocessing
import random
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, cast

import lmdb
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, SequentialSampler, Subset

from dbloader import LMDBDataset, Record, open_store
from dbloader.decoding import ResizeCenterCrop, decode_unchanged
from dbloader.device import Normalize, Preparation
from dbloader.errors import LoaderError, OptionError
from dbloader.loading.create import cpu_share, create_loader
from dbloader.sampling import OrderedSampler, SeededBatchSampler, ShuffleSampler
from tests.support import jpegs
from tests.support.children import run_ranks
from tests.support.images import encoded
from tests.support.preparations import Noise
from tests.support.samples import same
from tests.support.stores import store_samples

LENGTH = 22
SIZELESS: dict[str, Any] = {"device": None, "batch_size": 4, "num_workers": 0}
CPU: dict[str, Any] = {**SIZELESS, "input_size": 16}
RANDOM: dict[str, Any] = {**CPU, "is_training": True, "preparation": Noise()}


def photo(seed: int) -> Image.Image:
    return jpegs.draw(40 + seed, 30, seed=seed)


class Folder(Dataset[Any]):
    """A dataset of PIL images and labels, like torchvision's ImageFolder."""

    def __init__(self, transform: Any = None) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        image = photo(index)
        return image if self.transform is None else self.transform(image), index % 3


class Dicts(Folder):
    def __getitem__(self, index: int) -> Any:
        return {"label": index % 3, "image": photo(index), "name": str(index)}


class Alone(Folder):
    def __getitem__(self, index: int) -> Any:
        return photo(index)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stores") / "photos.lmdb"
    store_samples((Record(f"{n}.png", n % 3, encoded(photo(n), "PNG")) for n in range(LENGTH)), place)
    return place


def all_of(loader: Any) -> list[list[torch.Tensor]]:
    return [[part.clone() for part in (batch.values() if isinstance(batch, dict) else batch)] for batch in loader]


ENGINES: list[dict[str, Any]] = [
    {"worker_type": "threads", "num_workers": 3},
    {"worker_type": "processes", "num_workers": 0},
    {"worker_type": "processes", "num_workers": 2, "prefetch_factor": 1},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "store",
        "folder",
        *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("part of a store", "dicts of a store")),
    ],
)
def test_batches_are_identical_for_any_workers_and_after_resuming(place: Path, kind: str) -> None:
    def dataset() -> Any:
        if kind == "folder":
            return Folder()
        store = LMDBDataset(place, fields=("label", "image", "index") if kind.startswith("dicts") else None)
        return Subset(store, range(LENGTH - 1, -1, -1)) if kind.startswith("part") else store

    first = create_loader(dataset(), **RANDOM)
    expected = [all_of(first), all_of(first)]
    assert [len(epoch) for epoch in expected] == [LENGTH // 4] * 2
    assert not same(*expected)
    for engine in ENGINES:
        loader: Any = create_loader(dataset(), **{**RANDOM, **engine})
        torch.manual_seed(random.randrange(2**32))  # the batches do not depend on torch's generator
        assert same(all_of(loader), expected[0]), engine
        iterator = iter(loader)
        begun = all_of(itertools.islice(iterator, 2))
        state = loader.state_dict()
        loader.close()
        resumed: Any = create_loader(dataset(), **{**RANDOM, **engine, "num_workers": 0})
        resumed.load_state_dict(state)
        assert state["position"] == 8
        assert same(begun + all_of(resumed), expected[1]), engine


def test_docstring_names_the_functions_that_each_thread_calls(place: Path) -> None:
    drawing = str(inspect.getdoc(create_loader)).partition("divided like this::")[2].partition("Each ``iter()``")[0]
    kinds = {"background thread": "dbloader-background", "workers": "dbloader-worker", "your thread": "MainThread"}
    drawn, thread = set(), ""
    for line in drawing.splitlines():
        thread = kinds.get(line[:24].strip(), thread)
        drawn |= {(thread, name) for name in re.findall(r"[A-Z]\w+\.\w+", line)}
    ran = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            ran.add((threading.current_thread().name.partition("_")[0], frame.f_code.co_qualname))

    options: dict[str, Any] = {**RANDOM, "num_workers": 2, "device": "cpu", "worker_type": "threads"}
    loader = create_loader(LMDBDataset(place), **options)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        list(loader)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert len(drawn) == 7
    assert drawn <= ran


def test_evaluation_batches_are_center_crops_in_order(place: Path) -> None:
    loader = create_loader(LMDBDataset(place), batch_size=8, input_size=(16, 20), device=None)
    images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
    decode = ResizeCenterCrop((16, 20), resize=22)  # the image resized to 22 fills the crop
    imagenet = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    expected = imagenet(torch.stack([decode(photo(n)) for n in range(LENGTH)]))
    assert torch.equal(images, expected)
    assert labels.tolist() == [n % 3 for n in range(LENGTH)]
    assert len(loader) == 3
    assert loader.depth == 2
    assert loader.device is None
    assert loader.num_workers == cpu_share()
    assert loader.state_dict()["position"] == 0


def test_training_batches_are_shuffled_and_complete(place: Path) -> None:
    loader = create_loader(LMDBDataset(place), is_training=True, seed=4, **CPU)
    labels = [label for _, part in loader for label in part.tolist()]
    assert labels == [index % 3 for index in [*ShuffleSampler(range(LENGTH), seed=4)]][: LENGTH // 4 * 4]
    assert len(create_loader(LMDBDataset(place), is_training=True, drop_last=False, **CPU)) == 6
    assert len(create_loader(LMDBDataset(place), drop_last=True, **CPU)) == 5


def test_processes_of_torchrun_share_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.loading.create.cpu_count", lambda: 12)
    assert cpu_share() == 12
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert cpu_share() == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert cpu_share() == 1


def test_normalize_option_sets_values_dtype_and_layout(place: Path) -> None:
    normalize = Normalize((0.1, 0.2, 0.3), (0.3, 0.2, 0.1), dtype=torch.bfloat16, channels_last=True)
    images, _ = next(iter(create_loader(LMDBDataset(place), normalize=normalize, **CPU)))
    plain, _ = next(iter(create_loader(LMDBDataset(place), normalize=None, **CPU)))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert images.dtype is torch.bfloat16
    assert torch.equal(images, normalize(plain))


@pytest.mark.parametrize("size", [16, (16, 16), [16, 16], (3, 16, 16), np.int64(16), torch.Size([3, 16, 16])])
def test_first_arguments_are_in_the_order_of_timm(place: Path, size: Any) -> None:
    images, _ = next(iter(create_loader(LMDBDataset(place), size, 4, device=None, num_workers=0)))
    assert images.shape == (4, 3, 16, 16)
    with pytest.raises(TypeError, match=r"^batch_size must be given, such as create_loader\(dataset, batch_size=256\)"):
        create_loader(LMDBDataset(place), size)


def to_floats(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image.resize((8, 8)), np.float32) / 255).permute(2, 0, 1)


def test_floats_of_an_own_transform_are_returned_only_with_normalize_none(place: Path) -> None:
    for dataset in (Folder(to_floats), LMDBDataset(place, to_floats), Subset(Folder(to_floats), range(8))):
        with pytest.raises(OptionError, match=r"must be uint8 .*, got torch\.float32.*normalize=None"):
            next(iter(create_loader(dataset, **SIZELESS)))
        images, _ = next(iter(create_loader(dataset, normalize=None, **SIZELESS)))
        assert torch.equal(images, torch.stack([to_floats(photo(n)) for n in range(4)]))


def test_input_size_is_refused_with_an_own_transform(place: Path) -> None:
    store = LMDBDataset(place, decode=decode_unchanged)
    for dataset in (store, Subset(store, range(8)), LMDBDataset(place, to_floats), Folder(to_floats)):
        with pytest.raises(OptionError, match=r"^input_size=16 has no effect, .* of its own: leave input_size out"):
            create_loader(dataset, **CPU)
    images, _ = next(iter(create_loader(store, transform=ResizeCenterCrop(8), **SIZELESS)))
    assert images.shape == (4, 3, 8, 8)


@pytest.mark.parametrize("transform", [to_floats, ResizeCenterCrop(8), None])
def test_input_size_is_refused_with_the_transform_option(place: Path, transform: Any) -> None:
    for dataset in (LMDBDataset(place), Subset(LMDBDataset(place), range(8)), Folder()):
        with pytest.raises(OptionError, match=r"^input_size=16 has no effect, .* was passed: leave input_size out"):
            create_loader(dataset, transform=transform, **CPU)


def decode_to_picture(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


@pytest.mark.parametrize("engine", [{"num_workers": 0}, {"num_workers": 2, "worker_type": "processes"}])
def test_transform_that_returns_pil_images_is_named_and_refused(
    place: Path, engine: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    for dataset, options in ((LMDBDataset(place, decode=decode_to_picture), {}), (Folder(), {"transform": None})):
        loader = create_loader(dataset, **{**SIZELESS, **options, **engine})
        where = r"record 0 \(0\.png\) of" if isinstance(dataset, LMDBDataset) else "sample 0 of Folder"
        with pytest.raises(OptionError, match=rf"'image' of {where}.* is a PIL image.*pass a transform or a decode"):
            next(iter(loader))
        loader.close()
    assert capfd.readouterr().err == ""


def test_concatenated_datasets_are_transformed_like_one_dataset(place: Path) -> None:
    parts: Any = ConcatDataset([Subset(Folder(), range(10)), Subset(LMDBDataset(place), range(10, LENGTH))])
    assert same(all_of(create_loader(parts, **RANDOM)), all_of(create_loader(Folder(), **RANDOM)))


def test_transform_option_replaces_the_transform_and_leaves_the_dataset_unchanged(place: Path) -> None:
    dataset = LMDBDataset(place, to_floats)
    images, _ = next(iter(create_loader(dataset, transform=ResizeCenterCrop(8), **SIZELESS)))
    assert images.shape == (4, 3, 8, 8)
    loader = create_loader(dataset, transform=lambda image: to_floats(image) * 2, normalize=None, **SIZELESS)
    assert torch.equal(next(iter(loader))[0][0], to_floats(photo(0)) * 2)
    assert dataset.transform is to_floats
    assert loader.dataset is dataset


def test_samples_may_be_dicts_or_single_images(place: Path) -> None:
    batch = next(iter(create_loader(Dicts(), **RANDOM)))
    assert batch["image"].dtype is torch.float32
    order = [*ShuffleSampler(range(LENGTH))][:4]
    assert batch["name"] == [str(index) for index in order]
    assert torch.equal(next(iter(create_loader(Alone(), **RANDOM))), batch["image"])
    of_store = next(iter(create_loader(LMDBDataset(place, fields=("name", "image", "label")), **RANDOM)))
    assert list(of_store) == ["name", "image", "label"]
    assert torch.equal(of_store["image"], batch["image"])


def test_attribute_set_on_the_dataset_applies_from_the_next_epoch(place: Path) -> None:
    options: dict[str, Any] = {**SIZELESS, "batch_size": LENGTH, "transform": None, "normalize": None}
    dataset = LMDBDataset(place, transform=lambda _: 1)
    with create_loader(dataset, **{**options, "worker_type": "threads", "num_workers": 1}) as loader:
        assert [ones.tolist() for ones, _ in loader] == [[1] * LENGTH]
        assert loader.dataset is dataset
        dataset.transform = lambda _: 2
        assert [twos.tolist() for twos, _ in loader] == [[2] * LENGTH]


def test_record_without_an_image_is_an_error(tmp_path: Path) -> None:
    store_samples([Record("a", 0, encoded(photo(0), "PNG")), Record("b", 1, None)], tmp_path / "some.lmdb")
    with pytest.raises(LoaderError, match=r"record 1 \(b\) of .* has no image for the batch: leave"):
        list(create_loader(LMDBDataset(tmp_path / "some.lmdb"), **CPU))


def partly_labelled(place: Path) -> Path:
    labels = [0, 1, None, 2]
    store_samples((Record(f"{n}.png", label, encoded(photo(n), "PNG")) for n, label in enumerate(labels)), place)
    return place


@pytest.mark.parametrize(
    "options",
    [
        {"worker_type": "threads", "num_workers": 2},
        {"worker_type": "processes", "num_workers": 1},
        {"transform": to_floats, "normalize": None},
    ],
)
@pytest.mark.parametrize("fields", [None, ("image", "label")])
def test_record_without_a_label_is_named_in_the_error(tmp_path: Path, fields: Any, options: Any) -> None:
    place = partly_labelled(tmp_path / "some.lmdb")
    message = r"record 2 \(2\.png\) of .*some\.lmdb has no label, .*: choose other fields, such as fields=\('image',\)"
    for dataset in (LMDBDataset(place, fields=fields), Subset(LMDBDataset(place, fields=fields), [3, 2, 1, 0])):
        with pytest.raises(OptionError, match=message):
            list(create_loader(dataset, **{**SIZELESS, **options}))


def test_unlabeled_records_load_with_subset_collate_fn_or_other_fields(tmp_path: Path) -> None:
    place = partly_labelled(tmp_path / "some.lmdb")
    ((_, labels),) = create_loader(Subset(LMDBDataset(place), [0, 1, 3]), **CPU)
    assert labels.tolist() == [0, 1, 2]
    (samples,) = create_loader(LMDBDataset(place), collate_fn=list, **{**CPU, "normalize": None})
    assert [label for _, label in samples] == [0, 1, None, 2]
    (batch,) = create_loader(LMDBDataset(place, fields=("image", "name")), **CPU)
    assert batch["name"] == ["0.png", "1.png", "2.png", "3.png"]


def mixed(images: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return images.flip(0) / 2 + images / 2, torch.nn.functional.one_hot(targets, 3).float()


def test_preparation_gets_normalized_images_and_targets(place: Path) -> None:
    plain, labels = next(iter(create_loader(LMDBDataset(place), **CPU)))
    for preparation in (mixed, Preparation(mixed)):
        images, targets = next(iter(create_loader(LMDBDataset(place), preparation=preparation, **CPU)))
        assert torch.equal(images, plain.flip(0) / 2 + plain / 2)
        assert targets.argmax(1).tolist() == labels.tolist()


def test_given_sampler_determines_the_order(place: Path) -> None:
    loader: Any = create_loader(LMDBDataset(place), sampler=[5, 4, 3], **CPU)
    assert [labels.tolist() for _, labels in loader] == [[2, 1, 0]]
    assert not hasattr(loader, "state_dict")
    part = Subset(LMDBDataset(place), range(6))
    ordered = create_loader(part, sampler=OrderedSampler(part), **CPU)
    assert [labels.tolist() for _, labels in ordered] == [[0, 1, 2, 0], [1, 2]]
    assert hasattr(ordered, "state_dict")


@pytest.mark.parametrize(
    ("sampler", "population"),
    [
        (ShuffleSampler(range(1)), 1),
        (OrderedSampler(range(LENGTH + 1)), LENGTH + 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_sampler_of_another_dataset_is_refused(place: Path, sampler: Any, population: int) -> None:
    for dataset in (LMDBDataset(place), Folder()):
        with pytest.raises(OptionError, match=f"which has {LENGTH} samples, got a .*Sampler for {population} samples$"):
            create_loader(dataset, sampler=sampler, **CPU)


def test_each_rank_gets_its_share_of_the_samples(place: Path, tmp_path: Path) -> None:
    def load(rank: int) -> None:
        dataset = LMDBDataset(place, fields=("index",))
        share, whole = range(rank, LENGTH, 2), range(LENGTH)
        for distributed, expected in ((None, share), (True, share), (False, whole)):
            loader = create_loader(dataset, distributed=distributed, **{**CPU, "normalize": None})
            assert [index for batch in loader for index in batch["index"].tolist()] == [*expected]

    run_ranks(load, tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, OptionError, "batch_size must be at least 1, got 0"),
        ({"input_size": 0}, OptionError, r"input_size must be a number of pixels or a \(height, width\), .*, got 0"),
        ({"transform": 5}, TypeError, "transform must be 'auto', a callable or None, got 5"),
        ({"collate_fn": 5}, TypeError, "collate_fn must be a callable or None, got 5"),
        ({"device": "cuda:99"}, OptionError, "got device='cuda:99'"),
        ({"normalize": True}, TypeError, r"^normalize must be a dbloader\.device\.Normalize or None, got True$"),
        ({"preparation": 5}, TypeError, "must be a module or another callable that takes the images, got 5"),
        ({"sampler": 5}, TypeError, "sampler must be an iterable of indices, got int"),
        ({"sampler": SeededBatchSampler(OrderedSampler(range(4)), 2)}, OptionError, "got SeededBatchSampler, which"),
        ({"distributed": True}, OptionError, r"distributed=True needs torch.distributed: call init_process_group\(\)"),
        ({"distributed": "yes"}, TypeError, "^distributed must be True, False or None, got 'yes'$"),
        ({"is_training": "no"}, TypeError, "^is_training must be True or False, got 'no'$"),
        ({"seed": "x"}, TypeError, "seed must be an int, got 'x'"),
        ({"num_workers": -1}, OptionError, "num_workers must be at least 0, got -1"),
        (
            {"worker_type": "greenlets"},
            OptionError,
            "worker_type must be one of auto, threads, processes, got 'greenlets'",
        ),
        ({"prefetch_factor": 0}, OptionError, "prefetch_factor must be at least 1, got 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # the repr of other values may contain a memory address
)
def test_wrong_option_is_refused_by_create_loader(
    place: Path, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        create_loader(LMDBDataset(place), **{**CPU, **options})


@pytest.fixture
def start_method(request: pytest.FixtureRequest) -> Iterator[str]:
    """Start processes by a method during a test."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(request.param, force=True)
    yield request.param
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.parametrize(
    ("start_method", "options", "kind"),
    [
        ("fork", {"num_workers": 1}, "Process"),
        ("fork", {"num_workers": 5}, "Process"),
        ("fork", {"num_workers": 0}, "Thread"),
        ("spawn", {"num_workers": 5}, "Thread"),
        ("forkserver", {"num_workers": 5}, "Thread"),
        ("fork", {"num_workers": 5, "worker_type": "threads"}, "Thread"),
        ("spawn", {"num_workers": 1, "worker_type": "processes"}, "Process"),
        # These fetchers hold the GIL.
        ("spawn", {"num_workers": 1, "transform": len}, "Process"),
        ("spawn", {"num_workers": 1, "collate_fn": len}, "Process"),
    ],
    indirect=["start_method"],
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create 5 worker processes")
def test_auto_chooses_processes_if_they_are_forked(
    place: Path, start_method: str, options: dict[str, Any], kind: str
) -> None:
    with create_loader(LMDBDataset(place), **{**SIZELESS, **options}) as loader:
        assert repr(loader).startswith(f"PrefetchLoader({kind}Loader(")
        slower = kind == "Thread" and options["num_workers"] > 0
        assert (loader.stats().advice is not None) == slower


def send_kind(place: Path, connection: Any) -> None:
    with create_loader(LMDBDataset(place), **{**CPU, "num_workers": 2}) as loader:
        connection.send((repr(loader), len([*loader]), loader.stats().advice))


@pytest.mark.parametrize("start_method", ["fork"], indirect=True)
def test_auto_chooses_threads_in_a_daemonic_process(place: Path, start_method: str) -> None:
    reading, writing = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=send_kind, args=(place, writing), daemon=True)
    process.start()
    writing.close()
    text, batches, advice = reading.recv()
    process.join()
    reading.close()
    assert text.startswith("PrefetchLoader(ThreadLoader(")
    assert (batches > 0, advice) == (True, None)


class Negative(LMDBDataset):
    def sample(self, record: Record, random_numbers: Any = None) -> Any:
        image, label = super().sample(record, random_numbers)
        return 255 - image, label + 100


class Thousand(LMDBDataset):
    def __getitems__(self, indices: Any) -> list[Any]:
        return [(image, label + 1000) for image, label in super().__getitems__(indices)]


@pytest.mark.parametrize(("kind", "added"), [(Negative, 100), (Thousand, 1000)])
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_samples_of_a_dataset_subclass_are_loaded(place: Path, kind: Any, added: int, workers: Any) -> None:
    dataset = kind(place, decode=ResizeCenterCrop(8))
    expected = dataset.__getitems__([0, 1, 2, 3])
    loader = create_loader(dataset, normalize=None, worker_type=workers, **SIZELESS)
    images, labels = next(iter(loader))
    assert torch.equal(images, torch.stack([image for image, _ in expected]))
    assert labels.tolist() == [label for _, label in expected]
    assert min(labels) >= added


def test_dataset_without_samples_or_indices_is_refused(place: Path) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter([1])

    cases: list[tuple[Any, str]] = [
        (Subset(Folder(), []), "must have samples, got Subset of length 0"),
        *((other, "must be map-style, with samples at indices, got") for other in (Stream(), 5, {1, 2})),
        *((thing, r"got .*photos\.lmdb.*: open a store with LMDBDataset\(place\)") for thing in (str(place), place)),
    ]
    for dataset, message in cases:
        with pytest.raises(OptionError, match=message):
            create_loader(dataset, **CPU)
    with open_store(place) as store, pytest.raises(OptionError, match=r"open a store with LMDBDataset\(place\)"):
        create_loader(store, **CPU)


def test_default_decoder_refuses_tensors() -> None:
    samples = [(torch.zeros(3, 8, 8), 0)] * 4
    with pytest.raises(TypeError, match="got Tensor: if a dataset returns tensors, pass transform=None"):
        next(iter(create_loader(samples, batch_size=2, num_workers=0, device=None)))


def test_training_on_less_than_a_batch_is_refused(place: Path) -> None:
    dataset = LMDBDataset(place)
    message = rf"batch_size={len(dataset) + 1} is more than the {len(dataset)} samples of this process"
    with pytest.raises(OptionError, match=message):
        create_loader(dataset, batch_size=len(dataset) + 1, is_training=True)
    loader = create_loader(dataset, batch_size=len(dataset) + 1, is_training=True, drop_last=False)
    assert len(loader) == 1


def test_sampler_of_another_library_gives_equal_batches_for_any_workers(place: Path) -> None:
    def two_epochs(**options: Any) -> tuple[list[Any], Any]:
        options = {**CPU, "is_training": True, "seed": 3, "normalize": None, **options}
        loader = create_loader(LMDBDataset(place), sampler=SequentialSampler(range(LENGTH)), **options)
        torch.manual_seed(0)
        images = []
        for _ in range(2):
            for batch, _ in loader:
                images.append(batch.clone())
                torch.rand(3)  # the training itself also draws random numbers
        return images, torch.rand(3)

    expected, drawn = two_epochs(worker_type="threads")
    assert not torch.equal(expected[0], expected[len(expected) // 2]), "each epoch must have different crops"
    for workers in ("threads", "processes"):
        images, after = two_epochs(worker_type=workers, num_workers=2)
        assert same(images, expected)
        if workers == "threads":
            assert torch.equal(after, drawn), "workers must not draw from the training's generator"


def test_set_epoch_chooses_the_crops_of_a_sampler_of_another_library(place: Path) -> None:
    options = {**CPU, "is_training": True, "normalize": None, "sampler": SequentialSampler(range(LENGTH))}
    loader = create_loader(LMDBDataset(place), **options)
    epochs = [all_of(loader), all_of(loader)]
    for epoch in (1, 0):
        loader.set_epoch(epoch)
        assert same(all_of(loader), epochs[epoch])
    with pytest.raises(OptionError, match=r"^epoch must be at least 0, got -1$"):
        loader.set_epoch(-1)


def test_lmdb_error_of_user_code_is_unchanged(place: Path) -> None:
    def look_up(label: int) -> int:
        raise lmdb.NotFoundError(f"my own database: {label}")

    dataset = LMDBDataset(place, target_transform=look_up, decode=ResizeCenterCrop(8))
    with pytest.raises(lmdb.NotFoundError, match="my own database"):
        next(iter(create_loader(dataset, **SIZELESS)))


def test_sampler_and_distributed_are_refused_together(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    with pytest.raises(OptionError, match="distributed=True has no effect on sampler="):
        create_loader(LMDBDataset(place), sampler=[1], distributed=True, **CPU)


OPTIONS = {
    "shuffle": "pass is_training=True, .*, or sampler=ShuffleSampler",
    "num_worker": "pass num_workers$",
    "workers": "pass num_workers$",
    "batchsize": "pass batch_size$",
    "mean": r"pass normalize=dbloader.device.Normalize\(mean, std",
    "re_prob": r"pass preparation=dbloader.device.RandomErasing\(",
    "hflip": r"pass transform=RandomResizedCrop\(",
    "auto_augment": r"pass transform=timm\.data\.create_transform\(",
    "nonsense": "pass one of dataset, input_size, batch_size, .*, prefetch_factor$",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_unknown_option_is_refused_with_the_option_to_pass(place: Path, name: str) -> None:
    options: Any = {name: True}
    with pytest.raises(TypeError, match=rf"^create_loader has no option '{name}': {OPTIONS[name]}"):
        create_loader(LMDBDataset(place), 16, 4, **options)


# The options of create_loader in timm 1.0.31 that dbloader's does not have.
TIMM = """
no_aug re_prob re_mode re_count re_split train_crop_mode scale ratio hflip vflip color_jitter color_jitter_prob
grayscale_prob gaussian_blur_prob auto_augment num_aug_repeats num_aug_splits interpolation mean std crop_pct crop_mode
crop_border_pixels pin_memory fp16 img_dtype use_prefetcher use_multi_epochs_loader persistent_workers worker_seeding
tf_preprocessing
"""


@pytest.mark.parametrize("names", [[*inspect.signature(DataLoader).parameters], TIMM.split()], ids=["torch", "timm"])
def test_each_option_of_other_loaders_works_or_names_what_to_pass(place: Path, names: list[str]) -> None:
    for name in {*names} - {*inspect.signature(create_loader).parameters}:
        with pytest.raises(TypeError, match=rf"^create_loader has no option '{name}': pass (?!one of)"):
            create_loader(LMDBDataset(place), 16, 4, **cast("Any", {name: None}))
