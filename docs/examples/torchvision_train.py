"""Train with torchvision's transforms and a DataLoader of your own. A killed training continues.

python torchvision_train.py train.lmdb val.lmdb
python torchvision_train.py train.lmdb val.lmdb --resume

The samples have the same order as without the interruption, but other crops: torchvision draws the crops from the
global random numbers of each worker.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.models import resnet18
from torchvision.transforms import v2

from dbloader import LMDBDataset, PrefetchLoader
from dbloader.sampling import ShuffleSampler

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("train", help="store to train on")
parser.add_argument("val", help="store to evaluate on")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--input-size", type=int, default=224, metavar="PIXELS", help="height and width of the images")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--checkpoint", type=Path, default=Path("torchvision.pt"))
parser.add_argument("--save-every", type=int, default=500, metavar="STEPS")
parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")


def main() -> None:
    options = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = options.input_size
    normalized = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
    augmented = v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), *normalized])
    centered = v2.Compose([v2.Resize(size * 8 // 7), v2.CenterCrop(size), *normalized])

    train = LMDBDataset(options.train, augmented)  # in place of ImageFolder
    val = LMDBDataset(options.val, centered)
    common: dict[str, Any] = {"batch_size": options.batch_size, "num_workers": options.workers}
    sampler = ShuffleSampler(train)  # in place of shuffle=True, which cannot resume
    loader = PrefetchLoader(DataLoader(train, sampler=sampler, drop_last=True, **common), device)
    evaluation = PrefetchLoader(DataLoader(val, **common), device)

    model = resnet18(num_classes=len(train.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
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
        print(f"accuracy {right / len(val):.1%}", flush=True)


def save(place: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    """Write to another file and rename it: a training killed in between keeps its last checkpoint."""
    aside = place.with_name(place.name + ".new")
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    torch.save(states, aside)
    aside.replace(place)
    print("saved", flush=True)


if __name__ == "__main__":
    main()
