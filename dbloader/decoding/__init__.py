"""From the bytes of an image to what a network or a transform takes."""

from dbloader.decoding.pil import decode_pil

__all__ = ["decode_pil"]
