"""Decoding the images of a batch where the batch goes: on a GPU, beside the training."""

from dbloader.device_decoding.decoder import DeviceDecoder

__all__ = ["DeviceDecoder"]
