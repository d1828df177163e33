"""Train a small network on the two stores that scripts/demo makes, as an example of a training script.

python scripts/parts/demo_train.py TRAIN TEST [--picture FILE] [--epochs N]
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image, ImageDraw
from torch import nn

from dbloader import LMDBDataset, create_loader
from dbloader.device import Normalize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dbloader import PrefetchLoader

PIXELS = 64  # height and width of the network's images
NORMALIZE = Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))  # scales the network's input to -1 to 1


def network(classes: int) -> nn.Module:
    """A small convolutional network for RGB images."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * 64, classes))


def accuracy(model: nn.Module, loader: PrefetchLoader[Any]) -> float:
    """Return the share of images that the model classifies correctly."""
    model.eval()
    right = total = 0
    with torch.inference_mode():
        for images, labels in loader:
            right += int((model(images).argmax(1) == labels).sum())
            total += len(labels)
    return right / total


def contact_sheet(images: torch.Tensor, labels: torch.Tensor, classes: Sequence[str], path: str) -> None:
    """Save a picture of a batch, each image as the network gets it, with the name of its class below."""
    columns, side, margin, text = 8, 2 * PIXELS, 8, 14
    pixels = images.cpu().add(1).mul(127.5).round().byte()
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * (side + margin) + margin, rows * (side + text + margin) + margin), "white")
    draw = ImageDraw.Draw(sheet)
    for position, (pixel, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
        x = margin + position % columns * (side + margin)
        y = margin + position // columns * (side + text + margin)
        sheet.paste(Image.fromarray(pixel.permute(1, 2, 0).numpy()).resize((side, side)), (x, y))
        draw.text((x + side // 2, y + side + 1), classes[label], fill="black", anchor="ma")
    sheet.save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on a store of images.")
    parser.add_argument("train", help="store to train on")
    parser.add_argument("test", help="store to measure the accuracy on")
    parser.add_argument("--picture", help="PNG file to show a batch in")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()

    torch.manual_seed(0)
    train = LMDBDataset(options.train)
    test = LMDBDataset(options.test)
    print(train)
    loader = create_loader(train, PIXELS, 64, is_training=True, normalize=NORMALIZE)  # random crops and flips
    test_loader = create_loader(test, PIXELS, 64, normalize=NORMALIZE)  # center crops

    model = network(len(train.classes)).to(loader.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    picture = options.picture
    for epoch in range(options.epochs):
        model.train()
        started = time.perf_counter()
        for images, labels in loader:
            if picture:
                contact_sheet(images, labels, train.classes, picture)
                print(f"a batch as the network gets it, with its labels: {picture}")
                picture = None
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        seconds = time.perf_counter() - started
        print(
            f"epoch {epoch + 1}: loss {loss.item():.3f}, {len(train) / seconds:,.0f} images/s on {loader.device}, "
            f"{loader.stats().waiting:.0%} of the time waiting for data",
        )
    share = accuracy(model, test_loader)
    print(f"accuracy on {len(test):,} images, cut from parts of the photographs that were not trained on: {share:.1%}")
    loader.close()
    test_loader.close()


if __name__ == "__main__":
    main()
