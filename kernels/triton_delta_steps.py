"""Steps by the gated delta rule and by Mamba-2 in Triton: short sequences token by token, long ones
chunk by chunk, beside each other.

What ``kernels.gated_delta`` says. How a sequence is computed depends on no other of its step.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import torch
from torch import Tensor

from kernels.delta_rows import DeltaPlaces, DeltaRows
from kernels.gated_delta import DeltaDue, DeltaInputs, DeltaOutputs
from kernels.triton_channel_delta import many_by_channel
from kernels.triton_delta import few_tokens
from kernels.triton_delta_chunks import many_tokens
from kernels.upload import upload_together


def gated_delta(
    inputs: DeltaInputs, matrices: Tensor, rows: DeltaRows, due: DeltaDue | None
) -> DeltaOutputs:
    """See ``kernels.gated_delta.gated_delta``."""
    given = (inputs.queries, inputs.keys, inputs.values, inputs.decays)
    queries, keys, values, decays = (each.contiguous() for each in given)
    betas = None if inputs.betas is None else inputs.betas.contiguous()
    inputs = DeltaInputs(queries=queries, keys=keys, values=values, decays=decays, betas=betas)
    # Rows of nobody are given numbers too: what follows may look at a whole row.
    empty = torch.zeros_like if rows.recorded else torch.empty_like
    outputs = DeltaOutputs(
        mixed=empty(values),
        corrected=empty(values),
        handed=matrices.new_empty(len(rows.handed), *matrices.shape[1:]),
    )
    if not len(rows.slots):
        return outputs
    places = rows.there
    if places is None:
        spans = None if due is None else due.spans
        places = DeltaPlaces(*upload_together(rows.places(spans), matrices.device))
    if due is not None or not rows.by_chunks().all():
        few_tokens(inputs, matrices, places, due, outputs)
    if len(places.firsts):
        many = many_by_channel if inputs.by_channel else many_tokens
        many(inputs, matrices, places, outputs)
    return outputs
