"""Tasks for the contenders of transforms.py: which transforms to apply, and to which images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from contender import SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from torch.utils.data import RandomSampler

RESIZED = 256  # pixels of the shorter side before the center is cropped

Transforms = Literal["torchvision", "floats", "timm", "timm, no jitter", "validation"]
# ImageNet's mean and standard deviation.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Task(NamedTuple):
    """Transforms, and how many images make a batch.

    Attributes:
        transforms: Name of the transforms, which ``user_transform`` makes.
        batch: Images in a batch.
    """

    transforms: Transforms
    batch: int = 64

    @property
    def is_training(self) -> bool:
        return self.transforms != "validation"

    @property
    def kind(self) -> str:
        """The dtype of a batch. Transforms that make floats also normalize."""
        return "uint8" if self.transforms in ("torchvision", "validation") else "float32"

    def sampler(self, dataset: Sized) -> RandomSampler:
        """Return the order of the images, the same kind for all of torch's loaders."""
        from torch.utils.data import RandomSampler

        return RandomSampler(dataset)


def user_transform(transforms: Transforms) -> Callable[[Any], Any]:
    """Return the transform from PIL images to tensors that a user would write with torchvision or timm."""
    made: Callable[[Any], Any]
    if transforms.startswith("timm"):
        from timm.data import create_transform

        jitter = {"color_jitter": None} if transforms == "timm, no jitter" else {}
        made = create_transform(SIZE, is_training=True, **jitter)
    elif transforms == "floats":
        from torchvision import transforms as v1

        crops = (v1.RandomResizedCrop(SIZE), v1.RandomHorizontalFlip())
        made = v1.Compose([*crops, v1.ToTensor(), v1.Normalize(MEAN, STD)])
    else:
        from torchvision.transforms import v2

        random = (v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip())
        center = (v2.Resize(RESIZED), v2.CenterCrop(SIZE))
        made = v2.Compose([*(center if transforms == "validation" else random), v2.PILToTensor()])
    return made
