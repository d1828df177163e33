"""Train an image classifier on a store with the Hugging Face Trainer. --resume continues from the last checkpoint.

python transformers_trainer.py train.lmdb val.lmdb
torchrun --nproc-per-node 8 transformers_trainer.py train.lmdb val.lmdb --resume
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed
from transformers.trainer_utils import get_last_checkpoint

from dbloader import LMDBDataset, create_loader

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("train", help="store to train on")
parser.add_argument("val", help="store to evaluate on")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64, help="samples in a batch of each process")
parser.add_argument("--input-size", type=int, default=224, help="height and width of the images in pixels")
parser.add_argument("--checkpoint", type=Path, default=Path("trainer"), metavar="FOLDER", help="of the checkpoints")
parser.add_argument("--save-every", type=int, default=500, metavar="STEPS")
parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")

FIELDS = {"pixel_values": "image", "labels": "label"}  # argument of the model: field of the store


class StoreTrainer(Trainer):
    """A Trainer whose batches come from ``create_loader``."""

    def __init__(self, input_size: int, **options: Any) -> None:
        super().__init__(**options)
        self.input_size = input_size
        self.train_loader = self.loader(self.train_dataset, self.args.per_device_train_batch_size, is_training=True)
        self.add_callback(SaveLoader(self.train_loader))

    def loader(self, dataset: Any, batch_size: int, *, is_training: bool) -> Any:
        sizes = {"batch_size": batch_size, "input_size": self.input_size}
        return create_loader(dataset, is_training=is_training, device=self.args.device, **sizes)

    def get_train_dataloader(self) -> Any:
        return self.train_loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return self.loader(eval_dataset or self.eval_dataset, self.args.per_device_eval_batch_size, is_training=False)


class SaveLoader(TrainerCallback):
    """Saves the state of the loader with each checkpoint of the Trainer, and loads it when the Trainer resumes."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if state.is_world_process_zero:  # the state is the same in all processes
            torch.save(self.loader.state_dict(), folder / "loader.pt")
            print(f"saved at step {state.global_step}", flush=True)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step:
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
            self.loader.load_state_dict(torch.load(folder / "loader.pt", weights_only=True))


def main() -> None:
    options = parser.parse_args()
    set_seed(0)  # before the model is made
    train = LMDBDataset(options.train, fields=FIELDS)
    arguments = TrainingArguments(
        output_dir=str(options.checkpoint),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch_size,
        learning_rate=1e-3,
        save_steps=options.save_every,
        ignore_data_skip=True,  # the loader resumes from its own state
        report_to=[],
    )
    config = ViTConfig(
        image_size=options.input_size,
        patch_size=options.input_size // 8,
        hidden_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=192,
        num_labels=len(train.classes),
    )
    last = get_last_checkpoint(str(options.checkpoint)) if options.resume else None
    # The Trainer (5.23.0) does not load weights whose names in the checkpoint and in the model differ, as in ViT.
    model = ViTForImageClassification.from_pretrained(last) if last else ViTForImageClassification(config)
    trainer = StoreTrainer(
        options.input_size,
        model=model,
        args=arguments,
        train_dataset=train,
        eval_dataset=LMDBDataset(options.val, fields=FIELDS),
        compute_metrics=lambda result: {"accuracy": (result.predictions.argmax(1) == result.label_ids).mean()},
    )
    trainer.train(resume_from_checkpoint=last)
    print(f"accuracy {trainer.evaluate()['eval_accuracy']:.1%}")


if __name__ == "__main__":
    main()
