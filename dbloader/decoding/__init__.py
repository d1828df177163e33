"""Decode image files to tensors or PIL images."""

from dbloader.decoding.crops import RandomCrop, RandomResizedCrop, ResizeCenterCrop
from dbloader.decoding.decoder import Decoder, DecodeTensor
from dbloader.decoding.multi_crop import MultiCrop
from dbloader.decoding.open import decode_gray, decode_pil
from dbloader.decoding.render import Crop
from dbloader.decoding.tv_tensors import as_tv_tensors
from dbloader.decoding.unchanged import decode_unchanged

__all__ = [
    "Crop", "DecodeTensor", "Decoder", "MultiCrop", "RandomCrop", "RandomResizedCrop", "ResizeCenterCrop",
    "as_tv_tensors", "decode_gray", "decode_pil", "decode_unchanged",
]  # fmt: skip
