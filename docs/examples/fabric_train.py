"""Train a classifier on a store with Lightning Fabric. A killed training continues from its last checkpoint.

python fabric_train.py train.lmdb val.lmdb
python fabric_train.py train.lmdb val.lmdb --resume
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric, seed_everything
from torch import nn

from dbloader import LMDBDataset, create_loader

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("train", help="store to train on")
parser.add_argument("val", help="store to evaluate on")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64, help="samples in a batch of each process")
parser.add_argument("--input-size", type=int, default=224, help="height and width of the images in pixels")
parser.add_argument("--devices", default="auto", help="number of devices of this machine; each has a process")
parser.add_argument("--checkpoint", type=Path, default=Path("fabric.ckpt"))
parser.add_argument("--save-every", type=int, default=500, metavar="STEPS")
parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")


def main() -> None:
    options = parser.parse_args()
    fabric = Fabric(devices=options.devices)
    fabric.launch()
    seed_everything(0)
    common: dict[str, Any] = {
        "batch_size": options.batch_size,
        "input_size": options.input_size,
        "device": fabric.device,
    }
    train = LMDBDataset(options.train)
    loader = create_loader(train, is_training=True, **common)  # needs no setup_dataloaders(): it splits the samples
    evaluation = create_loader(LMDBDataset(options.val), **common)
    network = build_network(len(train.classes))
    model, optimizer = fabric.setup(network, torch.optim.AdamW(network.parameters(), 1e-3))
    # Fabric calls state_dict() and load_state_dict() of each.
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader, "step": 0}
    if options.resume:
        state["step"] = fabric.load(options.checkpoint, state).get("step", state["step"])

    def save() -> None:
        aside = options.checkpoint.with_name(options.checkpoint.name + ".new")
        fabric.save(aside, state)
        if fabric.is_global_zero:
            aside.replace(options.checkpoint)  # a training killed while it saves keeps its last checkpoint
            print(f"saved at step {state['step']}", flush=True)

    for _ in range(loader.state_dict()["epoch"], options.epochs):
        model.train()
        for images, labels in loader:  # iter() begins the next epoch, or after load() continues the saved one
            fabric.backward(nn.functional.cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
            state["step"] += 1
            if state["step"] % options.save_every == 0:
                save()
        save()
        model.eval()
        counts = torch.zeros(2, device=fabric.device)
        with torch.inference_mode():
            for images, labels in evaluation:
                right = (
                    network(images).argmax(1) == labels
                )  # not model(): processes may have unequal numbers of batches
                counts += torch.tensor([right.sum(), len(labels)], device=fabric.device)
        right, total = fabric.all_reduce(counts, reduce_op="sum").tolist()
        fabric.print(f"accuracy {right / total:.1%}", flush=True)


def build_network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


if __name__ == "__main__":
    main()
