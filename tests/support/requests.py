"""The builder of engine requests: a test says what its case is about, the rest is here."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from runtime.messages import GenerationRequest, SamplingParams, TokenArray


def make_request(
    prompt: int | Sequence[int] | TokenArray = 4,
    *,
    request_id: str = "r",
    branch_id: str | None = None,
    tenant: str = "t",
    base_branch_id: str | None = None,
    base_offset: int = 0,
    max_new_tokens: int = 8,
    sampling: SamplingParams | None = None,
    **more: Any,
) -> GenerationRequest:
    """A whole transcript on a branch of its own unless a base is named. ``prompt`` is the new
    tokens, or how many of them: 0, 1, 2 and so on. ``more`` are the fields with defaults."""
    return GenerationRequest(
        request_id=request_id,
        branch_id=f"branch_{request_id}" if branch_id is None else branch_id,
        tenant=tenant,
        base_branch_id=base_branch_id,
        base_offset=base_offset,
        new_tokens=np.array(range(prompt) if isinstance(prompt, int) else prompt, dtype=np.int32),
        max_new_tokens=max_new_tokens,
        sampling=sampling or SamplingParams(),
        **more,
    )
