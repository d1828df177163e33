"""Train a classifier on a store with Ignite. A killed training continues from its last checkpoint.

python ignite_train.py train.lmdb val.lmdb
torchrun --nproc-per-node 8 ignite_train.py train.lmdb val.lmdb --backend nccl --resume
"""

import argparse
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Accuracy
from ignite.utils import manual_seed
from torch import nn

from dbloader import LMDBDataset, create_loader

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("train", help="store to train on")
parser.add_argument("val", help="store to evaluate on")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64, help="samples in a batch of each process")
parser.add_argument("--input-size", type=int, default=224, help="height and width of the images in pixels")
parser.add_argument("--backend", help="of torch.distributed, if torchrun started this: nccl or gloo")
parser.add_argument("--checkpoint", type=Path, default=Path("ignite.pt"))
parser.add_argument("--save-every", type=int, default=500, metavar="STEPS")
parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")


def main(_: int, options: argparse.Namespace) -> None:
    device = idist.device()
    manual_seed(0)
    common: dict[str, Any] = {"batch_size": options.batch_size, "input_size": options.input_size, "device": device}
    train = LMDBDataset(options.train)
    loader = create_loader(train, is_training=True, **common)  # needs no auto_dataloader(): it splits the samples
    evaluation = create_loader(LMDBDataset(options.val), **common)
    model = idist.auto_model(build_network(len(train.classes)))
    optimizer = idist.auto_optim(torch.optim.AdamW(model.parameters(), 1e-3))

    def step(_: Engine, batch: Any) -> float:
        model.train()
        images, labels = batch
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def predict(_: Engine, batch: Any) -> Any:
        bare = getattr(model, "module", model).eval()  # processes may have unequal numbers of batches
        with torch.inference_mode():
            return bare(batch[0]), batch[1]

    trainer, evaluator = Engine(step), Engine(predict)
    Accuracy(device=device).attach(evaluator, "accuracy")
    # The trainer's state counts finished epochs and steps; the loader's state counts received samples of the epoch.
    saved = {"trainer": trainer, "model": model, "optimizer": optimizer, "loader": loader}
    place = options.checkpoint
    save = Checkpoint(saved, DiskSaver(place.parent, require_empty=False), filename_pattern=place.name, n_saved=None)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=options.save_every) | Events.EPOCH_COMPLETED, save)

    @trainer.on(Events.ITERATION_COMPLETED(every=options.save_every) | Events.EPOCH_COMPLETED)
    @idist.one_rank_only()
    def tell() -> None:
        print(f"saved at step {trainer.state.iteration}", flush=True)

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate() -> None:
        accuracy = evaluator.run(evaluation).metrics["accuracy"]
        if idist.get_rank() == 0:
            print(f"accuracy {accuracy:.1%}", flush=True)

    if options.resume:
        Checkpoint.load_objects(saved, torch.load(place, map_location=device, weights_only=True))
    trainer.run(loader, max_epochs=options.epochs)


def build_network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


if __name__ == "__main__":
    options = parser.parse_args()
    with idist.Parallel(options.backend) as parallel:
        parallel.run(main, options)
