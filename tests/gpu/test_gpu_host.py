"""How many launches a layer of a recorded step takes: no more than its bar says."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed; `make kernels` has it")

from benchmarks.gpu_host import MODELS, launches_of_a_layer, launches_of_a_model, steps


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU launches what is counted here")
@pytest.mark.parametrize(("name", "most"), [("decode", 11), ("verify", 12), ("fp8", 14)])
def test_a_layer_of_a_recorded_step_is_a_handful_of_launches(name: str, most: int) -> None:
    need, bits = steps()[name]
    found = launches_of_a_layer(need, bits)
    assert 8 <= sum(found.values()) <= most, found


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU launches what is counted here")
@pytest.mark.parametrize("preset", MODELS)
def test_a_models_decode_is_no_more_launches_than_it_was(preset: str) -> None:
    found, layers = launches_of_a_model(preset)
    assert sum(found.values()) <= MODELS[preset] * layers, found
