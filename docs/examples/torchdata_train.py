"""Train a classifier on a store with torchdata's StatefulDataLoader. --resume continues from the last checkpoint.

python torchdata_train.py train.lmdb val.lmdb
python torchdata_train.py train.lmdb val.lmdb --resume
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from dbloader import LMDBDataset
from dbloader.decoding import RandomResizedCrop, ResizeCenterCrop
from dbloader.device import Normalize
from dbloader.sampling import SeededBatchSampler, ShuffleSampler

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("train", help="store to train on")
parser.add_argument("val", help="store to evaluate on")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--input-size", type=int, default=224, help="height and width of the images in pixels")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--checkpoint", type=Path, default=Path("torchdata.pt"))
parser.add_argument("--save-every", type=int, default=500, metavar="STEPS")
parser.add_argument("--resume", action="store_true", help="continue from the checkpoint; needs the same --workers")


def main() -> None:
    options = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = LMDBDataset(options.train, decode=RandomResizedCrop(options.input_size))
    sampler = ShuffleSampler(train)
    # With a SeededBatchSampler, the crops also depend only on seed, epoch and position.
    batches = SeededBatchSampler(sampler, options.batch_size, drop_last=True)
    loader: Any = StatefulDataLoader(train, batch_sampler=batches, num_workers=options.workers)
    evaluation: Any = DataLoader(LMDBDataset(options.val, decode=ResizeCenterCrop(options.input_size)), 64)
    normalize = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    model = build_network(len(train.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    first = 0
    if options.resume:
        saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        first = saved["epoch"]

    def save(epoch: int) -> None:
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        aside = options.checkpoint.with_name(options.checkpoint.name + ".new")
        torch.save({**states, "epoch": epoch}, aside)
        aside.replace(options.checkpoint)  # a training killed while it saves keeps its last checkpoint
        print("saved", flush=True)

    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)  # also for the resumed epoch, because torchdata's state has no epoch number
        model.train()
        for step, (images, labels) in enumerate(loader, 1):
            loss = nn.functional.cross_entropy(model(normalize(images.to(device))), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % options.save_every == 0 and step < len(loader):  # the end of an epoch is saved below
                save(epoch)
        save(epoch + 1)
        model.eval()
        right = total = 0
        with torch.inference_mode():
            for images, labels in evaluation:
                right += int((model(normalize(images.to(device))).argmax(1).cpu() == labels).sum())
                total += len(labels)
        print(f"accuracy {right / total:.1%}", flush=True)


def build_network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


if __name__ == "__main__":
    main()
