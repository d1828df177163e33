"""Train a small network on the two stores that scripts/demo makes: what a training script with dbloader looks like.

python scripts/parts/demo_train.py TRAIN TEST [--picture FILE] [--epochs N] [--workers N]
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.data import DataLoader

from dbloader import LMDBDataset, PrefetchLoader

if TYPE_CHECKING:
    from collections.abc import Sequence

Batch = tuple[torch.Tensor, torch.Tensor]


def to_tensor(image: Image.Image) -> torch.Tensor:
    """Return a PIL image as uint8, shape (channels, height, width)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def network(classes: int) -> nn.Module:
    """A small convolutional network for RGB images of 32 x 32 pixels."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 8 * 8, classes),
    )  # fmt: skip


def normalized(images: torch.Tensor) -> torch.Tensor:
    """Return uint8 images as float32 from -1 to 1."""
    return images.float().div(127.5).sub(1)


def accuracy(model: nn.Module, loader: PrefetchLoader[Any]) -> float:
    """Return the share of images that the model classifies correctly."""
    model.eval()
    right = total = 0
    with torch.inference_mode():
        for images, labels in loader:
            right += int((model(normalized(images)).argmax(1) == labels).sum())
            total += len(labels)
    return right / total


def contact_sheet(images: torch.Tensor, labels: torch.Tensor, classes: Sequence[str], path: str) -> None:
    """Save a picture of a batch, each image with the name of its class below it."""
    columns, scale, margin, text = 8, 3, 8, 14
    height, width = images.shape[2] * scale, images.shape[3] * scale
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * (width + margin) + margin, rows * (height + text + margin) + margin), "white")
    draw = ImageDraw.Draw(sheet)
    for position, (pixels, label) in enumerate(zip(images.cpu(), labels.tolist(), strict=True)):
        x = margin + position % columns * (width + margin)
        y = margin + position // columns * (height + text + margin)
        image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        sheet.paste(image.resize((width, height), Image.Resampling.NEAREST), (x, y))
        draw.text((x + width // 2, y + height + 1), classes[label], fill="black", anchor="ma")
    sheet.save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on a store of digits.")
    parser.add_argument("train", help="store to train on")
    parser.add_argument("test", help="store to measure the accuracy on")
    parser.add_argument("--picture", help="PNG file to show a batch in")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = LMDBDataset(options.train, transform=to_tensor)
    test = LMDBDataset(options.test, transform=to_tensor)
    print(train)
    workers = {"num_workers": options.workers, "persistent_workers": options.workers > 0}
    loader = PrefetchLoader(DataLoader(train, 64, shuffle=True, **workers), device)
    test_loader = PrefetchLoader(DataLoader(test, 256), device)

    model = network(len(train.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(options.epochs):
        model.train()
        started = time.perf_counter()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(normalized(images)), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        seconds = time.perf_counter() - started
        print(
            f"epoch {epoch + 1}: loss {loss.item():.3f}, {len(train) / seconds:,.0f} images/s on {device}, "
            f"{loader.stats().waiting:.0%} of the time waiting for data",
        )
    print(f"accuracy on {len(test):,} images not trained on: {accuracy(model, test_loader):.1%}")
    if options.picture:
        images, labels = next(iter(loader))
        contact_sheet(images, labels, [name[2:] for name in train.classes], options.picture)
        print(f"a batch with its labels: {options.picture}")
    loader.close()


if __name__ == "__main__":
    main()
