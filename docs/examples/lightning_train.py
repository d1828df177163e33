"""Train a classifier on a store with Lightning. A killed training continues from its last checkpoint.

python lightning_train.py train.lmdb val.lmdb
python lightning_train.py train.lmdb val.lmdb --resume
"""

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn

from dbloader import LMDBDataset, create_loader

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("train", help="store to train on")
parser.add_argument("val", help="store to evaluate on")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64, help="samples in a batch of each process")
parser.add_argument("--input-size", type=int, default=224, help="height and width of the images in pixels")
parser.add_argument("--devices", default="auto", help="number of devices of this machine; each has a process")
parser.add_argument("--checkpoint", type=Path, default=Path("lightning.ckpt"))
parser.add_argument("--save-every", type=int, default=500, metavar="STEPS")
parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")


class Images(lightning.LightningDataModule):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options = options

    def loader(self, place: str, *, is_training: bool) -> Any:
        options, device = self.options, self.trainer.strategy.root_device
        sizes = {"batch_size": options.batch_size, "input_size": options.input_size}
        return create_loader(LMDBDataset(place), is_training=is_training, device=device, **sizes)

    def train_dataloader(self) -> Any:
        return self.loader(self.options.train, is_training=True)

    def val_dataloader(self) -> Any:
        return self.loader(self.options.val, is_training=False)


class Classifier(lightning.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
        self.network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: Any, _: int) -> None:
        images, labels = batch
        right = self.network(images).argmax(1) == labels
        self.log("accuracy", right.float().mean(), batch_size=len(labels), sync_dist=True, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


class Save(lightning.Callback):
    """Saves every ``save_every`` steps and at the end of each epoch, after Lightning has counted the epoch."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        if trainer.global_step % self.options.save_every == 0 and not trainer.is_last_batch:
            self.on_train_epoch_end(trainer)

    def on_train_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        trainer.save_checkpoint(self.options.checkpoint)
        if trainer.is_global_zero:
            print(f"saved at step {trainer.global_step}", flush=True)


if __name__ == "__main__":
    options = parser.parse_args()
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        devices=options.devices,
        callbacks=[Save(options)],
        enable_checkpointing=False,  # Save does it
        logger=False,
    )
    model = Classifier(len(LMDBDataset(options.train).classes))
    trainer.fit(model, datamodule=Images(options), ckpt_path=options.checkpoint if options.resume else None)
    print(f"accuracy {trainer.callback_metrics['accuracy']:.1%}")
