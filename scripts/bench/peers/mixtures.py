"""Mixtures of several loaders, each as its documentation advises, for scripts/bench/mixture_peers.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from typing_extensions import override


class Source(NamedTuple):
    place: Path
    samples: range  # a sample is a number
    weight: int


class Peer:
    package = ""
    field = ""  # the field of a batch that has the samples, if it has fields
    has_state = True
    restore, save = "load_state_dict", "state_dict"  # methods of the loader
    moved = (4, 2)  # the ranks and workers that continue a training with 2 ranks and 2 workers

    def __init__(self) -> None:
        self.rank, self.ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

    def write(self, source: Source) -> None:
        """Write the data of a source."""

    def open(self, sources: list[Source], batch_size: int, workers: int) -> Any:
        """Return the loader of this rank."""
        raise NotImplementedError

    def samples(self, batch: Any) -> Any:
        return batch[self.field] if self.field else batch

    def batches(self, batch_size: int) -> int:
        """Return the number of batches of a rank in a step."""
        return 1

    def redistribute(self, folder: Path, states: list[Any], ranks: int) -> list[Any]:
        """Return the states for a number of ranks. New ranks get the states of the old ranks in turn."""
        return [states[rank % len(states)] for rank in range(ranks)]


class DBLoader(Peer):
    package, field = "dbloader", "name"

    @override
    def write(self, source: Source) -> None:
        from dbloader import Record, write_store

        write_store((Record(str(sample), 0) for sample in source.samples), source.place.with_suffix(".lmdb"))

    @override
    def open(self, sources: list[Source], batch_size: int, workers: int) -> Any:
        from dbloader import create_loader, mix

        mixture = mix({source.place.with_suffix(".lmdb"): source.weight for source in sources}, fields=("name",))
        options: Any = {"is_training": True, "transform": None, "normalize": None, "device": None}
        return create_loader(mixture, None, batch_size, num_workers=workers, **options)


class LitData(Peer):
    package = "litdata"

    @override
    def write(self, source: Source) -> None:
        from litdata.streaming.writer import BinaryWriter

        source.place.mkdir()
        writer = BinaryWriter(str(source.place), chunk_size=20)
        for number, sample in enumerate(source.samples):
            writer[number] = sample
        writer.done()
        writer.merge()

    @override
    def open(self, sources: list[Source], batch_size: int, workers: int) -> Any:
        from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset

        datasets = [StreamingDataset(str(source.place), shuffle=True, drop_last=True) for source in sources]
        weights = [source.weight for source in sources]
        mixture = CombinedStreamingDataset(datasets, weights=weights, iterate_over_all=False)
        return StreamingDataLoader(mixture, batch_size=batch_size, num_workers=workers)


class Streaming(Peer):
    package, field = "mosaicml-streaming", "sample"

    @override
    def write(self, source: Source) -> None:
        import peer_streaming  # noqa: F401 # it stands in for torchvision where that is not installed
        from streaming import MDSWriter

        with MDSWriter(out=str(source.place), columns={"sample": "int"}, size_limit=1000) as writer:
            for sample in source.samples:
                writer.write({"sample": sample})

    @override
    def open(self, sources: list[Source], batch_size: int, workers: int) -> Any:
        import peer_streaming  # noqa: F401 # as above
        from streaming import Stream, StreamingDataLoader, StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()
        unit = len(sources[0].samples) // sources[0].weight
        streams = [Stream(local=str(source.place), choose=unit * source.weight) for source in sources]
        dataset = StreamingDataset(streams=streams, batch_size=batch_size, shuffle=True)
        return StreamingDataLoader(dataset, batch_size=batch_size, num_workers=workers)


class Datasets(Peer):
    package, field = "datasets", "sample"
    buffer_size = 0

    @override
    def write(self, source: Source) -> None:
        from datasets import Dataset, disable_progress_bars

        disable_progress_bars()
        Dataset.from_dict({"sample": list(source.samples)}).save_to_disk(str(source.place))

    @override
    def open(self, sources: list[Source], batch_size: int, workers: int) -> Any:
        from datasets import interleave_datasets, load_from_disk
        from datasets.distributed import split_dataset_by_node
        from torchdata.stateful_dataloader import StatefulDataLoader

        datasets = [load_from_disk(str(source.place)).to_iterable_dataset(num_shards=40) for source in sources]
        if self.buffer_size:
            datasets = [dataset.shuffle(seed=0, buffer_size=self.buffer_size) for dataset in datasets]
        shares = [source.weight / sum(one.weight for one in sources) for source in sources]
        mixture = interleave_datasets(datasets, probabilities=shares, seed=0, stopping_strategy="all_exhausted")
        mixture = split_dataset_by_node(mixture, self.rank, self.ranks)
        return StatefulDataLoader(mixture, batch_size=batch_size, num_workers=workers)


class DatasetsBuffered(Datasets):
    buffer_size = 100


class WebDataset(Peer):
    package, field = "webdataset", "txt"
    has_state = False

    @override
    def write(self, source: Source) -> None:
        import webdataset

        source.place.mkdir()
        with webdataset.ShardWriter(f"{source.place}/%06d.tar", maxcount=20, verbose=0) as writer:
            for sample in source.samples:
                writer.write({"__key__": f"{sample:09}", "txt": str(sample)})

    @override
    def open(self, sources: list[Source], batch_size: int, workers: int) -> Any:
        import webdataset

        datasets = []
        for source in sources:
            shards = [str(shard) for shard in sorted(source.place.glob("*.tar"))]
            datasets.append(webdataset.WebDataset(shards, resampled=True).shuffle(100).decode())
        mixture = webdataset.RandomMix(datasets, [source.weight for source in sources])
        return webdataset.WebLoader(mixture, batch_size=batch_size, num_workers=workers)


class Grain(Peer):
    package = "grain"
    restore, save = "set_state", "get_state"

    @override
    def open(self, sources: list[Source], batch_size: int, workers: int) -> Any:
        import grain
        from absl import flags

        flags.FLAGS(sys.argv[:1])  # Grain's worker processes need parsed flags
        ranges = [grain.MapDataset.range(source.samples.start, source.samples.stop) for source in sources]
        datasets = [dataset.shuffle(seed=number).repeat() for number, dataset in enumerate(ranges)]
        return self.mix(datasets, [one.weight for one in sources], batch_size, grain.MultiprocessingOptions(workers))

    def mix(self, datasets: list[Any], weights: list[int], batch_size: int, processes: Any) -> Any:
        import grain

        mixture, shard = grain.MapDataset.mix(datasets, weights), grain.sharding.ShardOptions(self.rank, self.ranks)
        return grain.experimental.ElasticIterator(
            mixture, batch_size * self.ranks, shard, multiprocessing_options=processes
        )


class GrainIterators(Grain):
    """Mixes iterators, as MaxText does. Sources that are filtered or packed need this."""

    @override
    def mix(self, datasets: list[Any], weights: list[int], batch_size: int, processes: Any) -> Any:
        import grain

        iterators = [dataset[self.rank :: self.ranks].to_iter_dataset() for dataset in datasets]
        return iter(grain.IterDataset.mix(iterators, weights).batch(batch_size).mp_prefetch(processes))


class Energon(WebDataset):
    package, has_state = "megatron-energon", True
    restore, save = "restore_state_rank", "save_state_rank"
    moved = (4, 1)  # Energon needs the same product of ranks and workers, and batches of the same size
    batch_size = 6

    @override
    def write(self, source: Source) -> None:
        from megatron.energon.flavors import BaseWebdatasetFactory

        super().write(source)
        shards = [shard.name for shard in sorted(source.place.glob("*.tar"))]
        split: Any = {"split_parts_ratio": [("train", 1)], "shuffle_seed": None}
        BaseWebdatasetFactory.prepare_dataset(source.place, shards, workers=1, **split)
        kind = "sample_type:\n  __module__: megatron.energon\n  __class__: TextSample\nfield_map:\n  text: txt\n"
        (source.place / ".nv-meta" / "dataset.yaml").write_text(kind)

    @override
    def open(self, sources: list[Source], batch_size: int, workers: int) -> Any:
        from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

        blend = sources[0].place.with_name(f"blend-{len(sources)}-{self.rank}.yaml")
        text = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        blend.write_text(text + "".join(f"    - path: {one.place}\n      weight: {one.weight}\n" for one in sources))
        config = WorkerConfig(rank=self.rank, world_size=self.ranks, num_workers=workers)
        options: Any = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 100, "worker_config": config}
        return get_savable_loader(get_train_dataset(blend, batch_size=self.batch_size, **options))

    @override
    def samples(self, batch: Any) -> Any:
        return batch.text

    @override
    def batches(self, batch_size: int) -> int:
        return batch_size // self.batch_size

    @override
    def redistribute(self, folder: Path, states: list[Any], ranks: int) -> list[Any]:
        from megatron.energon.tools.checkpoint import RankStateIterable

        if ranks == len(states):
            return states
        files = [folder / f"state-{rank}.pt" for rank in range(len(states))]
        for file, state in zip(files, states, strict=True):
            torch.save(state, file)
        new = folder / "new"
        new.mkdir()
        tool = [str(Path(sys.executable).with_name("energon")), "checkpoint", "redist", "--new-world-size", str(ranks)]
        subprocess.run([*tool, *files, new], check=True, stdout=subprocess.DEVNULL)
        return list(RankStateIterable([new / f"state-{rank}.pt" for rank in range(ranks)]).rank_states)
