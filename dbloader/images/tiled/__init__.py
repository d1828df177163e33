"""Tiled JPEG: an ordinary JPEG from which a crop can be decoded without decoding the rest."""

from dbloader.images.tiled.decode import decode_crop, find_lengths, join_tiles
from dbloader.images.tiled.encode import TILE_WIDTH, TiledJPEG, encode_tiled, find_jpegtran, tile

__all__ = [
    "TILE_WIDTH", "TiledJPEG", "decode_crop", "encode_tiled", "find_jpegtran", "find_lengths", "join_tiles", "tile",
]  # fmt: skip
