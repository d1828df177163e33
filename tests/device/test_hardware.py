"""Which files the libraries on a GPU take, which library decodes them, and what becomes of those that it refuses."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image

from dbloader.device.encoded import EncodedImages
from dbloader.device.hardware import open_hardware, takes
from dbloader.errors import OptionError
from tests.support.images import encoded
from tests.support.jpegs import draw, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

CUDA = torch.device("cuda", 0)
JPEGS = [encode(draw(90, 60)), encode(draw(40, 80), progressive=True), encode(draw(33, 31, "L"))]


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
        (encode(draw(90, 60), subsampling="4:4:4"), True),
        (encoded(draw(50, 70), "PNG"), False),
        (encode(draw(90, 60, "CMYK")), False),
        (encode(draw(90, 60), keep_rgb=True), False),
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
