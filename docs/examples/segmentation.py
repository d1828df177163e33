"""Segment drawn shapes: images and masks in one store, cropped together. Prints the mean IoU of the classes.

python segmentation.py FOLDER [--picture batch.png]

The script makes the data in FOLDER, unless it exists. On two CPUs, it takes less than a minute in all.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from drawn_shapes import COLORS, SHAPES, draw_scene, run_dbloader, side_by_side
from PIL import Image
from torch import nn

from dbloader import LMDBDataset, create_loader
from dbloader.decoding import RandomResizedCrop, ResizeCenterCrop

SIDE, CROP = 96, 64
CLASSES = 1 + len(SHAPES)


def make_store(folder: Path, split: str, images: int, seed: int) -> Path:
    """Draw images and masks, list them in a table, and convert them."""
    place = folder / f"{split}.lmdb"
    if not place.exists():
        rng = np.random.default_rng(seed)
        rows = ["path,mask"]
        for kind in ("images", "masks"):
            (folder / split / kind).mkdir(parents=True, exist_ok=True)
        for number in range(images):
            scene = draw_scene(rng, SIDE)
            scene.image.save(folder / split / f"images/{number}.jpg", quality=90)
            scene.mask.save(folder / split / f"masks/{number}.png")
            rows.append(f"images/{number}.jpg,masks/{number}.png")
        (folder / f"{split}.csv").write_text("\n".join(rows) + "\n")
        run_dbloader("convert", folder / split, place, "--listing", folder / f"{split}.csv", "--file-field", "mask")
    return place


class SmallUNet(nn.Module):
    """Halves the image four times, then doubles it again, each time joined with the earlier result of the same size."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList((block(3, 16, 2), block(16, 32, 2), block(32, 64, 2), block(64, 64, 2)))
        self.up = nn.ModuleList((block(64 + 64, 64), block(64 + 32, 32), block(32 + 16, 32)))
        self.last = nn.Conv2d(32, CLASSES, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        levels = []
        for layers in self.down:
            image = layers(image)
            levels.append(image)
        for layers, level in zip(self.up, levels[-2::-1], strict=True):
            image = layers(torch.cat((nn.functional.interpolate(image, scale_factor=2.0), level), 1))
        return nn.functional.interpolate(self.last(image), scale_factor=2.0, mode="bilinear")


def block(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


@torch.inference_mode()
def mean_iou(model: nn.Module, loader: object) -> float:
    """Return the mean of the classes' IoUs, each over the pixels of all images together."""
    model.eval()
    counts = torch.zeros(CLASSES, CLASSES, dtype=torch.int64)
    for batch in loader:  # type: ignore[attr-defined]
        pairs = batch["mask"].long() * CLASSES + model(batch["image"]).argmax(1)
        counts += torch.bincount(pairs.flatten(), minlength=CLASSES**2).view(CLASSES, CLASSES).cpu()
    both = counts.diagonal()
    return float((both / (counts.sum(0) + counts.sum(1) - both)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Segment drawn shapes.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=400, help="to train on")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--picture", type=Path, help="draw the first batch here: images above their masks")
    options = parser.parse_args()
    torch.manual_seed(0)
    fields = ("image", "mask")
    train = LMDBDataset(make_store(options.folder, "train", options.images, 0), fields=fields)
    val = LMDBDataset(make_store(options.folder, "val", 100, 1), fields=fields)

    crop = RandomResizedCrop(CROP, scale=(0.4, 1.0))
    if options.picture:
        raw = create_loader(train, batch_size=8, is_training=True, transform=crop, normalize=None, device="cpu")
        batch = next(iter(raw))
        drawn = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in batch["image"]]
        drawn += [Image.fromarray(np.array(COLORS, np.uint8)[mask]) for mask in batch["mask"].numpy()]
        side_by_side(drawn, options.picture)

    # Image and mask get the same crop, flip and size. Masks are resized by nearest pixel, so no classes are mixed.
    loader = create_loader(train, batch_size=8, is_training=True, transform=crop)
    evaluation = create_loader(val, batch_size=50, transform=ResizeCenterCrop(SIDE, crop_pct=1.0))
    model = SmallUNet().to(loader.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=options.epochs * len(loader))
    for epoch in range(options.epochs):
        model.train()
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["mask"].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    print(f"mean IoU: {mean_iou(model, evaluation):.3f}")


if __name__ == "__main__":
    main()
