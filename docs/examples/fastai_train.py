"""Train with fastai on a store. A killed training continues from its last checkpoint.

python fastai_train.py train.lmdb val.lmdb
python fastai_train.py train.lmdb val.lmdb --resume
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from fastai.callback.core import Callback
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.metrics import accuracy
from torch import nn

from dbloader import LMDBDataset, create_loader

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("train", help="store to train on")
parser.add_argument("val", help="store to evaluate on")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--input-size", type=int, default=224, metavar="PIXELS", help="height and width of the images")
parser.add_argument("--checkpoint", type=Path, default=Path("fastai.pt"))
parser.add_argument("--save-every", type=int, default=500, metavar="STEPS")
parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")


class Save(Callback):
    """Saves model, optimizer and loader every ``save_every`` steps and at the end of each epoch."""

    def __init__(self, loader: Any, place: Path, save_every: int) -> None:
        self.loader, self.place, self.save_every = loader, place, save_every

    def after_batch(self) -> None:
        if self.training and (self.iter + 1) % self.save_every == 0:
            self.save()

    def after_train(self) -> None:
        self.save()

    def save(self) -> None:
        """Write to another file and rename it: a training killed in between keeps its last checkpoint."""
        aside = self.place.with_name(self.place.name + ".new")
        optimizer = self.learn.opt.state_dict()
        optimizer["hypers"] = list(optimizer["hypers"])  # a plain list, which weights_only=True loads
        states = {"model": self.learn.model.state_dict(), "optimizer": optimizer, "loader": self.loader.state_dict()}
        torch.save(states, aside)
        aside.replace(self.place)
        print("saved", flush=True)


def main() -> None:
    options = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = LMDBDataset(options.train)
    common: dict[str, Any] = {
        "batch_size": options.batch_size,
        "input_size": options.input_size,
        "device": device,
    }
    loader = create_loader(train, is_training=True, **common)
    evaluation = create_loader(LMDBDataset(options.val), **common)
    learner = Learner(
        DataLoaders(loader, evaluation, device=device),
        build_network(len(train.classes)),
        loss_func=nn.CrossEntropyLoss(),
        metrics=accuracy,
    )
    if options.resume:
        saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
        learner.model.load_state_dict(saved["model"])
        learner.create_opt()
        learner.opt.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    saving = Save(loader, options.checkpoint, options.save_every)
    # fit_one_cycle would begin its schedule again. It can resume only at the end of an epoch, with start_epoch.
    learner.fit(options.epochs - loader.state_dict()["epoch"], 1e-3, cbs=saving)
    print(f"accuracy {learner.validate(dl=evaluation)[1]:.1%}", flush=True)


def build_network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


if __name__ == "__main__":
    main()
