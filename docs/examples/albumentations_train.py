"""Train a classifier on a store with transforms of albumentations. --resume continues from the last checkpoint.

python albumentations_train.py train.lmdb val.lmdb
python albumentations_train.py train.lmdb val.lmdb --resume
"""

import argparse
from pathlib import Path
from typing import Any

import albumentations as A  # noqa: N812 # as its users write it
import torch
from torch import nn

from dbloader import LMDBDataset, create_loader

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("train", help="store to train on")
parser.add_argument("val", help="store to evaluate on")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--input-size", type=int, default=224, help="height and width of the images in pixels")
parser.add_argument("--checkpoint", type=Path, default=Path("albumentations.pt"))
parser.add_argument("--save-every", type=int, default=500, metavar="STEPS")
parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")


def main() -> None:
    options = parser.parse_args()
    torch.manual_seed(0)
    size = (options.input_size, options.input_size)
    augment = A.Compose([A.RandomResizedCrop(size), A.HorizontalFlip(), A.ColorJitter(p=0.5), A.ToTensorV2()])
    center = A.Compose([A.Resize(*size), A.ToTensorV2()])
    # With masks or boxes: LMDBDataset(place, transforms=augment, fields=("image", "mask", "label")).
    train = LMDBDataset(options.train, transform=augment)
    loader = create_loader(train, batch_size=options.batch_size, is_training=True)  # normalizes on the device
    evaluation = create_loader(LMDBDataset(options.val, transform=center), batch_size=options.batch_size)
    model = build_network(len(train.classes)).to(loader.device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    if options.resume:
        saved = torch.load(options.checkpoint, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    def save() -> None:
        aside = options.checkpoint.with_name(options.checkpoint.name + ".new")
        torch.save({name: part.state_dict() for name, part in parts.items()}, aside)
        aside.replace(options.checkpoint)  # a training killed while it saves keeps its last checkpoint
        print("saved", flush=True)

    for _ in range(loader.state_dict()["epoch"], options.epochs):
        model.train()
        for step, (images, labels) in enumerate(loader, 1):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % options.save_every == 0:
                save()
        save()
        model.eval()
        right = total = 0
        with torch.inference_mode():
            for images, labels in evaluation:
                right += int((model(images).argmax(1) == labels).sum())
                total += len(labels)
        print(f"accuracy {right / total:.1%}", flush=True)


def build_network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


if __name__ == "__main__":
    main()
