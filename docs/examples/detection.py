"""Detect drawn shapes: boxes of a COCO file, cropped with their images. Prints the mAP at an IoU of 0.5.

python detection.py FOLDER [--picture batch.png]

The script makes the data in FOLDER, unless it exists. On two CPUs, it takes less than a minute in all.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drawn_shapes import COLORS, SHAPES, draw_scene, run_dbloader, side_by_side
from PIL import Image, ImageDraw
from torch import nn

from dbloader import LMDBDataset, create_loader
from dbloader.decoding import RandomResizedCrop, ResizeCenterCrop

SIDE, INPUT, CELL = 96, 64, 8  # pixels; a cell predicts at most one shape, with its center in the cell


def make_store(folder: Path, split: str, images: int, seed: int) -> Path:
    """Draw images, write their boxes as COCO does, and convert them."""
    place = folder / f"{split}.lmdb"
    if not place.exists():
        rng = np.random.default_rng(seed)
        (folder / split).mkdir(parents=True, exist_ok=True)
        coco: dict[str, list[Any]] = {"images": [], "annotations": []}
        coco["categories"] = [{"id": number, "name": name} for number, name in enumerate(SHAPES)]
        for number in range(images):
            scene = draw_scene(rng, SIDE)
            scene.image.save(folder / split / f"{number}.jpg", quality=90)
            coco["images"].append({"id": number, "file_name": f"{number}.jpg", "width": SIDE, "height": SIDE})
            for (left, top, right, bottom), label in zip(scene.boxes, scene.labels, strict=True):
                box = {"bbox": [left, top, right - left, bottom - top], "category_id": label, "iscrowd": 0}
                coco["annotations"].append({"id": len(coco["annotations"]), "image_id": number, **box})
        (folder / f"{split}.json").write_text(json.dumps(coco))
        run_dbloader("convert", folder / split, place, "--listing", folder / f"{split}.json")
    return place


def build_model() -> nn.Sequential:
    """Return a network that predicts, for each cell, whether it has a shape's center, and the shape's box and class."""
    layers: list[nn.Module] = []
    for before, after, stride in ((3, 16, 2), (16, 32, 2), (32, 64, 2), (64, 64, 1), (64, 64, 1)):
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(64, 5 + len(SHAPES), 1))


def loss_of(output: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
    found = torch.zeros_like(output[:, 0])
    loss = output.new_zeros(())
    count = max(1, sum(map(len, batch["boxes"])))
    for number, (boxes, labels) in enumerate(zip(batch["boxes"], batch["box_labels"], strict=True)):
        boxes = boxes / CELL
        centers, sizes = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
        columns, rows = centers.long().clamp(max=found.shape[-1] - 1).unbind(1)
        found[number, rows, columns] = 1
        cells = output[number, :, rows, columns].T
        target = torch.cat((centers - torch.stack((columns, rows), 1), sizes.log()), 1)
        loss = loss + nn.functional.l1_loss(cells[:, 1:5], target, reduction="sum") / count
        loss = loss + nn.functional.cross_entropy(cells[:, 5:], labels, reduction="sum") / count
    return loss + nn.functional.binary_cross_entropy_with_logits(output[:, 0], found, reduction="sum") / count


def detections(output: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Return boxes, labels and scores for each image, from cells with a higher score than their neighbors."""
    scores = output[:, 0].sigmoid()
    highest = (nn.functional.max_pool2d(scores[:, None], 3, 1, 1)[:, 0] == scores) & (scores > 0.05)
    result = []
    for image, score, mask in zip(output, scores, highest, strict=True):
        rows, columns = mask.nonzero().unbind(1)
        cells = image[:, rows, columns].T
        centers, half = cells[:, 1:3] + torch.stack((columns, rows), 1), cells[:, 3:5].exp() / 2
        boxes = (torch.cat((centers - half, centers + half), 1) * CELL).clamp(0, INPUT)
        result.append((boxes, cells[:, 5:].argmax(1), score[mask]))
    return result


def overlaps(box: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Return the IoU of ``box`` with each of ``boxes``."""
    sides = (torch.minimum(box[2:], boxes[:, 2:]) - torch.maximum(box[:2], boxes[:, :2])).clamp(min=0)
    both = sides.prod(1)
    return both / ((box[2:] - box[:2]).prod() + (boxes[:, 2:] - boxes[:, :2]).prod(1) - both)


@torch.inference_mode()
def mean_average_precision(model: nn.Module, loader: Any) -> float:
    """Return the average precision, averaged over the shapes. A detection is a hit if its IoU is at least 0.5."""
    model.eval()
    hits: list[list[tuple[float, bool]]] = [[] for _ in SHAPES]
    wanted = [0] * len(SHAPES)
    for batch in loader:
        for (boxes, labels, scores), true, true_labels in zip(
            detections(model(batch["image"]).cpu()), batch["boxes"], batch["box_labels"], strict=True
        ):
            for label in range(len(SHAPES)):
                left = true.cpu()[true_labels.cpu() == label]
                wanted[label] += len(left)
                mine = labels == label
                for score, box in sorted(zip(scores[mine].tolist(), boxes[mine], strict=True), key=lambda one: -one[0]):
                    best = overlaps(box, left)
                    hit = len(left) > 0 and bool(best.max() >= 0.5)
                    hits[label].append((score, hit))
                    if hit:  # each true box counts once
                        left = left[torch.arange(len(left)) != best.argmax()]
    return float(np.mean([average_precision(some, count) for some, count in zip(hits, wanted, strict=True)]))


def average_precision(hits: list[tuple[float, bool]], wanted: int) -> float:
    right = np.array([hit for _, hit in sorted(hits, key=lambda one: -one[0])], bool)
    precision = right.cumsum() / np.arange(1, len(right) + 1)
    highest = np.maximum.accumulate(precision[::-1])[::-1]  # highest precision at this or greater recall
    return float(highest[right].sum() / wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description="Detect drawn shapes.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=500, help="to train on")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--picture", type=Path, help="draw the first batch here, with its boxes")
    options = parser.parse_args()
    torch.manual_seed(0)
    fields = ("image", "boxes", "box_labels")  # a batch has one tensor of boxes and labels for each image
    train = LMDBDataset(make_store(options.folder, "train", options.images, 0), fields=fields)
    val = LMDBDataset(make_store(options.folder, "val", 100, 1), fields=fields)

    # Boxes are cropped, resized and flipped with the image. Boxes outside the crop are dropped, with their labels.
    common: dict[str, Any] = {"is_training": True, "transform": RandomResizedCrop(INPUT, scale=(0.5, 1.0))}
    if options.picture:
        raw = create_loader(train, batch_size=8, normalize=None, device="cpu", **common)
        side_by_side(draw(next(iter(raw))), options.picture)
    loader = create_loader(train, batch_size=8, **common)
    center = ResizeCenterCrop(INPUT, crop_pct=1.0)
    evaluation = create_loader(val, batch_size=50, transform=center)
    model = build_model().to(loader.device)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=options.epochs * len(loader))
    for epoch in range(options.epochs):
        model.train()
        for batch in loader:
            loss = loss_of(model(batch["image"]), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    print(f"mAP50: {mean_average_precision(model, evaluation):.3f}")


def draw(batch: dict[str, Any]) -> list[Image.Image]:
    drawn = []
    for pixels, boxes, labels in zip(batch["image"], batch["boxes"], batch["box_labels"], strict=True):
        image = Image.fromarray(pixels.permute(1, 2, 0).numpy()).resize((2 * INPUT, 2 * INPUT))
        for box, label in zip(boxes, labels, strict=True):
            ImageDraw.Draw(image).rectangle(
                [2 * float(value) for value in box], outline=COLORS[1 + int(label)], width=2
            )
        drawn.append(image)
    return drawn


if __name__ == "__main__":
    main()
