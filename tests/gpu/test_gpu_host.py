"""How many launches a layer of a recorded step takes: no more than its bar says."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed; `make kernels` has it")

from benchmarks.gpu_host import launches_of_a_layer, steps


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU launches what is counted here")
@pytest.mark.parametrize(("name", "most"), [("decode", 11), ("verify", 12), ("fp8", 14)])
def test_a_layer_of_a_recorded_step_is_a_handful_of_launches(name: str, most: int) -> None:
    need, bits = steps()[name]
    found = launches_of_a_layer(need, bits)
    assert 8 <= sum(found.values()) <= most, found
