"""Images that are decoded where the batch goes are what the decoder of the CPU gives."""

import io
import pickle
import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from dbloader.decoding.center_crop import ResizeCenterCrop
from dbloader.decoding.full import DecodeTensor
from dbloader.decoding.random_crop import RandomResizedCrop
from dbloader.device import Normalize, Preparation
from dbloader.device.decode.backend import HardwareDecoder, takes
from dbloader.device.decode.decoder import DeviceDecoder, open_hardware
from dbloader.device.encoded import EncodedImages
from dbloader.device.transfer import to_device
from dbloader.errors import DamagedImageError, NotAnImageError, OptionError

WHERE_IT_IS = 0x0112  # EXIF's tag of the orientation
CUDA = torch.device("cuda", 0)


def picture(width: int = 90, height: int = 60, mode: str = "RGB") -> Image.Image:
    """Return a smooth picture that has no symmetry, so that no two ways to cut or turn it look the same."""
    across, down = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    planes = [250 * across, 250 * down, 250 * across * (1 - down)]
    return Image.fromarray(np.stack(planes, axis=2).astype(np.uint8)).convert(mode)


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **({"quality": 95} if kind == "JPEG" else {}) | options)
    return file.getvalue()


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[WHERE_IT_IS] = orientation
    return encoded(picture(), exif=exif)


JPEGS = [encoded(picture(90, 60)), encoded(picture(40, 80), progressive=True), encoded(picture(33, 31, "L"))]
OTHERS = [encoded(picture(50, 70), "PNG"), encoded(picture(mode="CMYK")), encoded(picture(), keep_rgb=True)]
FILES = JPEGS + OTHERS


def numbers(count: int, draws: int = RandomResizedCrop.draws) -> Any:
    return np.random.default_rng(5).random((count, draws))


def expected(decoder: Any, files: Sequence[bytes], rows: Any) -> torch.Tensor:
    return torch.stack([decoder(file, row) for file, row in zip(files, rows, strict=True)])


# The files of a batch


def test_files_and_numbers_come_back_as_they_were_given() -> None:
    rows = numbers(3, 2)
    images = EncodedImages([b"one", memoryview(b""), b"three"], rows, ["a", "b", "c"])
    assert [bytes(images.file(number)) for number in range(3)] == [b"one", b"", b"three"]
    assert bytes(images.tensor(2).numpy()) == b"three"
    assert np.array_equal(images.numbers, rows)
    assert images.describe(1) == "image 1 of the batch: b"
    assert EncodedImages([b"one"]).describe(0) == "image 0 of the batch"
    assert repr(images) == "EncodedImages(3 images of 8 bytes together, 2 draws each)"


@pytest.mark.parametrize("number", [-1, 2])
def test_a_file_that_is_not_there_is_an_error(number: int) -> None:
    with pytest.raises(IndexError, match=f"no image {number} in a batch of 2"):
        EncodedImages([b"a", b"b"]).file(number)


def test_what_is_not_there_for_each_file_is_an_error() -> None:
    with pytest.raises(OptionError, match=r"numbers must have a row for each of 2 files, got the shape \(1, 3\)"):
        EncodedImages([b"a", b"b"], numbers(1, 3))
    with pytest.raises(OptionError, match="names must be one for each of 1 files, got 2"):
        EncodedImages([b"a"], names=["a", "b"])


class Encoding(Dataset[Any]):
    """Gives a whole batch for an index, as a fetcher of batches does."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[EncodedImages, torch.Tensor]:
        return EncodedImages(FILES, numbers(len(FILES)), ["a"] * len(FILES)), torch.tensor([index])


def test_a_worker_hands_a_batch_over_as_it_made_it() -> None:
    for images, _ in DataLoader(Encoding(), batch_size=None, num_workers=1):
        assert [bytes(images.file(at)) for at in range(len(images))] == FILES
        assert np.array_equal(images.numbers, numbers(len(FILES)))
        assert images.data.is_shared()


def test_only_the_bytes_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self.clone())
    images = EncodedImages(JPEGS, numbers(3), ["a", "b", "c"])
    pinned = images.pin_memory()
    assert pinned.data is not images.data
    assert [bytes(pinned.file(number)) for number in range(3)] == JPEGS
    assert (pinned.numbers is images.numbers, pinned.names) == (True, ("a", "b", "c"))


def test_files_stay_where_they_are_when_their_batch_moves() -> None:
    images = EncodedImages(JPEGS)
    moved, labels = to_device((images, torch.zeros(3)), "meta")
    assert (moved is images, labels.device.type) == (True, "meta")


# Without a library: the decoder's own pixels


@pytest.mark.parametrize("decoder", [RandomResizedCrop(24), ResizeCenterCrop((20, 32), resize=40)])
def test_a_device_without_a_library_gives_what_the_decoder_gives(decoder: Any) -> None:
    rows = numbers(len(FILES), decoder.draws)
    result = DeviceDecoder(decoder, "cpu")(EncodedImages(FILES, rows))
    assert torch.equal(result, expected(decoder, FILES, rows))
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert (result.dtype, result.device.type) == (torch.uint8, "cpu")
    assert DeviceDecoder(decoder, "cpu")(EncodedImages([], rows[:0])).shape == (0, *result.shape[1:])


def test_it_is_the_first_module_of_a_preparation() -> None:
    decoder, rows = RandomResizedCrop(24), numbers(3)
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
    with pytest.raises(OptionError, match=r"images of one size: take a decoder that has a size, got DecodeTensor"):
        DeviceDecoder(DecodeTensor(), "cpu")
    with pytest.raises(OptionError, match="device must be one that torch knows, got 'gpu'"):
        DeviceDecoder(ResizeCenterCrop(24), "gpu")
    decoder = DeviceDecoder(ResizeCenterCrop(24), "cpu")
    with pytest.raises(TypeError, match="images must be EncodedImages, which are not decoded yet, got Tensor"):
        decoder(torch.zeros(1))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"each image must have 0 numbers for ResizeCenterCrop.*, got .* 3 draws"):
        decoder(EncodedImages(JPEGS, numbers(3, 3)))


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
    rows = numbers(len(files), decoder.draws)
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
    decoder, rows = Counting(24), numbers(len(FILES))
    library = Fake(refused=JPEGS[1:2])
    result = with_library(decoder, library)(EncodedImages(FILES, rows))
    assert library.seen == JPEGS
    assert decoder.seen == {JPEGS[1], *OTHERS}
    wanted = expected(decoder, FILES, rows)
    assert torch.equal(result[[1, 3, 4, 5]], wanted[[1, 3, 4, 5]])
    assert (result.int() - wanted.int()).abs().max() <= 2


def test_images_that_must_be_turned_upright_are_left_to_the_decoder() -> None:
    files = [turned(1), turned(6), encoded(picture())]
    for upright, seen in ((True, [files[0], files[2]]), (False, files)):
        library, decoder = Fake(), ResizeCenterCrop(24, exif_transpose=upright)
        result = with_library(decoder, library)(EncodedImages(files))
        assert library.seen == seen
        assert (result.int() - expected(decoder, files, [()] * 3).int()).abs().max() <= 2


def subsampled(luma: int) -> bytes:
    """Return a JPEG whose header claims other sampling factors of luma."""
    data = bytearray(JPEGS[0])
    data[data.index(b"\xff\xc0") + 11] = luma
    return bytes(data)


def of_adobe(transform: int) -> bytes:
    """Return a JPEG with Adobe's segment, which tells the color space: 0 is RGB, 1 is YCbCr."""
    segment = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00" + bytes([transform])
    return JPEGS[0][:2] + segment + JPEGS[0][2:]


def of_letters() -> bytes:
    """Return a JPEG whose components are called R, G and B, and so are that for libjpeg where nothing else is told."""
    data = bytearray(JPEGS[0])
    at = data.index(b"\xff\xc0") + 10
    data[at : at + 9 : 3] = b"RGB"
    return bytes(data)


def of_process(marker: int) -> bytes:
    return JPEGS[0].replace(b"\xff\xc0\x00\x11", bytes([0xFF, marker, 0, 0x11]))


@pytest.mark.parametrize(
    ("file", "taken"),
    [
        *((file, True) for file in JPEGS),
        *((file, False) for file in OTHERS),
        (encoded(picture(), subsampling="4:2:0"), True),
        (encoded(picture(), subsampling="4:4:4"), True),
        (of_process(0xC1), True),
        (of_process(0xC3), False),  # lossless
        (of_process(0xC9), False),  # arithmetic
        (subsampled(0x14), False),
        (of_adobe(0), False),
        (of_adobe(1), True),
        (of_letters(), False),
        (b"", False),
        (JPEGS[0][:100], False),
        (b"\xff\xd8 nonsense", False),
    ],
)
def test_a_header_tells_whether_a_library_takes_a_file(file: bytes, taken: bool) -> None:
    assert takes(memoryview(file)) is taken


def test_an_image_too_large_for_pillow_is_left_to_it_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 90 * 60 // 2 - 1)  # which refuses from twice as many on
    assert not takes(memoryview(JPEGS[0]))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert takes(memoryview(JPEGS[0]))


# Which library


def test_a_machine_without_a_library_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    with pytest.raises(OptionError, match="no library here decodes JPEGs on cuda:0: pip install 'nvidia-nvimg"):
        open_hardware(CUDA)


class Backend(types.SimpleNamespace):
    def __init__(self, kind: str) -> None:
        super().__init__(kind=kind)


class CodeStream:
    def __init__(self, array: Any) -> None:
        self.data = bytes(array)
        if not self.data.startswith(b"\xff\xd8"):
            raise RuntimeError("Failed to get image info")


class Decoder:
    """As nvidia.nvimgcodec's of version 0.9; of older ones with ``leaving_out``."""

    leaving_out = False

    def __init__(self, device_id: int, backends: list[Backend], options: str) -> None:
        assert [each.kind for each in backends] == ["hardware", "gpu", "hybrid"]

    def decode(self, streams: list[CodeStream], *, params: Any, cuda_stream: int) -> list[Any]:
        assert (params.apply_exif_orientation, cuda_stream) == (False, 7)
        images = [None if len(stream.data) < 500 else simplejpeg.decode_jpeg(stream.data) for stream in streams]
        return [image for image in images if image is not None or not self.leaving_out]


@pytest.fixture
def nvimgcodec(monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = types.ModuleType("nvidia.nvimgcodec")
    library.BackendKind = types.SimpleNamespace(HW_GPU_ONLY="hardware", GPU_ONLY="gpu", HYBRID_CPU_GPU="hybrid")
    library.Backend, library.CodeStream, library.Decoder = Backend, CodeStream, Decoder
    library.DecodeParams = types.SimpleNamespace
    monkeypatch.setitem(sys.modules, "nvidia", types.ModuleType("nvidia"))
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", library)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=7))


def tensors(files: Sequence[bytes]) -> list[torch.Tensor]:
    images = EncodedImages(files)
    return [images.tensor(number) for number in range(len(images))]


@pytest.mark.usefixtures("nvimgcodec")
def test_nvimagecodec_says_none_where_it_refuses_a_file() -> None:
    hardware = open_hardware(CUDA)
    assert type(hardware).__name__ == "NvImageCodec"
    first, *others, last = hardware.decode(tensors([JPEGS[0], JPEGS[0][:400], b"nonsense", JPEGS[1]]))
    assert others == [None, None]
    for image, file in ((first, JPEGS[0]), (last, JPEGS[1])):
        assert image is not None
        assert np.array_equal(image.permute(1, 2, 0).numpy(), simplejpeg.decode_jpeg(file))
    assert hardware.decode(tensors([b"nonsense"])) == [None]


@pytest.mark.usefixtures("nvimgcodec")
def test_of_an_old_nvimagecodec_that_leaves_images_out_none_is_taken_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Decoder, "leaving_out", True)
    hardware = open_hardware(CUDA)
    assert hardware.decode(tensors([JPEGS[0][:400], JPEGS[0]])) == [None, None]
    assert None not in hardware.decode(tensors([JPEGS[1], JPEGS[0]]))


class Torchvision(types.ModuleType):
    """As torchvision.io: it refuses a batch in which it refuses one file."""

    ImageReadMode = types.SimpleNamespace(RGB="RGB")

    def decode_jpeg(self, files: list[torch.Tensor], mode: str, device: torch.device) -> list[torch.Tensor]:
        assert (mode, device) == ("RGB", CUDA)
        if any(len(file) < 500 for file in files):
            raise RuntimeError("Error while decoding JPEG images")
        return [torch.from_numpy(simplejpeg.decode_jpeg(file.numpy())).permute(2, 0, 1) for file in files]


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what was waited for."""
    waited: list[str] = []
    stream = types.SimpleNamespace(synchronize=lambda: waited.append("the current stream"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
    monkeypatch.setitem(sys.modules, "torchvision.io", Torchvision("torchvision.io"))
    return waited


def test_torchvision_refuses_only_the_files_that_it_cannot_decode(torchvision: list[str]) -> None:
    hardware = open_hardware(CUDA)
    assert type(hardware).__name__ == "TorchvisionNvJPEG"
    first, bad, last = hardware.decode(tensors([JPEGS[0], JPEGS[0][:400], JPEGS[1]]))
    assert bad is None
    assert first is not None
    assert last is not None
    assert np.array_equal(first.permute(1, 2, 0).numpy(), simplejpeg.decode_jpeg(JPEGS[0]))


def test_torchvision_does_not_fill_memory_that_earlier_work_still_uses(torchvision: list[str]) -> None:
    hardware = open_hardware(CUDA)
    torchvision.clear()
    hardware.decode(tensors(JPEGS))
    assert torchvision == ["the current stream"]


def test_memory_that_is_used_up_is_no_damage_of_an_image(
    torchvision: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hardware = open_hardware(CUDA)

    def full(*_: Any, **__: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Torchvision, "decode_jpeg", full)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
        hardware.decode(tensors(JPEGS))


def test_a_library_that_decodes_nothing_is_not_taken(torchvision: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("torchvision not compiled with nvJPEG support")

    monkeypatch.setattr(Torchvision, "decode_jpeg", refuse)
    with pytest.raises(OptionError, match="TorchvisionNvJPEG: it decodes no JPEG, as without the nvJPEG library"):
        open_hardware(CUDA)
