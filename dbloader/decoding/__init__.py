"""From the bytes of an image to what a network or a transform takes."""

from dbloader.decoding.base import Crop, Decoder
from dbloader.decoding.center_crop import ResizeCenterCrop
from dbloader.decoding.pil import decode_pil
from dbloader.decoding.random_crop import RandomResizedCrop
from dbloader.decoding.whole import DecodeTensor

__all__ = ["Crop", "DecodeTensor", "Decoder", "RandomResizedCrop", "ResizeCenterCrop", "decode_pil"]
