"""Learn features of drawn textures without labels, from several crops of each image. Prints how well neighbors agree.

python multicrop.py FOLDER [--picture batch.png]

The network learns features that are closer for crops of one image than for crops of different images (InfoNCE). The
labels only measure how often the nearest neighbors have the same class. The script makes the data in FOLDER, unless it
exists. On two CPUs, it takes less than a minute in all.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drawn_shapes import run_dbloader, side_by_side
from PIL import Image
from torch import nn

from dbloader import LMDBDataset, create_loader
from dbloader.decoding import MultiCrop, RandomResizedCrop, ResizeCenterCrop

SIDE = 96
TEXTURES = ("checks", "dots", "horizontal", "rings", "slanted", "vertical")


def draw_texture(rng: np.random.Generator, name: str) -> Image.Image:
    """Return a noisy pattern of two random colors, with a random period and phase."""
    period, noise = rng.uniform(8, 14), rng.normal(0, 40, (SIDE, SIDE, 3))
    x, y = np.meshgrid(*(2 * np.pi / period * np.arange(SIDE) + phase for phase in rng.uniform(0, 6.28, 2)))
    pattern = {
        "checks": np.sin(x) * np.sin(y),
        "dots": np.maximum(np.sin(x) + np.sin(y), 0) - 1,
        "horizontal": np.sin(y),
        "rings": np.sin(np.hypot(x - x.mean(), y - y.mean())),
        "slanted": np.sin((x + y) * 0.71),
        "vertical": np.sin(x),
    }[name]
    first, second = rng.uniform(30, 225, (2, 3))
    share = (pattern[..., None] + 1) / 2
    return Image.fromarray((first * share + second * (1 - share) + noise).clip(0, 255).astype(np.uint8))


def make_store(folder: Path, split: str, images: int, seed: int) -> Path:
    """Draw an image folder, with a folder for each class, and convert it."""
    place = folder / f"{split}.lmdb"
    if not place.exists():
        rng = np.random.default_rng(seed)
        for number in range(images):
            name = TEXTURES[number % len(TEXTURES)]
            (folder / split / name).mkdir(parents=True, exist_ok=True)
            draw_texture(rng, name).save(folder / split / name / f"{number:04}.jpg", quality=90)
        run_dbloader("convert", folder / split, place)
    return place


def recolor(images: torch.Tensor) -> torch.Tensor:
    """Change the colors of each crop at random, so that the network cannot recognize a crop by its colors."""
    mixing = torch.randn(len(images), 3, 3, device=images.device)
    return torch.einsum("nij,njhw->nihw", mixing / mixing.norm(dim=2, keepdim=True), images)


def build_model() -> nn.Sequential:
    layers: list[nn.Module] = [nn.InstanceNorm2d(3)]  # removes brightness and contrast, which differ within a class
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 5, 2, 2, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())  # images of any size


def loss_of(crops: list[torch.Tensor], temperature: float = 0.2) -> torch.Tensor:
    """Return the mean InfoNCE loss over all pairs of a large crop and another crop."""
    crops = [nn.functional.normalize(crop, dim=1) for crop in crops]
    own = torch.arange(len(crops[0]), device=crops[0].device)
    pairs = [(large, other) for large in (0, 1) for other in range(len(crops)) if other != large]
    losses = [nn.functional.cross_entropy(crops[one] @ crops[other].T / temperature, own) for one, other in pairs]
    return torch.stack(losses).mean()


@torch.inference_mode()
def features(model: nn.Module, loader: Any) -> tuple[torch.Tensor, torch.Tensor]:
    model.eval()
    found = [(model(images), labels) for images, labels in loader]
    return nn.functional.normalize(torch.cat([one for one, _ in found]), dim=1), torch.cat([one for _, one in found])


def neighbors_accuracy(model: nn.Module, known: Any, asked: Any, k: int = 9) -> float:
    """Return the share of images whose class is the most frequent among their k nearest neighbors."""
    (known_features, known_labels), (asked_features, labels) = features(model, known), features(model, asked)
    nearest = (asked_features @ known_features.T).topk(k).indices
    return float((known_labels[nearest].mode(1).values == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn features of drawn textures without labels.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=600, help="to train on")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--picture", type=Path, help="draw crops here, those of an image below each other")
    options = parser.parse_args()
    torch.manual_seed(0)
    train = LMDBDataset(make_store(options.folder, "train", options.images, 0))
    val = LMDBDataset(make_store(options.folder, "val", 120, 1))

    # Each image is read and decoded once for its six crops. No flip: it would turn the slanted stripes.
    large = RandomResizedCrop(64, scale=(0.4, 1.0), flip=0)
    small = RandomResizedCrop(32, scale=(0.1, 0.3), flip=0)
    crops = MultiCrop([(2, large), (4, small)])
    loader = create_loader(train, batch_size=50, is_training=True, transform=crops, preparation=recolor)
    if options.picture:
        raw = create_loader(train, batch_size=8, is_training=True, transform=crops, normalize=None, device="cpu")
        images, _ = next(iter(raw))
        drawn = [Image.fromarray(one.permute(1, 2, 0).numpy()) for crop in images for one in crop]
        side_by_side([one.resize((64, 64)) for one in drawn], options.picture)
    center: dict[str, Any] = {"batch_size": 60, "transform": ResizeCenterCrop(SIDE, crop_pct=1.0)}
    known, asked = create_loader(train, **center), create_loader(val, **center)

    model, head = build_model().to(loader.device), nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
    head.to(loader.device)
    untrained = neighbors_accuracy(model, known, asked)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=3e-3)
    for epoch in range(options.epochs):
        model.train()
        for images, _ in loader:
            loss = loss_of([head(model(crop)) for crop in images])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    accuracy = neighbors_accuracy(model, known, asked)
    print(f"accuracy of neighbors: {accuracy:.3f}, untrained {untrained:.3f}, chance {1 / len(TEXTURES):.3f}")


if __name__ == "__main__":
    main()
