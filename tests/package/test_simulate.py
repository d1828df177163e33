"""The results of scripts/simulate have properties that hold for any options, and times that are computed by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from simulation.__main__ import main, simulate
from simulation.cluster import Cluster
from simulation.limits import describe, describe_caches, limits
from simulation.training import Training

from dbloader.ext.remote.bucket import PART_BYTES

# 16 ranks read 1,000 records each in 8 steps. Only the order is random.
SMALL: dict[str, Any] = {
    "nodes": 4, "ranks": 4, "shards": 64, "records": 250, "batch": 125, "step_ms": 1000.0, "shard_mb": 50.0,
    "step_spread": 0, "nic_spread": 0, "latency_spread": 0, "latency_ms": 100.0, "index_bytes": 0.0,
    "decode_ms": 0.0, "start_s": 0.0,
}  # fmt: skip


def one_epoch(**options: Any) -> dict[str, float]:
    return Training(Cluster(**{**SMALL, **options}), []).run()[0]


def test_nodes_share_the_reading_only_with_lanes() -> None:
    assert one_epoch()["read_per_data"] == 1
    without = one_epoch(order="blocks")
    assert (without["read_per_data"], without["shards_per_node"]) == (4, 64)


def test_nodes_that_stick_to_shards_download_once_and_the_others_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {**SMALL, "epochs": 3}
    lines = {}
    for change in (
        {}, {"order": "stick_to_shard"}, {"order": "stick_to_shard", "cache_gb": 0.5, "buffer_shards": 1},
        {"order": "stick_to_shard", "lanes": 24},
    ):  # fmt: skip
        cluster = Cluster(**{**options, **change})
        epochs = Training(cluster, []).run()
        line = lines[sum(epoch["read_per_data"] for epoch in epochs)] = describe_caches(cluster, epochs)
        assert f"all nodes read {sum(epoch['read_per_data'] for epoch in epochs):.2f} times the store in 3" in line
    (anew, told), (once, silent), (small, too_small), (shared, not_dividing) = lines.items()
    assert anew > 2
    assert small > 1.5
    assert told.endswith("a node gets other shards in each epoch: try --order stick_to_shard.")
    assert once == 1
    assert silent.endswith("in 3 epochs.")
    assert too_small.endswith("because a node needs 0.8 GB in an epoch: give at least as much.")
    assert shared > 1.5
    assert not_dividing.endswith("Several nodes read each shard, because 16 ranks do not divide the lanes.")
    assert main(["--nodes", "2", "--ranks", "2", "--shards", "16", "--records", "100", "--epochs", "2"]) == 0
    assert "caches: all nodes read" in capsys.readouterr().out


def test_training_starts_with_the_first_shard_of_each_rank() -> None:
    # One node with 8 ranks and 32 shards of 512 MB, which arrive at 1 GB/s. Buffers of 4 shards are the whole store.
    found = one_epoch(
        nodes=1, ranks=8, shards=32, records=1000, shard_mb=512.0, nic_mbs=1000, stream_mbs=1000, latency_ms=0
    )
    assert found["first_batch_s"] == pytest.approx(8 * 0.512, rel=0.05)


def test_epoch_without_stalls_takes_the_time_of_its_steps() -> None:
    found = one_epoch(nic_mbs=1e6, stream_mbs=1e6, latency_ms=0, store_requests=0)
    assert found["first_batch_s"] == pytest.approx(0, abs=0.01)
    assert found["seconds"] == pytest.approx(8, abs=0.01)
    assert found["stall_percent"] == pytest.approx(0, abs=0.1)


def test_first_batch_waits_for_the_index_and_the_shards_of_its_buffers() -> None:
    # First the index of 16,000 records arrives at 100 MB/s. Then the first shards of 4 ranks arrive at 200 MB/s.
    # The first bytes of each file arrive 0.2 s after its request.
    found = one_epoch(nic_mbs=200, stream_mbs=100, index_bytes=6250.0)
    assert found["first_batch_s"] == pytest.approx(0.2 + 1.0 + 0.2 + 4 * 50 / 200, rel=0.01)
    # most shards arrive during the steps
    later = one_epoch(nic_mbs=200, stream_mbs=100, buffer_shards=1, fetch_ms=300.0)
    assert later["first_batch_s"] == pytest.approx(2 * (0.2 + 0.3) + 4 * 50 / 200, rel=0.01)
    assert later["seconds"] >= later["first_batch_s"] + 8


def test_slow_object_storage_limits_the_epoch() -> None:
    found = one_epoch(store_mbs=100, step_ms=1.0)
    assert 64 * 50 / 100 <= found["seconds"] <= 64 * 50 / 100 * 1.05
    few = one_epoch(store_requests=13, step_ms=1.0)  # each part needs one request
    assert few["seconds"] >= 64 * 50e6 / (13 * PART_BYTES)


def test_cache_stays_within_its_size_and_a_small_cache_is_refused() -> None:
    training = Training(Cluster(**SMALL, buffer_shards=1, cache_gb=0.5, epochs=2), [])
    first, again = training.run()
    assert max(node.peak for node in training.nodes) == 0.5e9
    assert first["read_per_data"] == 1
    assert 0 < again["read_per_data"] <= 1
    with pytest.raises(ValueError, match=r"--cache-gb 0\.1 is too small: 0\.4 GB of shards are in use at one time"):
        one_epoch(cache_gb=0.1)


def test_requests_over_the_limit_get_503_and_are_repeated() -> None:
    training = Training(Cluster(**SMALL, store_requests=1), [])
    assert training.run()[0]["read_per_data"] == 1
    # Each of 64 shards takes 7 requests: 1 for its size, 6 for its parts. Without longer pauses, 16 streams would be
    # refused 4 requests in each 0.1 s.
    assert training.network.now >= 64 * 7
    assert 0 < training.network.refused < 16 * 4 * 10 * 64 * 7 / 10, "pauses between requests must become longer"


def test_seconds_include_decoding_and_the_start_of_ranks() -> None:
    usual, slow = one_epoch(), one_epoch(decode_ms=100.0, cores=25, start_s=30.0)  # 2 s for each of 8 steps
    assert slow["first_batch_s"] == pytest.approx(usual["first_batch_s"] + 30 + 2)
    assert slow["seconds"] == pytest.approx(slow["first_batch_s"] + 16)
    assert slow["stall_percent"] == pytest.approx(100 * (1 - 8 / slow["seconds"]))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "limit: the training step (at least 8 s of "),
        ({"decode_ms": 100.0, "cores": 25}, "limit: decoding (at least 16 s of "),
        ({"nic_mbs": 10.0}, "limit: the network cards (at least 80 s of "),
        ({"store_mbs": 10.0}, "limit: the store's speed (at least 320 s of "),
        ({"start_s": 100.0}, "limit: the start of the ranks (at least 100 s of "),
        ({"stream_mbs": 2.0}, "limit: the speed of one fetch (at least 100 s of "),
    ],
)
def test_printed_line_names_the_slowest_part(options: dict[str, Any], line: str) -> None:
    cluster = Cluster(**{**SMALL, **options})
    training = Training(cluster, [])
    epoch = training.run()[0]
    found = limits(cluster, epoch, training.index_bytes)
    assert describe(found, epoch).startswith(line)
    assert found[0].seconds <= epoch["seconds"] * 1.001


@pytest.mark.parametrize("restart_nodes", [0, 2])
def test_lost_node_costs_a_restart_and_the_steps_since_the_checkpoint(restart_nodes: int) -> None:
    usual = one_epoch()
    options = {**SMALL, "restart_s": 100.0, "checkpoint_steps": 2, "restart_nodes": restart_nodes}
    # the node fails in step 4, and the checkpoint has 2 steps
    training = Training(Cluster(**options), [usual["first_batch_s"] + 3.5])
    found = training.run()[0]
    assert training.lost_nodes == 1
    assert found["seconds"] >= usual["seconds"] + 100 + 1.5 + (6 if restart_nodes else 0)
    useful_s = 8 + (6 if restart_nodes else 0)
    assert found["stall_percent"] == pytest.approx(100 * (1 - useful_s / found["seconds"]))
    assert found["read_per_data"] > 1


def test_figures_depend_only_on_the_seed() -> None:
    options = {**SMALL, "nic_spread": 0.3, "mtbf_hours": 0.004, "restart_s": 1.0, "checkpoint_steps": 1}
    first, second, other = (simulate(Cluster(**options, seed=seed)) for seed in (1, 1, 2))
    for found in (first, second, other):
        found.pop("simulated_in_s")
    assert first == second != other
    assert first["lost_nodes"]


def test_figures_are_printed_as_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--nodes", "2", "--ranks", "2", "--shards", "16", "--records", "100"]
    assert main(few) == 0
    assert "time to the first batch, s" in capsys.readouterr().out
    assert main([*few, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cluster"]["nodes"], found["epochs"][0]["read_per_data"]) == (2, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nodes", "0"], "--nodes must be at least 1, got 0"),
        (["--order", "best"], "--order must be one of lanes, stick_to_shard, blocks, got 'best'"),
        (["--order", "blocks", "--lanes", "8"], "--lanes is for orders with lanes, got --order blocks"),
        (["--shards", "1", "--records", "10"], "8,000 ranks are more than the 10 records"),
        (["--shards", "6000", "--order", "blocks"], "each node needs 6,000 of 6,000 shards"),
    ],
)
def test_impossible_simulation_is_refused(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
