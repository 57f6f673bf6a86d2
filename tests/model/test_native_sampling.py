"""The compiled draw is there where a compiler is, and no harm is done where it is not."""

import numpy as np
import pytest
import torch

from kernels import native_sampling
from kernels.masked_sampling import sample, sample_reference
from kernels.native_library import compiled_library
from kernels.native_sampling import native_sampler
from tests.support.sampling_batches import make_batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_rows_at_once_are_drawn_like_each_alone(dtype: torch.dtype) -> None:
    """Enough of them for several threads."""
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(40, 2000)) * 3).to(dtype)
    batch = make_batch(rng, 40, 2000)
    assert torch.equal(sample(logits, batch), sample_reference(logits, batch))


def test_other_types_and_machines_without_a_compiler_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert native_sampler(torch.bfloat16) is None
    assert (native_sampler(torch.float32) is None) == (compiled_library() is None)
    monkeypatch.setattr(native_sampling, "compiled_library", lambda: None)
    native_sampler.cache_clear()
    rng = np.random.default_rng(1)
    logits, batch = torch.from_numpy(rng.normal(size=(5, 300))), make_batch(rng, 5, 300)
    assert torch.equal(sample(logits, batch), sample_reference(logits, batch))
    native_sampler.cache_clear()
