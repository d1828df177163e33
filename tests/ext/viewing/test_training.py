"""The training view shows exactly the batches of create_loader: every index, every crop, every pixel."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from dbloader import ImageFormat, LMDBDataset, MongoDataset, Record, convert, mix, open_store, write_store
from dbloader.decoding import MultiCrop, RandomCrop, RandomResizedCrop, ResizeCenterCrop
from dbloader.errors import OptionError
from dbloader.ext.viewing.training import Options, show_batch, show_image, to_png
from dbloader.loading.create import create_loader
from dbloader.sampling import BlockShuffleSampler, ShuffleSampler
from tests.support import jpegs
from tests.support.images import encoded, photo, plant

LENGTH = 23


def turned(seed: int, orientation: int) -> bytes:
    return photo(seed, 80, 48, exif=jpegs.turned_exif(orientation))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of photographs, some of which are turned, gray, or in other formats."""
    files = {f"{'ab'[n % 2]}/{n:02}.jpg": photo(n, 64 + n, 96 - n) for n in range(LENGTH - 5)}
    files |= {f"b/{n}.jpg": turned(n, n - 16) for n in (19, 22, 24)}
    files["a/gray.jpg"] = jpegs.encode(jpegs.draw(70, 50, "L"))
    files["a/turned.tif"] = encoded(jpegs.draw(60, 40), "TIFF", tiffinfo={274: 6})
    return plant(tmp_path_factory.mktemp("images"), files)


@pytest.fixture(scope="module")
def place(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stores") / "a.lmdb"
    convert(images, place)
    return place


@pytest.fixture(scope="module")
def sharded(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stores") / "sharded.lmdb"
    with ThreadPoolExecutor(1) as executor:
        convert(images, place, shards=7, executor=executor)
    return place


def sampler_of(name: str, dataset: Any, **ranks: Any) -> Any:
    if name == "sticking":
        return BlockShuffleSampler(dataset, None, 12, lanes=6, stick_to_shard=True, **ranks)
    if name == "blocks":
        return BlockShuffleSampler(dataset, 3, 2, **ranks)
    return ShuffleSampler(dataset, **ranks)


def loader_of(place: Any, transform: Any = "auto", order: str = "shuffle", **options: Any) -> Any:
    dataset: Any = (MongoDataset if str(place).startswith("mongodb") else LMDBDataset)(place)
    ranks = {"num_replicas": options["world_size"], "rank": options["rank"], "seed": options["seed"]}
    return create_loader(
        dataset,
        (24, 32) if transform == "auto" else None,
        options["batch_size"],
        is_training=True,
        transform=transform,
        sampler=sampler_of(order, dataset, **ranks),
        drop_last=options["drop_last"],
        normalize=None,
        device=None,
        num_workers=0,
    )


def pixels(png: bytes) -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image)


def shown(store: Any, options: Options, transform: Any = None) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the images of a batch as the page shows images."""
    batch = show_batch(store, options, transform)
    assert [sample["index"] for sample in batch["samples"]] == batch["indices"]
    seeds = options._replace(seed=int(batch["seed"]), epoch=batch["epoch"], state="")
    for sample in batch["samples"]:
        png, _ = show_image(store, sample["index"], sample["position"], seeds, transform)
        yield pixels(png)


def check_epochs(place: Any, epochs: int = 2, transform: Any = None, order: str = "shuffle", **given: Any) -> None:
    """Compare every pixel of some epochs with create_loader's."""
    options = {"seed": 3, "batch_size": 4, "world_size": 1, "rank": 0, "drop_last": True, **given}
    loader = loader_of(place, "auto" if transform is None else transform, order, **options)
    with open_store(str(place)) as store:
        for epoch in range(epochs):
            state = json.dumps(loader.state_dict()) if order != "shuffle" else ""
            step = -1
            for step, batch in enumerate(loader):
                now = Options(epoch=epoch, step=step, size="24x32", state=state, **options)
                for image, seen in zip(batch[0], shown(store, now, transform), strict=True):
                    assert np.array_equal(image.permute(1, 2, 0), seen)
            now = Options(epoch=epoch, size="24x32", state=state, **options)
            assert show_batch(store, now, transform)["steps"] == step + 1 > 1
    loader.close()


@pytest.mark.parametrize(
    "given",
    [
        {"epochs": 3, "seed": 5},
        {"batch_size": 5, "drop_last": False},
        {"world_size": 3, "rank": 2, "batch_size": 3, "drop_last": False},
        {"transform": RandomResizedCrop((24, 32), exif_transpose=True, interpolation="random")},
        {"transform": RandomCrop(40, padding=8, pad_if_needed=True)},
        {"order": "blocks", "world_size": 2, "rank": 1, "batch_size": 3},
    ],
    ids=str,
)
def test_page_shows_the_pixels_that_the_loader_returns(place: Path, given: Any) -> None:
    check_epochs(place, **given)


def test_tiled_store_shows_the_pixels_that_the_loader_returns(images: Path, tmp_path: Path) -> None:
    convert(images, tmp_path / "tiled.lmdb", images=ImageFormat(tile=True, tile_width=16, quality=90))
    check_epochs(tmp_path / "tiled.lmdb", 1)


def test_store_in_mongodb_shows_the_pixels_that_the_loader_returns(images: Path, mongo_uri: str) -> None:
    convert(images, mongo_uri)
    check_epochs(mongo_uri, 1, world_size=2, rank=1)


@pytest.mark.parametrize("order", ["shuffle", "blocks"])
def test_state_shows_the_batches_that_a_resumed_training_receives(place: Path, order: str) -> None:
    # The training is interrupted with one rank, and resumed with two ranks and another batch size.
    options: Any = {"seed": 7, "batch_size": 4, "world_size": 1, "rank": 0, "drop_last": False}
    loader = loader_of(place, order=order, **options)
    assert len(list(loader)) > 1
    list(islice(loader, 2))
    state = loader.state_dict()
    loader.close()
    options |= {"seed": 0, "batch_size": 3, "world_size": 2, "rank": 1}
    resumed = loader_of(place, order=order, **options)
    resumed.load_state_dict(state)
    with open_store(place) as store:
        for step, batch in enumerate(resumed):
            now = Options(step=step, size="24x32", state=str(state) if step else json.dumps(state), **options)
            assert show_batch(store, now)["epoch"] == 1
            for image, seen in zip(batch[0], shown(store, now), strict=True):
                assert np.array_equal(image.permute(1, 2, 0), seen)
        assert step + 1 == show_batch(store, now)["steps"] > 1
    resumed.close()


def state_of(place: Path, order: str = "shuffle", **changes: Any) -> str:
    options = {"seed": 0, "batch_size": 4, "world_size": 1, "rank": 0, "drop_last": True}
    loader = loader_of(place, order=order, **options)
    state = {**loader.state_dict(), **changes}
    loader.close()
    return json.dumps({name: value for name, value in state.items() if value is not None})


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        ({"dataset": "abc"}, {}, "another dataset, with the digest abc: this loader's .* has the digest "),
        ({"position": 20}, {}, "the state is at the end of epoch 0: the epoch has no batch left"),
        ({"sampler": "RandomSampler"}, {}, "must be of a ShuffleSampler or BlockShuffleSampler, got 'RandomSampler'"),
        (None, {"state": "{"}, "the state must be the output of print"),
        (None, {"state": "[" * 9999}, "the state must be the output of print"),
        (None, {"step": 5}, "step must be from 0 to 4, got 5"),
        (None, {"batch_size": 24}, "batch_size=24 is more than the 23 samples"),
        (None, {"batch_size": 0}, "batch_size must be from 1 to 65536, got 0"),
        (None, {"world_size": 0}, "world_size must be from 1 to 65536, got 0"),
        (None, {"size": "24x"}, "input_size must be a number of pixels .*, got"),
        (None, {"size": "9" * 5000}, "size must be from 1 to 4096, got 9999"),
    ],
    ids=str,
)
def test_wrong_state_or_option_is_refused(place: Path, change: Any, options: Any, sentence: str) -> None:
    state = {} if change is None else {"state": state_of(place, **change)}
    with open_store(place) as store, pytest.raises(OptionError, match=sentence):
        show_batch(store, Options(**{"batch_size": 4, **state, **options}))


def crops_of(store: Any, transform: Callable[..., Any]) -> list[tuple[Any, Any, Any]]:
    samples = show_batch(store, Options(batch_size=LENGTH), transform)["samples"]
    return [(store[sample["index"]], sample["crop"], sample["size"]) for sample in samples]


def test_crop_is_in_pixels_of_the_turned_image(place: Path) -> None:
    with open_store(place) as store:
        for record, _, size in crops_of(store, RandomResizedCrop(24)):
            # Pillow turns a TIFF when it opens the file
            assert size == ([40, 60] if record.format == "TIFF" else [record.width, record.height])
        sizes = {record.name: size for record, _, size in crops_of(store, RandomResizedCrop(24, exif_transpose=True))}
    assert (sizes["b/19.jpg"], sizes["b/22.jpg"], sizes["b/24.jpg"]) == ([80, 48], [48, 80], [48, 80])


def test_center_crop_is_shown_as_its_window(place: Path) -> None:
    with open_store(place) as store:
        for record, box, _ in crops_of(store, ResizeCenterCrop(28, resize=32)):
            if record.format == "TIFF":
                continue
            shorter = min(record.width, record.height)
            assert box[2:] == pytest.approx([shorter * 28 / 32] * 2, rel=0.03)
            assert box[0] + box[2] / 2 == pytest.approx(record.width / 2, abs=2)
            assert box[1] + box[3] / 2 == pytest.approx(record.height / 2, abs=2)


def test_padded_crop_ends_at_the_edge_of_the_image(place: Path) -> None:
    with open_store(place) as store:
        for _, (left, top, width, height), size in crops_of(store, RandomCrop(40, padding=20, pad_if_needed=True)):
            assert 0 <= left <= left + width <= size[0]
            assert 0 <= top <= top + height <= size[1]
            assert 20 <= width <= 40
            assert 20 <= height <= 40


def test_multiple_crops_are_shown_side_by_side(place: Path) -> None:
    transform = MultiCrop([(2, RandomResizedCrop(24)), (1, RandomResizedCrop(16))])
    with open_store(place) as store:
        (sample, *_) = show_batch(store, Options(batch_size=2), transform)["samples"]
        assert sample["crop"] is None
        png, _ = show_image(store, sample["index"], sample["position"], Options(), transform)
    assert pixels(png).shape == (24, 64, 3)


def test_damaged_record_is_an_error_of_only_its_sample(tmp_path: Path) -> None:
    plant(tmp_path / "images", {"a/half.jpg": photo(1, 80, 60)[:1200]})
    plant(tmp_path / "images", {f"a/{n}.jpg": photo(n) for n in range(3)})
    convert(tmp_path / "images", tmp_path / "a.lmdb", on_damaged="keep")
    with open_store(tmp_path / "a.lmdb") as store:
        samples = show_batch(store, Options(batch_size=4))["samples"]
        (damaged,) = [sample for sample in samples if "crop" not in sample]
        assert store[damaged["index"]].width == 80
        assert damaged["name"] == "a/half.jpg"
        assert "was stored damaged" in damaged["error"]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_crop_on_the_upright_thumbnail_shows_the_same_pixels(tmp_path: Path, orientation: int) -> None:
    ramps = np.indices((120, 200)).transpose(1, 2, 0)  # each pixel has a different color
    image = Image.fromarray(np.dstack([ramps, ramps[..., 0] * 0]).astype(np.uint8))
    plant(tmp_path / "images", {"a/0.png": encoded(image, "PNG", exif=jpegs.turned_exif(orientation))})
    convert(tmp_path / "images", tmp_path / "a.lmdb")
    decoder = RandomResizedCrop(40, scale=(0.1, 0.3), flip=0)
    with open_store(tmp_path / "a.lmdb") as store:
        (sample,) = show_batch(store, Options(batch_size=1, epoch=orientation), decoder)["samples"]
        seen = pixels(show_image(store, 0, 0, Options(epoch=orientation), decoder)[0])
        (unknown,) = show_batch(store, Options(batch_size=1), lambda image: image)["samples"]
    assert sample["turned"] == unknown["turned"] == orientation
    upright = ImageOps.exif_transpose(Image.open(tmp_path / "images" / "a" / "0.png"))
    left, top, width, height = (share * side for share, side in zip(sample["shares"], upright.size * 2, strict=True))
    assert [left, top, width, height] == pytest.approx([round(side) for side in (left, top, width, height)])
    part = np.asarray(upright.crop((round(left), round(top), round(left + width), round(top + height))))
    for channel in (0, 1):  # the colors are the same in every orientation
        assert abs(int(part[..., channel].min()) - int(seen[..., channel].min())) <= 3
        assert abs(int(part[..., channel].max()) - int(seen[..., channel].max())) <= 3


# Transforms of the user, and pictures made from their results


def turn(image: Image.Image) -> Image.Image:
    return image.rotate(90)


def fail(_: Image.Image) -> None:
    raise ValueError("the image is too blue")


def test_transform_of_the_user_has_no_crop_and_its_error_is_reported(tmp_path: Path) -> None:
    write_store([Record(f"{n}.jpg", n, photo(n)) for n in range(4)], tmp_path / "a.lmdb")
    with open_store(tmp_path / "a.lmdb") as store:
        batch = show_batch(store, Options(batch_size=4), turn)
        assert [sample["crop"] for sample in batch["samples"]] == [None] * 4
        assert not batch["repeatable"]
        assert show_batch(store, Options(batch_size=4), RandomResizedCrop(8))["repeatable"]
        png, _ = show_image(store, 2, 0, Options(), turn)
        with Image.open(io.BytesIO(photo(2))) as original:
            assert np.array_equal(pixels(png), np.asarray(original.rotate(90)))
        with pytest.raises(OptionError, match="the transform failed: ValueError: the image is too blue"):
            show_image(store, 0, 0, Options(), fail)


def decoded(value: Any) -> tuple[Any, str]:
    png, note = to_png(value)
    return pixels(png).tolist(), note


ROW = np.array([[0, 100, 255]], np.uint8)
NORMALIZED = torch.tensor([[-2.0, 0.0, 2.0]])


@pytest.mark.parametrize(
    ("value", "expected", "note"),
    [
        (ROW, ROW.tolist(), ""),
        (torch.from_numpy(ROW)[None], ROW.tolist(), ""),
        (torch.from_numpy(np.stack([ROW] * 3)), np.stack([ROW] * 3, -1).tolist(), ""),
        (Image.fromarray(ROW), ROW.tolist(), ""),
        (Image.fromarray(np.stack([ROW] * 4, -1)), np.stack([ROW] * 4, -1).tolist(), ""),
        (Image.fromarray(ROW > 0), np.stack([[[0, 255, 255]]] * 3, -1).tolist(), ""),
        (NORMALIZED, [[0, 128, 255]], "-2 to 2 shown as black to white"),
        (NORMALIZED.bfloat16(), [[0, 128, 255]], "-2 to 2 shown as black to white"),
        (torch.tensor([[0, 0.2, 0.5]]), [[0, 51, 128]], "0 to 1 shown as black to white"),
        (ROW > 0, [[0, 255, 255]], "0 to 1 shown as black to white"),
        (ROW.astype(np.int64) * 256, [[0, 100, 255]], "0 to 6.528e+04 shown as black to white"),
        (Image.fromarray(ROW.astype(np.uint16) * 2), [[0, 100, 255]], "0 to 510 shown as black to white"),
        (
            np.array([[np.nan, 0, 4]]),
            [[0, 0, 255]],
            "0 to 4 shown as black to white; 1 values are not finite, shown as 0",
        ),
        (np.full((1, 1), 7.0), [[0]], "7 to 7 shown as black to white"),
        (np.stack([ROW] * 2, -1), ROW.tolist(), "only channel 1 of 2"),
        (torch.from_numpy(np.stack([ROW] * 9)), np.stack([ROW] * 3, -1).tolist(), "only channels 1 to 3 of 9"),
        ([ROW, ROW], np.stack([[[0, 100, 255] * 2]] * 3, -1).tolist(), ""),
    ],
)
def test_images_of_any_type_and_range_become_pictures(value: Any, expected: Any, note: str) -> None:
    assert decoded(value) == (expected, note)


@pytest.mark.parametrize("value", [None, "text", 3, {"image": ROW}, np.zeros(3), np.zeros((0, 3)), ROW.astype("c8")])
def test_value_that_is_not_an_image_is_refused(value: Any) -> None:
    with pytest.raises(OptionError, match=r"the page shows only images .*, but the transform returned "):
        to_png(value)


def test_batch_of_a_mixture_shows_the_source_and_the_pixels_of_each_sample(images: Path, tmp_path: Path) -> None:
    convert(images, tmp_path / "x.lmdb")
    convert(plant(tmp_path / "more", {f"a/{n}.jpg": photo(n) for n in range(9)}), tmp_path / "y.lmdb")
    queried = LMDBDataset(tmp_path / "x.lmdb", where="width>70", decode=RandomCrop(24), fields=("image",))
    mixture = mix({queried: 2, LMDBDataset(tmp_path / "y.lmdb", fields=("image",)): 1})
    options = Options(seed=3, epoch=1, batch_size=6, step=1, size="24")
    shown = show_batch(mixture, options)
    plain: Any = {"normalize": None, "device": None, "num_workers": 0}
    sampler = mixture.sampler(1, 0, seed=3)
    sampler.set_epoch(1)
    batch = next(islice(create_loader(mixture, 24, 6, is_training=True, sampler=sampler, **plain), 1, None))
    assert shown["order"] == sampler.facts()
    sources = sorted(sample["source"] for sample in shown["samples"])
    assert sources == [mixture.sources[0].name] * 4 + [mixture.sources[1].name] * 2
    for sample, image in zip(shown["samples"], batch["image"], strict=True):
        store = mixture.datasets[sample["store"]].store
        assert store.read([sample["index"]])[0].name == sample["name"]
        png, _ = show_image(mixture, sample["seen"], sample["position"], options)
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))), image.permute(1, 2, 0).numpy())
