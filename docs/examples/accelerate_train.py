"""Train a classifier on a store with Accelerate. A killed training continues from its last checkpoint.

python accelerate_train.py train.lmdb val.lmdb
accelerate launch --num_processes 8 accelerate_train.py train.lmdb val.lmdb --resume
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

from dbloader import LMDBDataset, create_loader

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("train", help="store to train on")
parser.add_argument("val", help="store to evaluate on")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64, help="samples in a batch of each process")
parser.add_argument("--accumulate", type=int, default=2, help="batches for one step of the optimizer")
parser.add_argument("--input-size", type=int, default=224, help="height and width of the images in pixels")
parser.add_argument("--checkpoint", type=Path, default=Path("accelerate-checkpoint"), metavar="FOLDER")
parser.add_argument("--save-every", type=int, default=500, metavar="STEPS", help="steps of the optimizer")
parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")


def main() -> None:
    options = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=options.accumulate)
    set_seed(0)
    common: dict[str, Any] = {
        "batch_size": options.batch_size,
        "input_size": options.input_size,
        "device": accelerator.device,
    }
    train = LMDBDataset(options.train)
    loader = create_loader(train, is_training=True, **common)  # needs no prepare(): it splits the samples itself
    evaluation = create_loader(LMDBDataset(options.val), **common)
    network = build_network(len(train.classes))
    model, optimizer = accelerator.prepare(network, torch.optim.AdamW(network.parameters(), 1e-3))
    accelerator.register_for_checkpointing(loader)
    if options.resume:
        accelerator.load_state(str(options.checkpoint))

    for _ in range(loader.state_dict()["epoch"], options.epochs):
        model.train()
        steps = 0
        for images, labels in loader:  # iter() begins the next epoch, or after load_state() continues the saved one
            with accelerator.accumulate(model):  # the last batch of an epoch ends its step, as with a prepared loader
                accelerator.backward(nn.functional.cross_entropy(model(images), labels))
                optimizer.step()
                optimizer.zero_grad()
            steps += accelerator.sync_gradients
            # Save only after a step of the optimizer: checkpoints do not contain accumulated gradients.
            if accelerator.sync_gradients and steps % options.save_every == 0:
                save(accelerator, options.checkpoint)
        save(accelerator, options.checkpoint)
        model.eval()
        counts = torch.zeros(2, device=accelerator.device)
        with torch.inference_mode():
            for images, labels in evaluation:
                right = (
                    network(images).argmax(1) == labels
                )  # not model(): processes may have unequal numbers of batches
                counts += torch.tensor([right.sum(), len(labels)], device=accelerator.device)
        right, total = accelerator.reduce(counts).tolist()  # gather_for_metrics() would wait for missing batches
        accelerator.print(f"accuracy {right / total:.1%}", flush=True)


def save(accelerator: Accelerator, folder: Path) -> None:
    """Save to a new folder, then swap the folders: a training killed in between keeps its last checkpoint."""
    aside, old = folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")
    accelerator.save_state(str(aside))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        aside.rename(folder)
        print("saved", flush=True)
    accelerator.wait_for_everyone()


def build_network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


if __name__ == "__main__":
    main()
