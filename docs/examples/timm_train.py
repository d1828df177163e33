"""Train a model of timm on a store. A killed training continues from its last checkpoint.

python timm_train.py train.lmdb val.lmdb --model resnet50
python timm_train.py train.lmdb val.lmdb --model resnet50 --resume
"""

import argparse
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import resolve_model_data_config
from timm.optim import create_optimizer_v2
from torch import nn

from dbloader import LMDBDataset, create_loader
from dbloader.decoding import RandomResizedCrop, ResizeCenterCrop
from dbloader.device import Normalize, RandomErasing

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("train", help="store to train on")
parser.add_argument("val", help="store to evaluate on")
parser.add_argument("--model", default="resnet50", help="name of a model of timm")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--input-size", type=int, metavar="PIXELS", help="height and width  [default: the model's]")
parser.add_argument("--checkpoint", type=Path, default=Path("timm.pt"))
parser.add_argument("--save-every", type=int, default=500, metavar="STEPS")
parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")


def main() -> None:
    options = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = LMDBDataset(options.train)
    model = timm.create_model(options.model, num_classes=len(train.classes)).to(device)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.02)
    # The size, interpolation, mean, std and center crop with which this model was trained.
    config = resolve_model_data_config(model, {"img_size": options.input_size})
    size, interpolation = config["input_size"][1:], config["interpolation"]
    crop = RandomResizedCrop(size, interpolation=interpolation)
    center = ResizeCenterCrop(size, config["crop_pct"], interpolation=interpolation)
    normalize = Normalize(config["mean"], config["std"])
    common: dict[str, Any] = {"batch_size": options.batch_size, "device": device, "normalize": normalize}
    loader = create_loader(train, is_training=True, transform=crop, preparation=RandomErasing(0.25), **common)
    evaluation = create_loader(LMDBDataset(options.val), transform=center, **common)
    if options.resume:
        saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])

    for _ in range(loader.state_dict()["epoch"], options.epochs):
        model.train()
        for step, (images, labels) in enumerate(loader, 1):  # after load_state_dict(): the rest of the saved epoch
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if step % options.save_every == 0:
                save(options.checkpoint, model, optimizer, loader)
        save(options.checkpoint, model, optimizer, loader)
        model.eval()
        with torch.inference_mode():
            right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in evaluation)
        print(f"accuracy {right / len(evaluation.dataset):.1%}", flush=True)


def save(place: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    """Write to another file and rename it: a training killed in between keeps its last checkpoint."""
    aside = place.with_name(place.name + ".new")
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    torch.save(states, aside)
    aside.replace(place)
    print("saved", flush=True)


if __name__ == "__main__":
    main()
