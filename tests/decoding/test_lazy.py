"""Lazy images behave like the images that decode_pil returns."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageChops, ImageDraw, ImageOps

from dbloader.decoding.lazy import LazyImage, open_lazy
from dbloader.decoding.open import decode_pil
from dbloader.decoding.render import resize_pixels
from dbloader.errors import DamagedImageError
from dbloader.images.tiled import TiledJPEG, encode_tiled
from tests.decoding.test_decoder import FILES
from tests.support.jpegs import draw, encode, turned_exif


def turned(orientation: int) -> bytes:
    return encode(draw(75, 201), quality=90, subsampling=2, exif=turned_exif(orientation), dpi=(72, 72))


PHOTO = turned(6)


def tiled(width: int = 75, height: int = 201) -> TiledJPEG:
    return encode_tiled(draw(width, height), quality=90)


def lazy(data: bytes = PHOTO, tiles: bytes | None = None, resize: str = "exact") -> LazyImage:
    image = open_lazy(data, tiles, known_intact=True, resize=resize, note="in record 7 (a/b.jpg) of a.lmdb")
    assert type(image) is LazyImage
    return image


def painted(image: Image.Image) -> Image.Image:
    ImageDraw.Draw(image).rectangle((3, 4, 30, 20), fill=(1, 2, 3))
    image.putpixel((0, 0), (9, 8, 7))
    image.paste((5, 5, 5), (40, 40, 50, 50))
    return image


def shrunk(image: Image.Image) -> Image.Image:
    image.thumbnail((20, 20))
    return image


def put_upright(image: Image.Image) -> Image.Image:
    ImageOps.exif_transpose(image, in_place=True)
    return image


def written(image: Image.Image) -> bytes:
    image.save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def pasted(image: Image.Image) -> Image.Image:
    base = Image.new("RGB", (300, 300))
    base.paste(image, (3, 3))
    return base


def closed(image: Image.Image) -> Any:
    image.close()
    return image.tobytes()


OPERATIONS: dict[str, Callable[[Image.Image], Any]] = {
    "size": lambda image: (image.size, image.width, image.height, image.mode, image.format, image.getbands()),
    "info": lambda image: image.info,
    "getexif": lambda image: dict(image.getexif()),
    "tobytes": lambda image: image.tobytes(),
    "raw tobytes": lambda image: image.tobytes("raw", "BGR"),
    "asarray": lambda image: (np.asarray(image).tolist(), np.asarray(image).flags.writeable),
    "array": lambda image: np.array(image).tolist(),
    "getpixel": lambda image: image.getpixel((7, 9)),
    "load": lambda image: image.load()[3, 4],  # type: ignore[index]
    "im": lambda image: image.im.size,
    "copy": lambda image: image.copy(),
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda image: pickle.loads(pickle.dumps(image)),  # noqa: S301
    "type after pickling": lambda image: type(pickle.loads(pickle.dumps(image))),  # noqa: S301
    "convert RGB": lambda image: image.convert("RGB"),
    "convert": lambda image: image.convert(),
    "convert L": lambda image: image.convert("L"),
    "convert by matrix": lambda image: image.convert("L", (0.2, 0.3, 0.5, 0)),
    "quantize": lambda image: image.quantize(8).convert("RGB"),
    "split": lambda image: [band.tobytes() for band in image.split()],
    "crop all": lambda image: image.crop(),
    "crop of a crop": lambda image: image.crop((5, 10, 70, 150)).crop((1, 2, 40, 90)).rotate(10),
    "crop that leaves": lambda image: image.crop((-5, 10, 90, 250)),
    "empty crop": lambda image: image.crop((5, 10, 5, 20)).size,
    "turned crop": lambda image: image.crop((50, 10, 5, 20)),
    "crop by fractions": lambda image: image.crop((0.5, 1.5, 30.5, 20.49)),
    "crop by NumPy": lambda image: image.crop(tuple(np.array([1.5, 2, 30, 40], np.float32))),
    "crop by too few": lambda image: image.crop((1, 2, 3)),  # type: ignore[arg-type]
    "crop by text": lambda image: image.crop("abcd"),  # type: ignore[arg-type]
    "crop by NaN": lambda image: image.crop((float("nan"), 0, 5, 5)),
    **{f"transpose {turn.name}": methodcaller("transpose", turn) for turn in Image.Transpose},
    "transpose unknown": lambda image: image.transpose(99),  # type: ignore[arg-type]
    **{f"resize {name.name}": methodcaller("resize", (40, 50), name) for name in Image.Resampling},
    "resize default": lambda image: image.resize((40, 50)),
    "resize box": lambda image: image.resize((40, 50), 2, (1.5, 2, 60, 100), 2.0),
    "resize to itself": lambda image: image.resize(image.size),
    "resize to nothing": lambda image: image.resize((0, 4)),
    "resize to fractions": lambda image: image.resize((4.5, 4)),  # type: ignore[arg-type]
    "resize by unknown": lambda image: image.resize((4, 4), 77),
    "resize to text": lambda image: image.resize("ab"),  # type: ignore[arg-type]
    "crop, resize, flip": lambda image: ImageOps.mirror(image.crop((5, 10, 70, 150)).resize((30, 30), 2)),
    "flip a row": lambda image: ImageOps.flip(image.crop((0, 3, 60, 4))),
    "reduce": lambda image: image.reduce(3),
    "thumbnail": shrunk,
    "draft": lambda image: image.draft("L", (10, 10)),
    "exif_transpose": ImageOps.exif_transpose,
    "exif_transpose in place": put_upright,
    "paint": painted,
    "paint a crop": lambda image: painted(image.crop((0, 0, 60, 60))),
    "paste into": pasted,
    "chops": lambda image: ImageChops.invert(image),
    "autocontrast": ImageOps.autocontrast,
    "blend": lambda image: Image.blend(image, image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), 0.5),
    "save": written,
    "histogram": lambda image: image.histogram(),
    "with": lambda image: image.__enter__().getpixel((1, 1)),
    "close": closed,
    "hash": hash,
}


def outcome(operation: Callable[[Image.Image], Any], image: Image.Image) -> Any:
    try:
        result = operation(image)
    except Exception as error:
        return type(error), str(error).replace("LazyImage", "Image")
    if isinstance(result, Image.Image):
        return result.mode, result.size, result.tobytes(), result.info, dict(result.getexif()), result.format
    return result


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_has_same_result_as_on_an_eager_image(name: str) -> None:
    jpeg, lengths = tiled()
    for data, tiles in ((PHOTO, None), (jpeg, lengths)):
        expected = outcome(OPERATIONS[name], decode_pil(data))
        assert outcome(OPERATIONS[name], lazy(data, tiles)) == expected
        image = lazy(data, tiles)
        image.load()
        assert type(image) is Image.Image
        assert outcome(OPERATIONS[name], image) == expected


@pytest.mark.parametrize("kind", FILES)
def test_lazy_image_of_any_kind_has_the_pixels_of_decode_pil(kind: str) -> None:
    data = FILES[kind]
    expected = decode_pil(data)
    for resize in ("exact", "fast", "scaled"):
        assert open_lazy(data, known_intact=True, resize=resize) == expected
        box = (0, 0, max(1, expected.width // 2), max(1, expected.height // 3))
        crop = open_lazy(data, known_intact=True, resize=resize).crop(box)
        assert np.array_equal(np.asarray(crop), np.asarray(expected.crop(box)))


@pytest.mark.parametrize("kind", ["4:4:4", "4:2:2", "4:2:0", "progressive", "untiled"])
def test_crop_of_any_box_equals_the_crop_of_the_whole_image(kind: str) -> None:
    random = np.random.default_rng(0)
    lengths = None
    if kind in ("progressive", "untiled"):
        data = encode(draw(97, 130), quality=90, progressive=kind == "progressive")
    else:
        data, lengths = encode_tiled(draw(97, 130), quality=90, subsampling=kind)
    whole = decode_pil(data)
    several = lazy(data, lengths)  # all crops use one image, which soon decodes the whole file
    for at in range(60):
        edges = random.uniform(-30, 150, 4) if at % 3 else np.sort(random.uniform(0, 97, (2, 2)), axis=0).ravel()
        box = tuple(edges.tolist() if at % 2 else np.rint(edges).astype(int).tolist())
        expected = outcome(methodcaller("crop", box), whole)
        for image in (lazy(data, lengths), lazy(data, lengths, "fast"), several):
            assert outcome(methodcaller("crop", box), image) == expected


def test_crop_decodes_only_its_part_of_the_file() -> None:
    jpeg, lengths = tiled(300, 200)
    cut = jpeg[:-400] + bytes(398) + jpeg[-2:]
    plain = encode(draw(300, 200), quality=90)
    for sound, damaged, tiles in ((jpeg, cut, lengths), (plain, plain[:-400] + plain[-2:], None)):
        crop, box = lazy(damaged, tiles).crop((10, 10, 100, 80)), (10, 10, 100, 80)
        assert crop.resize((20, 20)) == decode_pil(sound).crop(box).resize((20, 20))


def test_many_crops_of_one_image_decode_the_whole_image_once() -> None:
    data = encode(draw(300, 200), quality=90)
    image = lazy(data[:-400] + data[-2:])
    np.asarray(image.crop((0, 0, 90, 150)))
    with pytest.raises(DamagedImageError):  # now the whole image is decoded
        np.asarray(image.crop((9, 0, 99, 150)))
    progressive = lazy(encode(draw(300, 200), quality=90, progressive=True))
    first, second = (np.asarray(progressive.crop((0, top, 300, 9 + top))) for top in (0, 3))
    assert np.array_equal(first[3:], second[:6])


@pytest.mark.parametrize("resize", ["fast", "scaled"])
@pytest.mark.parametrize("resample", [Image.Resampling.BILINEAR, Image.Resampling.BICUBIC])
def test_fast_resizing_is_within_two_levels_of_pillow(resize: str, resample: Image.Resampling) -> None:
    random = np.random.default_rng(1)
    for _ in range(60):
        width, height, new_width, new_height = (int(side) for side in random.integers(5, 90, 4))
        noise = Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))
        data = encode(noise, quality=95, subsampling=0)
        if resize == "scaled" and (width >= 2 * new_width or height >= 2 * new_height):
            continue  # decoded at a fraction of the size
        expected = decode_pil(data).resize((new_width, new_height), resample)
        resized = lazy(data, resize=resize).resize((new_width, new_height), resample)
        assert type(resized) is LazyImage
        assert np.abs(np.asarray(resized).astype(int) - np.asarray(expected)).max() <= 2


@pytest.mark.skipif("AVX" not in torch.backends.cpu.get_cpu_capability(), reason="torch has other kernels")
@pytest.mark.parametrize(("seed", "shape", "size"), [(3, (138, 190, 3), (375, 399)), (42, (215, 110, 3), (342, 103))])
def test_bilinear_resizing_differs_from_pillow_by_two_levels_in_the_worst_case(
    seed: int, shape: tuple[int, ...], size: tuple[int, int]
) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    expected = np.asarray(Image.fromarray(noise).resize(size[::-1], Image.Resampling.BILINEAR))
    difference = np.abs(resize_pixels(noise, size, "bilinear").astype(int) - expected)
    assert difference.max() == 2
    assert (difference == 2).sum() <= 2


def test_derived_images_share_no_memory() -> None:
    for resize in ("exact", "fast"):
        image = lazy(resize=resize)
        crop, flip = image.crop((0, 0, 60, 60)), image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        small, again = image.resize((30, 30), 2), image.resize((30, 30), 2)
        copied, flipped = crop.copy(), flip.copy()
        for changed in (crop, flip, small):
            changed.paste((1, 2, 3), (0, 0, 20, 20))
            changed.info["changed"] = True
        assert copied == decode_pil(PHOTO).crop((0, 0, 60, 60))
        assert flipped == ImageOps.mirror(decode_pil(PHOTO))
        assert small != again
        assert image == decode_pil(PHOTO)


def test_threads_share_an_image() -> None:
    jpeg, lengths = tiled(300, 200)
    expected = decode_pil(jpeg)
    image = lazy(jpeg, lengths)
    work: list[Callable[[], Any]] = [
        image.tobytes,
        lambda: image.crop((5, 6, 250, 190)).tobytes(),
        lambda: image.resize((9, 9)).tobytes(),
        lambda: image.copy().tobytes(),
        lambda: pickle.dumps(image),
    ]
    wanted = [expected.tobytes(), expected.crop((5, 6, 250, 190)).tobytes(), expected.resize((9, 9)).tobytes()]
    wanted.append(wanted[0])
    with ThreadPoolExecutor(8) as threads:
        for _ in range(10):
            image = lazy(jpeg, lengths)
            results = [run.result() for run in [threads.submit(job) for job in work * 3]]
            assert all(results[at + 5 * turn] == wanted[at] for at in range(4) for turn in range(3))


def test_error_about_damage_found_late_names_the_record() -> None:
    jpeg, lengths = tiled(300, 200)
    wrong = np.frombuffer(lengths, "<u2").copy()
    wrong[0] += 9
    image = lazy(jpeg, wrong.tobytes())
    uses: list[Callable[[], Any]] = [
        lambda: image.crop((0, 0, 40, 40)).load(), lambda: np.asarray(image.crop((0, 0, 40, 40))),
        lambda: image.crop((0, 0, 40, 40)).resize((9, 9)), lambda: image.crop((0, 0, 40, 40)).getpixel((0, 0)),
        lambda: pickle.loads(pickle.dumps(image.crop((0, 0, 40, 40)))),  # noqa: S301
        lambda: copy.deepcopy(image.crop((0, 0, 40, 40))),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(DamagedImageError) as raised:
            use()
        assert raised.value.__notes__ == ["in record 7 (a/b.jpg) of a.lmdb"]


def test_file_not_known_to_be_intact_is_decoded_at_once() -> None:
    cut = PHOTO[:-400] + PHOTO[-2:]
    for resize in ("exact", "fast", "scaled"):
        with pytest.raises(DamagedImageError):
            open_lazy(cut, resize=resize)
        assert open_lazy(PHOTO, resize=resize) == decode_pil(PHOTO)
    assert type(open_lazy(PHOTO)) is Image.Image
