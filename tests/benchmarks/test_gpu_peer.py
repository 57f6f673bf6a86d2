"""The peer's steps: its model has the shape of ours, and every step of the plan is timed."""

from dataclasses import replace

import torch

from benchmarks.gpu_host import shrunk
from benchmarks.gpu_peer import make_peer, measure_peer
from benchmarks.gpu_plan import REHEARSAL
from runtime.model.decoder import Decoder
from runtime.model.layers import MapLoader
from runtime.model.random_weights import RandomWeights

CPU = torch.device("cpu")


def test_the_peer_reads_as_many_weights_as_our_step() -> None:
    config = shrunk(2)
    peer = make_peer(config, torch.float32, CPU)
    embedding = peer.get_input_embeddings().weight.nbytes
    theirs = sum(part.nbytes for part in peer.parameters()) - embedding
    ours = Decoder(config, MapLoader(source=RandomWeights(0, torch.float32, CPU)), CPU)
    assert abs(theirs - ours.step_weight_bytes) < 0.01 * theirs


def test_each_step_of_the_plan_is_timed() -> None:
    plan = replace(REHEARSAL, graph_steps=((1, 9), (2, 20)))
    with torch.inference_mode():
        rows = measure_peer(plan, torch.float32, CPU, compiled=False)
    assert [(row["batch"], row["context"], row["compiled"]) for row in rows] == [
        (1, 9, 0),
        (2, 20, 0),
    ]
    assert all(row["ms"] > 0 for row in rows)
