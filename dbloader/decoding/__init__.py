"""Decode image files to tensors or PIL images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbloader._lazy import lazy_exports

if TYPE_CHECKING:
    from dbloader.decoding.crops import RandomCrop as RandomCrop
    from dbloader.decoding.crops import RandomResizedCrop as RandomResizedCrop
    from dbloader.decoding.crops import ResizeCenterCrop as ResizeCenterCrop
    from dbloader.decoding.decoder import Decoder as Decoder
    from dbloader.decoding.decoder import DecodeTensor as DecodeTensor
    from dbloader.decoding.open import decode_gray as decode_gray
    from dbloader.decoding.open import decode_pil as decode_pil
    from dbloader.decoding.render import Crop as Crop
    from dbloader.decoding.unchanged import decode_unchanged as decode_unchanged
    from dbloader.ext.decoding.multi_crop import MultiCrop as MultiCrop
    from dbloader.ext.decoding.tv_tensors import as_tv_tensors as as_tv_tensors

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "Crop": "decoding.render",
        "DecodeTensor": "decoding.decoder",
        "Decoder": "decoding.decoder",
        "MultiCrop": "ext.decoding.multi_crop",
        "RandomCrop": "decoding.crops",
        "RandomResizedCrop": "decoding.crops",
        "ResizeCenterCrop": "decoding.crops",
        "as_tv_tensors": "ext.decoding.tv_tensors",
        "decode_gray": "decoding.open",
        "decode_pil": "decoding.open",
        "decode_unchanged": "decoding.unchanged",
    },
)
