"""Images that are decoded where the batch goes are what the decoder of the CPU gives."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from dbloader.decoding import DecodeTensor, RandomResizedCrop, ResizeCenterCrop
from dbloader.device import DeviceDecoder, Normalize, Preparation
from dbloader.device.encoded import EncodedImages
from dbloader.device.hardware import HardwareDecoder
from dbloader.errors import DamagedImageError, NotAnImageError, OptionError
from tests.support.images import encoded
from tests.support.jpegs import draw, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

CUDA = torch.device("cuda", 0)
JPEGS = [encode(draw(90, 60)), encode(draw(40, 80), progressive=True), encode(draw(33, 31, "L"))]
OTHERS = [encoded(draw(50, 70), "PNG"), encode(draw(90, 60, "CMYK")), encode(draw(90, 60), keep_rgb=True)]
FILES = JPEGS + OTHERS


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return encode(draw(90, 60), exif=exif)


def random_numbers(count: int, draws: int = RandomResizedCrop.draws) -> Any:
    return np.random.default_rng(5).random((count, draws))


def expected(decoder: Any, files: Sequence[bytes], rows: Any) -> torch.Tensor:
    return torch.stack([decoder(file, row) for file, row in zip(files, rows, strict=True)])


# Without a library: the decoder's own pixels


@pytest.mark.parametrize("decoder", [RandomResizedCrop(24), ResizeCenterCrop((20, 32), resize=40)])
def test_a_device_without_a_library_gives_what_the_decoder_gives(decoder: Any) -> None:
    rows = random_numbers(len(FILES), decoder.draws)
    result = DeviceDecoder(decoder, "cpu")(EncodedImages(FILES, rows))
    assert torch.equal(result, expected(decoder, FILES, rows))
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert (result.dtype, result.device.type) == (torch.uint8, "cpu")
    assert DeviceDecoder(decoder, "cpu")(EncodedImages([], rows[:0])).shape == (0, *result.shape[1:])


def test_it_is_the_first_module_of_a_preparation() -> None:
    decoder, rows = RandomResizedCrop(24), random_numbers(3)
    prepared = Preparation(DeviceDecoder(decoder, "cpu"), Normalize((0.5,) * 3, (0.25,) * 3))
    images, labels = prepared((EncodedImages(JPEGS, rows), torch.arange(3)))
    assert torch.equal(images, Normalize((0.5,) * 3, (0.25,) * 3)(expected(decoder, JPEGS, rows)))
    assert labels.tolist() == [0, 1, 2]


def test_an_image_that_does_not_decode_is_named() -> None:
    decoder = DeviceDecoder(ResizeCenterCrop(24), "cpu")
    damaged = JPEGS[0][:400]
    with pytest.raises(DamagedImageError, match="image") as caught:
        decoder(EncodedImages([JPEGS[0], damaged], names=["good.jpg", "bad.jpg"]))
    assert getattr(caught.value, "__notes__", ["in image 1 of the batch: bad.jpg"]) == [
        "in image 1 of the batch: bad.jpg"
    ]
    with pytest.raises(NotAnImageError, match="in no known format"):
        decoder(EncodedImages([b"nonsense"]))


def test_wrong_arguments_are_errors() -> None:
    with pytest.raises(TypeError, match=r"^decoder must be a Decoder, such as RandomResizedCrop\(224\), got 3$"):
        DeviceDecoder(3, "cpu")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"images of one size: take a decoder that has a size, got DecodeTensor"):
        DeviceDecoder(DecodeTensor(), "cpu")
    with pytest.raises(OptionError, match="device must be one that torch knows, got 'gpu'"):
        DeviceDecoder(ResizeCenterCrop(24), "gpu")
    decoder = DeviceDecoder(ResizeCenterCrop(24), "cpu")
    with pytest.raises(TypeError, match="images must be EncodedImages, which are not decoded yet, got Tensor"):
        decoder(torch.zeros(1))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"each image must have 0 random numbers for ResizeCenterCrop.*, got 3$"):
        decoder(EncodedImages(JPEGS, random_numbers(3, 3)))


def test_a_decoder_is_pickled_by_its_options() -> None:
    decoder = pickle.loads(pickle.dumps(DeviceDecoder(RandomResizedCrop(24), "cpu")))  # noqa: S301
    assert repr(decoder) == f"DeviceDecoder({RandomResizedCrop(24)!r}, 'cpu') with no library"


# With a library


class Fake(HardwareDecoder):
    """Decodes with Pillow, whole and without turning, and refuses what it is told to."""

    def __init__(self, device: torch.device = CUDA, refused: Sequence[bytes] = ()) -> None:
        self.refused = refused
        self.seen: list[bytes] = []

    def decode(self, files: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        found: list[torch.Tensor | None] = []
        for file in files:
            data = bytes(file.numpy())
            self.seen.append(data)
            pixels = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
            found.append(None if data in self.refused else torch.from_numpy(pixels).permute(2, 0, 1))
        return found


def with_library(decoder: Any, library: HardwareDecoder) -> DeviceDecoder:
    result = DeviceDecoder(decoder, "cpu")
    result.hardware = library
    return result


@pytest.mark.parametrize(
    "decoder",
    [
        RandomResizedCrop(24, flip=0),
        RandomResizedCrop((16, 40), flip=1),
        ResizeCenterCrop(24),
        ResizeCenterCrop((20, 30), resize=64),
        ResizeCenterCrop((70, 30), resize=24),  # larger than what is resized: black around it
    ],
)
def test_what_a_library_decoded_is_cut_resized_and_mirrored_as_the_decoder_does(decoder: Any) -> None:
    files = JPEGS * 4
    rows = random_numbers(len(files), decoder.draws)
    library = Fake()
    result = with_library(decoder, library)(EncodedImages(files, rows))
    assert library.seen == files
    assert result.is_contiguous(memory_format=torch.channels_last)
    difference = (result.int() - expected(decoder, files, rows).int()).abs()
    assert difference.max() <= 2  # the CPU resizes in integers
    assert difference.float().mean() < 0.3


def test_a_part_that_has_the_size_wanted_keeps_its_pixels() -> None:
    decoder = ResizeCenterCrop(24, resize=60)  # the image is 60 high
    result = with_library(decoder, Fake())(EncodedImages(JPEGS[:1]))
    assert torch.equal(result, expected(decoder, JPEGS[:1], [()]))


class Counting(RandomResizedCrop):
    """Knows what it decoded."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.seen: set[bytes] = set()

    def __call__(self, image: Any, *args: Any, **options: Any) -> torch.Tensor:
        self.seen.add(bytes(image))
        return super().__call__(image, *args, **options)


def test_what_a_library_does_not_take_is_decoded_by_the_decoder_and_nothing_else() -> None:
    decoder, rows = Counting(24), random_numbers(len(FILES))
    library = Fake(refused=JPEGS[1:2])
    result = with_library(decoder, library)(EncodedImages(FILES, rows))
    assert library.seen == JPEGS
    assert decoder.seen == {JPEGS[1], *OTHERS}
    wanted = expected(decoder, FILES, rows)
    assert torch.equal(result[[1, 3, 4, 5]], wanted[[1, 3, 4, 5]])
    assert (result.int() - wanted.int()).abs().max() <= 2


def test_images_that_must_be_turned_upright_are_left_to_the_decoder() -> None:
    files = [turned(1), turned(6), JPEGS[0]]
    for upright, seen in ((True, [files[0], files[2]]), (False, files)):
        library, decoder = Fake(), ResizeCenterCrop(24, exif_transpose=upright)
        result = with_library(decoder, library)(EncodedImages(files))
        assert library.seen == seen
        assert (result.int() - expected(decoder, files, [()] * 3).int()).abs().max() <= 2
