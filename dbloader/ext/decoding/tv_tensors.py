"""Convert samples to torchvision's types of masks and boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from dbloader.decoding.masks_and_boxes import has_one_channel, values_of


def as_tv_tensors(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample with masks and boxes as torchvision's types, so v2 transforms change them with the image.

    Make this function the first step of a dataset's ``transforms``::

        v2.Compose([as_tv_tensors, v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.PILToTensor()])

    Args:
        sample: A dict with PIL images, and perhaps boxes, from a dataset with ``fields``.

    Returns:
        A new dict. PIL images of one channel become ``Mask``: shape (height, width), uint8, int32 or float32. ``image``
        and other PIL images are unchanged, and v2 treats them as images. ``boxes``, float32 of shape (n, 4) in pixels,
        become ``BoundingBoxes`` in the format XYXY. Their canvas has the size of ``image``, or of the first PIL image.
        Arrays with a row for each box become tensors, for ``v2.SanitizeBoundingBoxes``.

    Raises:
        ImportError: torchvision is not installed.
    """
    from torchvision import tv_tensors

    images = {name: value for name, value in sample.items() if isinstance(value, Image.Image)}
    result = dict(sample)
    for name, image in images.items():
        if name != "image" and has_one_channel(image):
            result[name] = tv_tensors.Mask(torch.from_numpy(values_of(image)))
    boxes = sample.get("boxes")
    if isinstance(boxes, list):  # boxes of a JSON listing
        boxes = result["boxes"] = np.array(boxes, np.float32).reshape(len(boxes), 4)
    if isinstance(boxes, np.ndarray) and boxes.shape[1:] == (4,) and images:
        canvas = images.get("image") or next(iter(images.values()))
        for name, value in result.items():
            if isinstance(value, np.ndarray) and value.shape[:1] == (len(boxes),):
                result[name] = torch.from_numpy(value.copy())
        size = (canvas.height, canvas.width)
        result["boxes"] = tv_tensors.BoundingBoxes(result["boxes"], format="XYXY", canvas_size=size)
    return result
