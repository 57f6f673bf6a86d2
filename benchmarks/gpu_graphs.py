"""A runner's decode steps, recorded and not. By the clock: recording saves the host's time."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_cases import (
    RandomSource,
    Wrong,
    blocks_for,
    make_batch,
    step_seconds,
    wall_seconds,
)
from benchmarks.gpu_plan import BLOCK_SIZE, Plan
from runtime.model.config import ModelConfig
from runtime.model.cuda_graphs import CudaRecorder, Recorder
from runtime.model.decoder import Decoder
from runtime.model.layers import MapLoader
from runtime.model.runner import ModelRunner, Recording
from runtime.model.sources import BYTE_TOKENIZER
from runtime.model.weights import LoadedModel

_VERIFY_REPEATS = 30
_AGREES = 2e-2
"""The bound as a share of the norm of logits: padding changes the order in which libraries sum
up."""


def make_model(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> LoadedModel:
    """Random weights drawn on the device, with the tokenizer of bytes."""
    return LoadedModel(
        name="random",
        config=config,
        decoder=Decoder(config, MapLoader(source=RandomSource(dtype, device), dtype=dtype), device),
        tokenizer_folder=BYTE_TOKENIZER,
        dtype=dtype,
        device=device,
        load_s=0.0,
    )


def recorder(device: torch.device) -> Recorder:
    """A recorder of steps on ``device``; a CPU only calls, to see that all fits together."""
    return CudaRecorder() if device.type == "cuda" else _calls


def _calls(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return call


def measure_graphs(plan: Plan, dtype: torch.dtype, device: torch.device) -> list[dict[str, Any]]:
    """A decode step of a runner, recorded and not, beside what its kernels take.

    Raises:
        Wrong: the two give other logits.
    """
    rows: list[dict[str, Any]] = []
    name, config = plan.models[0]
    model = make_model(config, dtype, device)
    for sequences, context in plan.graph_steps:
        shapes = [(context, 1)] * sequences
        batch = make_batch(shapes, blocks_for(shapes))
        row: dict[str, Any] = {"model": name, "batch": sequences, "context": context}
        logits: list[Tensor] = []
        for label, record in (("plain", None), ("recorded", recorder(device))):
            runner = ModelRunner(
                model,
                num_blocks=blocks_for(shapes),
                block_size=BLOCK_SIZE,
                recording=Recording(record=record, max_sequences=sequences),
            )
            generator = torch.Generator(device=device).manual_seed(0)
            for index in range(config.num_layers):
                for part in runner.pool.layer(index):
                    part[: runner.num_blocks].normal_(generator=generator)
            logits.append(runner.forward(batch).float().clone())
            taken = wall_seconds(lambda: runner.forward(batch), device)  # noqa: B023
            row[f"{label}_ms"] = taken * 1e3
        error = float((logits[1] - logits[0]).norm() / logits[0].norm())
        if not error <= _AGREES:
            raise Wrong(f"a recorded step of {sequences} is off by {error:.2g} of the norm")
        kernels = step_seconds(model.decoder, sequences, context, dtype, device)
        row["kernels_ms"] = kernels * 1e3
        row["faster_recorded"] = row["plain_ms"] / row["recorded_ms"]
        rows.append(row)
    return rows


def measure_verified_steps(
    plan: Plan, dtype: torch.dtype, device: torch.device
) -> list[dict[str, Any]]:
    """Recorded steps of few turns that verify drafts, beside the same turns' plain decode; by the
    clock, as a turn sees them.

    Raises:
        Wrong: a step was not replayed.
    """
    sequences, context, counts = plan.verified_steps
    name, config = plan.models[-1]
    model = make_model(config, dtype, device)
    num_blocks = blocks_for([(context, 1)] * sequences)
    runner = ModelRunner(
        model,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        recording=Recording(record=recorder(device), max_sequences=sequences),
    )
    runner.pool.blocks.normal_()
    assert runner.graphs is not None
    rows: list[dict[str, Any]] = []
    for count in counts:
        batch = make_batch([(context, count)] * sequences, num_blocks, all_logits=True)
        taken = wall_seconds(lambda: runner.forward(batch), device, _VERIFY_REPEATS)  # noqa: B023
        if runner.graphs.counts.eager:
            raise Wrong(f"a step of {count} tokens a turn was not replayed")
        row = {"model": name, "batch": sequences, "context": context, "queries": count}
        rows.append(row | {"ms": taken * 1e3})
    for row in rows:
        row["over_decode"] = row["ms"] / rows[0]["ms"]
    return rows
