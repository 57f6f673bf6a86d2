"""Time of the gated delta rule on a CPU: a decode and a commit beside copying the same states once,
a prompt beside the chunked function of ``transformers``.

Eight sequences, or one prompt of 1,024 tokens, of one layer with 32 heads of 128 x 128.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen3_next import modeling_qwen3_next

from benchmarks.engine_loops import take_turns
from kernels.delta_rows import DeltaRows, DeltaSpans
from kernels.gated_delta import DeltaDue, DeltaInputs, DeltaRings, fold_rings, gated_delta

SEQUENCES, HEADS, SIZE, PROMPT, COMMITTED, RING = 8, 32, 128, 1024, 8, 32
ROUNDS = 9


def delta_figures() -> tuple[dict[str, Any], dict[str, float]]:
    """Milliseconds, and the ratios that bars are put to."""
    torch.manual_seed(0)
    states = torch.zeros(SEQUENCES, 1, HEADS, SIZE, SIZE)
    copies = torch.empty_like(states)
    rings = _rings()
    prompt, step = _inputs(PROMPT), _inputs(SEQUENCES)
    each = np.arange(SEQUENCES)
    decode_rows = DeltaRows(slots=each, starts=np.arange(SEQUENCES + 1), positions=64 * each)
    prompt_rows = DeltaRows(
        slots=each[:1],
        starts=np.array([0, PROMPT]),
        positions=np.array([0]),
        handed=((0, PROMPT - RING),),
    )

    def commit(count: int) -> None:
        counts = np.full(SEQUENCES, count)
        fold_rings(
            states, rings, DeltaSpans(slots=each, rings=each, committed=5 * each, counts=counts)
        )

    def decode() -> None:
        lacking = DeltaSpans(
            slots=each, rings=each, committed=5 * each, counts=np.ones(SEQUENCES, dtype=np.int64)
        )
        due = DeltaDue(matrices=states, rings=rings, spans=lacking, layer=0)
        gated_delta(step, states[:, 0], decode_rows, due)

    calls = {
        "copy": lambda: copies.copy_(states),
        "decode": decode,
        "commit": lambda: commit(COMMITTED),
        "prefill": lambda: gated_delta(prompt, states[:, 0], prompt_rows),
        "transformers": lambda: _theirs(prompt),
    }
    with torch.inference_mode():
        taken = {name: time.median for name, time in take_turns(calls, rounds=ROUNDS).items()}
    ratios = {
        "delta_decode_over_copy": taken["decode"] / taken["copy"],
        "commit_over_copy": taken["commit"] / taken["copy"],
        "delta_prefill_over_reference": taken["prefill"] / taken["transformers"],
    }
    return {f"{name}_ms": round(1000 * seconds, 2) for name, seconds in taken.items()}, ratios


def _inputs(tokens: int) -> DeltaInputs:
    queries, keys, values = torch.randn(3, tokens, HEADS, SIZE)
    return DeltaInputs(
        queries=functional.normalize(queries, dim=-1),
        keys=functional.normalize(keys, dim=-1),
        values=values,
        decays=-0.1 * torch.rand(tokens, HEADS),
        betas=torch.rand(tokens, HEADS),
    )


def _rings() -> DeltaRings:
    inputs = [_inputs(RING) for _ in range(SEQUENCES)]
    return DeltaRings(
        keys=torch.stack([each.keys for each in inputs])[:, None].contiguous(),
        corrected=torch.stack([each.values for each in inputs])[:, None].contiguous(),
        decays=torch.stack([each.decays for each in inputs])[:, None].contiguous(),
    )


def _theirs(inputs: DeltaInputs) -> Tensor:
    mixed: Tensor = modeling_qwen3_next.torch_chunk_gated_delta_rule(
        inputs.queries[None],
        inputs.keys[None],
        inputs.values[None],
        g=inputs.decays[None],
        beta=inputs.betas[None],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )[0]
    return mixed
