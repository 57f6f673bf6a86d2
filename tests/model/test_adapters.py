"""Adapters in memory: which rows of a step they are for, and what of a folder the model takes."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.low_rank import LowRankMaps, RowAdapters, joined_low_rank
from runtime.config import AdapterSource
from runtime.model.adapters import AdaptedPart, StepAdapters, look_at
from runtime.model.batch import SequenceInput
from runtime.model.config import LoadError
from runtime.model.presets import random_model_config
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
from tests.support.adapters import adaptable_maps, write_adapter
from tests.support.reference import ReferenceModel

CPU = torch.device("cpu")


def source(folder: Path, kind: str, *, seed: int = 0, scale: float = 1.0) -> AdapterSource:
    maps = adaptable_maps(random_model_config(kind))
    return AdapterSource(
        name="red", folder=str(write_adapter(folder, maps, seed=seed, scale=scale))
    )


def runner(kind: str, adapter: AdapterSource, dtype: torch.dtype) -> ModelRunner:
    model = load_model(f"random:{kind}", dtype=dtype, device=CPU, adapters=[adapter])
    return ModelRunner(model, num_blocks=40, block_size=16)


def entry(tokens: np.ndarray, first_block: int, adapter: int) -> SequenceInput:
    return SequenceInput(
        tokens=tokens,
        start=0,
        block_table=np.arange(first_block, first_block + 5, dtype=np.int32),
        num_logits=len(tokens),
        adapter=adapter,
    )


def test_steps_of_compiled_layers_have_their_adapters_too(tmp_path: Path) -> None:
    """In bfloat16 the layers of few tokens are one compiled call, which knows no adapters."""
    adapter = source(tmp_path / "red", "qwen3-tiny", scale=2.0)
    found = runner("qwen3-tiny", adapter, torch.bfloat16)
    if found.model.decoder.native is None:
        pytest.skip("no compiled layers here")
    tokens = np.random.default_rng(0).integers(0, 256, 40, dtype=np.int32)
    first, last = tokens[:-1], tokens[-1:]
    for number, block in ((0, 0), (-1, 5)):
        found.run([entry(first, block, number)])
    ends = [replace(entry(last, block, number), start=39) for number, block in ((0, 0), (-1, 5))]
    logits = found.run(ends).double()
    alone = torch.cat([found.run([end]).clone() for end in ends]).double()
    assert torch.equal(logits, alone), "what is beside a row changes its bits"
    adapted = ReferenceModel.with_adapter("qwen3-tiny", Path(adapter.folder))
    references = adapted, ReferenceModel.random("qwen3-tiny")
    expected = torch.stack([each.logits(tokens.tolist())[-1] for each in references])
    apart = (expected[0] - expected[1]).norm()
    for rows in (logits, alone):
        for row, right in zip(rows, expected, strict=True):
            assert (row - right).norm() < 0.2 * apart


def test_what_an_adapter_takes_of_memory_is_told(tmp_path: Path) -> None:
    adapter = source(tmp_path / "red", "qwen3-tiny")
    (info,) = runner("qwen3-tiny", adapter, torch.bfloat16).model.adapters
    numbers = look_at(adapter).summary.numbers
    assert (info.name, info.rank, info.num_bytes) == ("red", 4, 2 * numbers)
    assert info.digest == look_at(adapter).digest()


@pytest.mark.parametrize(
    ("kind", "module"),
    [
        ("qwen3-tiny", "mlp.gate"),
        ("qwen3-moe-tiny-4", "mlp.experts.0.gate_proj"),
        ("glm-dsa-tiny", "self_attn.indexer.wq_b"),
        ("minimax-m3-tiny", "self_attn.indexer.q_proj"),
        ("deepseek-v3-tiny", "self_attn.kv_b_proj"),
        ("deepseek-v4-tiny", "self_attn.compressor.indexer.q_b_proj"),
        ("glm5-next-tiny", "self_attn.indexer.wq_b"),
    ],
)
def test_a_module_that_the_model_does_not_adapt_is_refused(
    kind: str, module: str, tmp_path: Path
) -> None:
    """Maps that see some rows, or rows in another order, and what is no map by itself; in whatever
    layer has them."""
    for layer in range(random_model_config(kind).num_layers):
        name = f"model.layers.{layer}.{module}"
        write_adapter(tmp_path / "red", [(name, 4, 64)], seed=0)
        adapter = AdapterSource(name="red", folder=str(tmp_path / "red"))
        said = f"layers.{layer}.{module}' is no linear map of this model that can have"
        with pytest.raises(LoadError, match=re.escape(said)):
            runner(kind, adapter, torch.float32)


def test_a_folder_that_is_not_there_is_refused_by_the_adapters_name(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"adapter red: .* is no folder"):
        look_at(AdapterSource(name="red", folder=str(tmp_path / "none")))


def test_rows_have_adapters_for_the_length_of_a_step() -> None:
    step, rows = StepAdapters(), RowAdapters(torch.zeros(2, dtype=torch.int32))

    def fail() -> None:
        with step.of_step(rows, 2):
            assert step.rows is rows
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert step.rows is None


def test_a_map_of_some_rows_is_refused() -> None:
    """It would give adapters to the wrong ones."""
    step, rows = StepAdapters(), RowAdapters(torch.zeros(3, dtype=torch.int32))
    maps = LowRankMaps({0: joined_low_rank([(0, torch.ones(1, 4), torch.ones(5, 1))])}, 1)
    part, result = AdaptedPart(maps, step), torch.zeros(2, 5)
    with step.of_step(rows, 3), pytest.raises(ValueError, match="2 rows of a step of 3"):
        part.add(result, torch.ones(2, 4))
    part.add(result, torch.ones(2, 4))
    assert not result.any(), "no step has adapters now"
