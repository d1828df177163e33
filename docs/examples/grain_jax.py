"""Train a classifier on a store with Grain and JAX. A killed training continues from its last checkpoint.

python grain_jax.py train.lmdb val.lmdb
python grain_jax.py train.lmdb val.lmdb --resume
"""

import argparse
import json
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np

from dbloader import Record, open_store
from dbloader.decoding import RandomResizedCrop, ResizeCenterCrop

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("train", help="store to train on")
parser.add_argument("val", help="store to evaluate on")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--input-size", type=int, default=224, help="height and width of the images in pixels")
parser.add_argument("--checkpoint", type=Path, default=Path("grain.npz"))
parser.add_argument("--save-every", type=int, default=500, metavar="STEPS")
parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")


class Crop(grain.transforms.RandomMap):
    """A random crop with Grain's random numbers, which depend only on seed, epoch and position."""

    def __init__(self, size: int) -> None:
        self.decode = RandomResizedCrop(size)

    def random_map(self, record: Record, rng: np.random.Generator) -> Any:
        image = self.decode(record.image, rng.random(self.decode.draws), tiles=record.fields.get("tiles"))
        return image.permute(1, 2, 0).numpy(), record.label


class Center(grain.transforms.Map):
    def __init__(self, size: int) -> None:
        self.decode = ResizeCenterCrop(size)

    def map(self, record: Record) -> Any:
        return self.decode(record.image).permute(1, 2, 0).numpy(), record.label


def predict(weights: dict[str, jax.Array], images: Any) -> jax.Array:
    values = (jnp.asarray(images, jnp.float32) - 118) / 58
    for name in ("first", "second"):
        values = jax.lax.conv_general_dilated(
            values, weights[name], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        values = jax.nn.relu(values)
    return values.mean((1, 2)) @ weights["last"]


@jax.jit
def train_step(weights: Any, images: Any, labels: Any) -> Any:
    def loss(weights: Any) -> jax.Array:
        chances = jax.nn.log_softmax(predict(weights, images))
        return -chances[jnp.arange(len(labels)), labels].mean()

    return jax.tree.map(lambda weight, slope: weight - 0.05 * slope, weights, jax.grad(loss)(weights))


def main() -> None:
    options = parser.parse_args()
    train, val = open_store(options.train), open_store(options.val)  # a store is a RandomAccessDataSource
    order = grain.MapDataset.source(train).seed(0).shuffle().repeat(options.epochs)
    batches = order.random_map(Crop(options.input_size)).batch(options.batch_size, drop_remainder=True)
    iterator = iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)))
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = {"first": (3, 3, 3, 16), "second": (3, 3, 16, 32), "last": (32, len(train.manifest.classes))}
    weights: Any = {
        name: jax.random.normal(key, shape) * np.prod(shape[:-1]) ** -0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    step = 0
    if options.resume:
        saved = np.load(options.checkpoint)  # only arrays of numbers and text, so loading runs no code
        weights = {name: jnp.asarray(saved[name]) for name in weights}
        step = int(saved["step"])
        iterator.set_state(json.loads(str(saved["iterator"])))

    def save() -> None:
        aside = options.checkpoint.with_name(options.checkpoint.name + ".new")
        with aside.open("wb") as file:
            np.savez(file, step=step, iterator=json.dumps(iterator.get_state()), **weights)
        aside.replace(options.checkpoint)  # a training killed while it saves keeps its last checkpoint
        print(f"saved at step {step}", flush=True)

    for images, labels in iterator:
        weights = train_step(weights, images, labels)
        step += 1
        if step % options.save_every == 0:
            save()
    save()
    evaluation = grain.MapDataset.source(val).map(Center(options.input_size)).batch(options.batch_size)
    right = sum(int((predict(weights, images).argmax(1) == labels).sum()) for images, labels in evaluation)
    print(f"accuracy {right / len(val):.1%}", flush=True)


if __name__ == "__main__":
    main()
