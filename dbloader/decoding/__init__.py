"""From the bytes of an image to what a network or a transform takes."""

from dbloader.decoding.center_crop import ResizeCenterCrop
from dbloader.decoding.crop import Crop
from dbloader.decoding.decoder import Decoder, DecodeTensor
from dbloader.decoding.modes import DecodeOpaque, decode_gray
from dbloader.decoding.multi_crop import MultiCrop
from dbloader.decoding.open import decode_pil
from dbloader.decoding.random_crop import RandomCrop, RandomResizedCrop
from dbloader.decoding.tv_tensors import as_tv_tensors
from dbloader.decoding.unchanged import decode_unchanged

__all__ = [
    "Crop", "DecodeOpaque", "DecodeTensor", "Decoder", "MultiCrop", "RandomCrop", "RandomResizedCrop",
    "ResizeCenterCrop", "as_tv_tensors", "decode_gray", "decode_pil", "decode_unchanged",
]  # fmt: skip
