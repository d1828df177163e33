"""Train a classifier on a store, on one device or on several with torchrun. An interrupted training resumes.

    python train.py train.lmdb --val val.lmdb
    torchrun --nproc-per-node 8 train.py train.lmdb --val val.lmdb --batch-size 128

PLACE is a file or mongodb://host/database.collection. To resume, run the script again with the same --checkpoint, on
any number of devices. It continues after the last sample that the checkpoint counts.
"""

import argparse
import math
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dbloader import LMDBDataset, MongoDataset, create_loader
from dbloader.device import Normalize, RandomErasing


def main() -> None:
    options = parse_arguments()
    device = join_others()
    first = not dist.is_initialized() or dist.get_rank() == 0  # the process that saves and prints
    torch.manual_seed(options.seed)

    train = open_dataset(options.train)
    common: dict[str, Any] = {
        "batch_size": options.batch_size,
        "input_size": options.input_size,
        "num_workers": options.workers,
        "device": device,
        "seed": options.seed,
        "normalize": Normalize(channels_last=True),
    }
    loader = create_loader(train, is_training=True, preparation=RandomErasing(0.1), **common)
    evaluation = create_loader(open_dataset(options.val), **common) if options.val else None

    bare = build_model(options.model, len(train.classes)).to(device, memory_format=torch.channels_last)
    model = bare
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(bare, device_ids=[device] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(bare.parameters(), weight_decay=0.05)

    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
        bare.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # the same state for all processes, however many

    state = loader.state_dict()
    if first and state["epoch"] >= options.epochs:
        print(f"nothing is left to do: {options.checkpoint} has {state['epoch']} epochs, --epochs is {options.epochs}")
    for epoch in range(state["epoch"], options.epochs):
        model.train()
        loss = torch.zeros(())
        for step, (images, labels) in enumerate(loader, 1):  # each iter() is the next epoch, in its own order
            for group in optimizer.param_groups:
                group["lr"] = options.lr * schedule((epoch + state["position"] / state["length"]) / options.epochs)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            state = loader.state_dict()  # counts this batch, but no prefetched batch
            if first and step % options.save_every == 0:
                save(options.checkpoint, bare, optimizer, state)
        if first:
            save(options.checkpoint, bare, optimizer, state)
            print(f"epoch {epoch}: loss {loss.item():.3f}; {loader.stats()}", flush=True)
        if evaluation is not None:
            accuracy = evaluate(model, evaluation, device)
            if first:
                print(f"epoch {epoch}: accuracy {accuracy:.2%}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", metavar="PLACE", help="store to train on")
    parser.add_argument("--val", metavar="PLACE", help="store to evaluate on after each epoch")
    parser.add_argument("--model", metavar="NAME", help="a model of timm, such as resnet50; by default a small network")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="samples in a batch of each process")
    parser.add_argument("--input-size", type=int, default=224, metavar="PIXELS")
    parser.add_argument("--lr", type=float, default=1e-3, help="the highest learning rate")
    parser.add_argument("--workers", type=int, metavar="N", help="workers of each process  [default: one per CPU]")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"), metavar="FILE")
    parser.add_argument("--save-every", type=int, default=1000, metavar="STEPS", help="between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def join_others() -> torch.device:
    """Join the process group if torchrun started this process, and return the device of this process."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def open_dataset(place: str) -> LMDBDataset | MongoDataset:
    return MongoDataset(place) if place.startswith("mongodb") else LMDBDataset(place)


def build_model(name: str | None, classes: int) -> nn.Module:
    if name is not None:
        import timm

        model: nn.Module = timm.create_model(name, num_classes=classes)
        return model
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes))


def schedule(progress: float) -> float:
    """Return the factor of the learning rate for a progress of 0 to 1: 5 % of warm-up, then a cosine to 0."""
    return min(1.0, progress / 0.05 + 0.01) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def evaluate(model: nn.Module, loader: Any, device: torch.device) -> float:
    model.eval()
    # Do not synchronize processes in the loop: one may have a sample more than another.
    bare = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    with torch.inference_mode():
        for images, labels in loader:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                right = (bare(images).argmax(1) == labels).sum()
            counts += torch.stack([right, torch.full_like(right, len(labels))])
    if dist.is_initialized():
        dist.all_reduce(counts)
    right, total = counts.tolist()
    return float(right) / float(total)


def save(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Write to another file and rename it: a training killed in between keeps its last checkpoint."""
    aside = checkpoint.with_name(checkpoint.name + ".new")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": state}, aside)
    aside.replace(checkpoint)


if __name__ == "__main__":
    main()
