"""Double the resolution of drawn images: pairs of two sizes in one store. Prints the PSNR, and bicubic resizing's PSNR.

python super_resolution.py FOLDER [--picture batch.png]

The script makes the data in FOLDER, unless it exists. On two CPUs, it takes less than a minute in all.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drawn_shapes import draw_scene, run_dbloader, side_by_side
from PIL import Image
from torch import nn

from dbloader import LMDBDataset, create_loader
from dbloader.decoding import RandomCrop, ResizeCenterCrop

SIDE, CROP = 48, 32  # pixels, of the small images


def make_store(folder: Path, split: str, images: int, seed: int) -> Path:
    """Draw images, make smaller ones, and convert the pairs: the small one is the image, the large one a field."""
    place = folder / f"{split}.lmdb"
    if not place.exists():
        rng = np.random.default_rng(seed)
        rows = ["path,large"]
        for kind in ("small", "large"):
            (folder / split / kind).mkdir(parents=True, exist_ok=True)
        for number in range(images):
            large = draw_scene(rng, 4 * SIDE, most=8).image.resize((2 * SIDE, 2 * SIDE), Image.Resampling.BICUBIC)
            large.save(folder / split / f"large/{number}.png")
            large.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(folder / split / f"small/{number}.png")
            rows.append(f"small/{number}.png,large/{number}.png")
        (folder / f"{split}.csv").write_text("\n".join(rows) + "\n")
        run_dbloader("convert", folder / split, place, "--listing", folder / f"{split}.csv", "--file-field", "large")
    return place


def bicubic(small: torch.Tensor) -> torch.Tensor:
    return nn.functional.interpolate(small, scale_factor=2.0, mode="bicubic")


class Doubled(nn.Module):
    """Adds a correction to the bicubic image: four values for each pixel and color of the small image."""

    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        last = nn.Conv2d(width, 12, 3, padding=1)
        nn.init.zeros_(last.weight)  # so an untrained network is bicubic resizing
        nn.init.zeros_(last.bias)  # type: ignore[arg-type]
        self.layers = nn.Sequential(*layers, last, nn.PixelShuffle(2))

    def forward(self, small: torch.Tensor) -> torch.Tensor:
        better: torch.Tensor = bicubic(small) + self.layers(small)
        return better


def pair(batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both images, scaled to 0 to 1. The loader could normalize only the small image, so it normalizes none."""
    return batch["image"].float() / 255, batch["large"].float() / 255


@torch.inference_mode()
def psnr(enlarge: Any, loader: Any) -> float:
    """Return the mean over the images of the peak signal-to-noise ratio in dB."""
    values = []
    for batch in loader:
        small, large = pair(batch)
        errors = (enlarge(small).clamp(0, 1) - large).square().mean((1, 2, 3))
        values += (-10 * errors.log10()).tolist()
    return float(np.mean(values))


def main() -> None:
    parser = argparse.ArgumentParser(description="Double the resolution of drawn images.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=300, help="to train on")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--picture", type=Path, help="draw a batch here: small, bicubic, by the network, large")
    options = parser.parse_args()
    torch.manual_seed(0)
    fields = ("image", "large")
    train = LMDBDataset(make_store(options.folder, "train", options.images, 0), fields=fields)
    val = LMDBDataset(make_store(options.folder, "val", 50, 1), fields=fields)

    # Nothing is resized. The large image is cropped at the same place; its crop is twice as large.
    common: dict[str, Any] = {"normalize": None}
    loader = create_loader(train, batch_size=8, is_training=True, transform=RandomCrop(CROP), **common)
    evaluation = create_loader(val, batch_size=25, transform=ResizeCenterCrop(SIDE, crop_pct=1.0), **common)
    model = Doubled().to(loader.device)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=options.epochs * len(loader))
    for epoch in range(options.epochs):
        for batch in loader:
            small, large = pair(batch)
            loss = nn.functional.l1_loss(model(small), large)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    by_network, by_bicubic = psnr(model, evaluation), psnr(bicubic, evaluation)
    print(f"PSNR: {by_network:.2f} dB, bicubic {by_bicubic:.2f} dB, gained {by_network - by_bicubic:.2f} dB")

    if options.picture:
        small, large = (images[:8] for images in pair(next(iter(loader))))
        rows = (small, bicubic(small), model(small).detach(), large)
        pixels = [(image.clamp(0, 1) * 255).byte().permute(1, 2, 0).cpu().numpy() for row in rows for image in row]
        side_by_side([Image.fromarray(one).resize((4 * CROP, 4 * CROP), 0) for one in pixels], options.picture)


if __name__ == "__main__":
    main()
