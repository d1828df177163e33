"""Decode the images of a batch on the device that the batch goes to."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import interpolate, pad

from dbloader._describe import short_repr
from dbloader._machine import cpu_count
from dbloader.decoding.crop import TORCH_FILTERS
from dbloader.decoding.decoder import Decoder
from dbloader.decoding.exif import UPRIGHT, read_orientation
from dbloader.device.encoded import EncodedImages
from dbloader.device.hardware import open_hardware, takes
from dbloader.device.transfer import resolve_device
from dbloader.errors import OptionError
from dbloader.images.pillow import open_pillow

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Self

    from dbloader.device.hardware import HardwareDecoder
    from dbloader.device.transfer import Device


class DeviceDecoder:
    """Decodes the EncodedImages of a batch to one tensor on a device, as a Decoder does on the CPU.

    Experimental: its parts for CUDA are tested with stand-ins for the libraries, and have not run on a GPU yet.

    On CUDA, nvImageCodec or torchvision decodes JPEGs, which are then cropped, resized and mirrored as the Decoder's
    ``choose_crop`` says for the same random numbers. All work is queued on the device's current stream. The pixels
    differ by a few levels from those of the CPU: the libraries round differently, and the Decoder's ``scaled`` has no
    effect.

    The Decoder itself, in threads on the CPU, decodes what the libraries do not take: other formats, CMYK and other
    rare JPEGs, and those with an EXIF orientation. On a device without a library (CPU, MPS) it decodes everything.

    It can be the first module of a Preparation. Threads may share it. It is pickled without the library's handle, which
    is opened again after unpickling.

    Args:
        decoder: A Decoder with a ``size``.
        device: Where the images go, as for a loader.

    Attributes:
        hardware: The library that decodes on the device, or None.

    Raises:
        OptionError: The Decoder has no ``size``, the device is not present, or it is a CUDA device and no library
            decodes JPEGs on it. From a call: the images have random numbers for another Decoder.
        TypeError: The Decoder is something else. From a call: the argument is not EncodedImages.
        DamagedImageError: From a call: an image does not decode; a note says which. On CUDA, damage that a library
            decodes without an error is not found; the Decoder also refuses images with warnings.
        NotAnImageError: From a call: an image is in no known format.
    """

    def __init__(self, decoder: Decoder, device: Device) -> None:
        if not isinstance(decoder, Decoder):
            raise TypeError(f"decoder must be a Decoder, such as RandomResizedCrop(224), got {short_repr(decoder)}")
        if decoder.size is None:
            raise OptionError(f"a batch must have images of one size: take a decoder that has a size, got {decoder!r}")
        self.decoder = decoder
        self.device = resolve_device(device)
        self._size = decoder.size
        self.hardware: HardwareDecoder | None = None
        if self.device.type == "cuda":  # pragma: no cover - needs a CUDA device
            self.hardware = open_hardware(self.device)

    def __reduce__(self) -> tuple[type[Self], tuple[Decoder, torch.device]]:
        return type(self), (self.decoder, self.device)

    def __call__(self, images: EncodedImages) -> torch.Tensor:
        """Decode a batch.

        Returns:
            uint8, shape (N, 3, height, width), RGB, on the device, in memory as torch.channels_last.
        """
        if not isinstance(images, EncodedImages):
            raise TypeError(f"images must be EncodedImages, which are not decoded yet, got {type(images).__name__}")
        draws, given = self.decoder.draws, images.random_numbers.shape[1]
        if given != draws:
            raise OptionError(f"each image must have {draws} random numbers for {self.decoder!r}, got {given}")
        if self.hardware is None:
            return self._on_cpu(images, range(len(images)), pinned=False).to(self.device)
        result = _empty(len(images), self._size, device=self.device)
        rest = self._on_hardware(self.hardware, images, result)
        if rest:
            decoded = self._on_cpu(images, rest, pinned=self.device.type == "cuda")
            for number, image in zip(rest, decoded, strict=True):
                result[number].copy_(image, non_blocking=True)
        return result

    def __repr__(self) -> str:
        library = "no library" if self.hardware is None else type(self.hardware).__name__
        return f"{type(self).__name__}({self.decoder!r}, {str(self.device)!r}) with {library}"

    def _on_hardware(self, hardware: HardwareDecoder, images: EncodedImages, result: torch.Tensor) -> list[int]:
        """Decode images with the library into the result; return the numbers of the others."""
        taken = [number for number in range(len(images)) if self._takes(images.file(number))]
        rest = set(range(len(images)))
        decoded = hardware.decode([images.tensor(number) for number in taken]) if taken else []
        for number, image in zip(taken, decoded, strict=True):
            if image is not None:
                self._fit(image, images.random_numbers[number], result[number])
                rest.remove(number)
        return sorted(rest)

    def _takes(self, file: memoryview) -> bool:
        """Return whether the library decodes a file to the pixels that the Decoder would give, or nearly."""
        if not takes(file):
            return False
        if not self.decoder.exif_transpose:
            return True
        try:
            with open_pillow(file) as image:
                return read_orientation(image) == UPRIGHT
        except Exception:  # of any kind, from Pillow; the Decoder will say what is wrong
            return False

    def _fit(self, image: torch.Tensor, random_numbers: npt.NDArray[np.float64], result: torch.Tensor) -> None:
        """Crop, resize and mirror an image into the result; both are uint8, shape (3, height, width)."""
        crop = self.decoder.choose_crop(random_numbers, image.shape[2], image.shape[1])
        image = image[:, crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
        resized = crop.resized or self._size
        if image.shape[1:] != resized:
            if crop.interpolation not in TORCH_FILTERS:
                raise OptionError(
                    f"interpolation must be one of {', '.join(TORCH_FILTERS)} to decode on a device, got "
                    f"{crop.interpolation!r}: choose one of these, or decode_on='workers'"
                )
            # In floats, since CUDA does not antialias bytes. The bicubic kernel overshoots.
            part = image[None].to(torch.float32, memory_format=torch.contiguous_format)
            image = interpolate(part, size=resized, mode=crop.interpolation, antialias=True)[0].round_().clamp_(0, 255)
        if resized != self._size:
            row, column = crop.window
            height, width = self._size
            # Negative padding cuts.
            image = pad(image, (-column, column + width - resized[1], -row, row + height - resized[0]))
        result.copy_(image.flip(2) if crop.flip else image)

    def _on_cpu(self, images: EncodedImages, wanted: Sequence[int], *, pinned: bool) -> torch.Tensor:
        """Decode some of the images in threads: uint8, shape (len(wanted), 3, height, width)."""
        result = _empty(len(wanted), self._size, device=torch.device("cpu"), pinned=pinned)

        def decode(at: int) -> None:
            number = wanted[at]
            try:
                result[at].copy_(self.decoder(images.file(number), images.random_numbers[number]))
            except Exception as error:
                if hasattr(error, "add_note"):  # Python 3.11
                    error.add_note(f"in {images.describe(number)}")
                raise

        with ThreadPoolExecutor(max(1, min(cpu_count(), len(wanted)))) as threads:
            for _ in threads.map(decode, range(len(wanted))):
                pass
        return result


def _empty(count: int, size: tuple[int, int], device: torch.device, *, pinned: bool = False) -> torch.Tensor:
    layout = torch.channels_last
    return torch.empty((count, 3, *size), dtype=torch.uint8, device=device, memory_format=layout, pin_memory=pinned)
