"""Folders in few bits among several ranks: each has its part of the codes, and all compute what one
does.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from kernels.codes import Codes, widen_codes
from runtime.config import EngineConfig
from runtime.model.config import LoadError
from runtime.model.cut_weights import CutWeights
from runtime.model.memory_plan import bytes_of_part
from runtime.model.partition import Partition, part_of
from runtime.model.presets import PRESETS
from runtime.model.runner import load_runner
from runtime.model.sources import find_source
from runtime.model.weights import contents_of
from runtime.process.model_report import model_report
from tests.model.test_quantised_families import GATES
from tests.model.test_quantised_families import step as step_model
from tests.model.test_ranks import FINE, loaded, step
from tests.support.engine_driver import EngineDriver
from tests.support.gguf_files import write_gguf
from tests.support.quantised_folders import FORMATS, SIZES, gpt_oss_folder, write_folder
from tests.support.thread_ranks import thread_ranks

CPU = torch.device("cpu")


def config_of(model: Path, ranks: int, **more: object) -> EngineConfig:
    settings: dict[str, object] = {"dtype": "float64", "device": "cpu", "threads": 1} | more
    return EngineConfig(
        model=str(model),
        tensor_parallel=ranks,
        num_blocks=64,
        **settings,  # type: ignore[arg-type]
    )


def logits_of(config: EngineConfig) -> Tensor:
    runner = loaded(config)
    try:
        return runner.run(step()).clone()
    finally:
        runner.close()


def compared(model: Path, ranks: int, *, within: float = FINE, **more: object) -> None:
    alone = logits_of(config_of(model, 1, **{k: v for k, v in more.items() if k == "dtype"}))
    found = logits_of(config_of(model, ranks, **more))
    assert (found - alone).abs().max() <= within * alone.abs().max()


def experts_model(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    config = transformers.Qwen3MoeConfig(
        **SIZES,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        norm_topk_prob=True,
        tie_word_embeddings=False,
    )
    return transformers.Qwen3MoeForCausalLM(config).eval()


@pytest.mark.samples(4)
@pytest.mark.parametrize("form", FORMATS)
def test_a_folder_in_few_bits_is_cut_into_two(form: str, tmp_path: Path) -> None:
    """Groups of 128 inputs are parted at 64, each half with the group's scale."""
    write_folder(tmp_path, FORMATS[form], seed=1)
    compared(tmp_path, 2)


def test_products_in_tiles_are_those_of_one_rank(tmp_path: Path) -> None:
    """In bfloat16 each rank rounds its part of a sum."""
    write_folder(tmp_path, FORMATS["packed 4 zeros"], seed=2)
    compared(tmp_path, 2, within=0.05, dtype="bfloat16")


@pytest.mark.parametrize("dealt", [False, True])
def test_experts_in_few_bits_are_cut_or_dealt_out(dealt: bool, tmp_path: Path) -> None:
    form = FORMATS["awq 32" if dealt else "fp8 blocks"]
    write_folder(tmp_path, form, seed=3, kept=("lm_head",), make=experts_model)
    compared(tmp_path, 2, expert_parallel=dealt)


@pytest.mark.parametrize("dealt", [False, True])
def test_stacks_of_one_map_are_cut_or_dealt_out(dealt: bool, tmp_path: Path) -> None:
    """Of Step 3.7, beside gates of heads in 16 bits, which are cut with the heads."""
    form = FORMATS["fp8 tensor" if dealt else "fp8 blocks"]
    write_folder(tmp_path, form, seed=3, kept=("lm_head", *GATES), make=step_model)
    compared(tmp_path, 2, expert_parallel=dealt)


def test_stacks_of_experts_in_mxfp4_are_dealt_out(tmp_path: Path) -> None:
    gpt_oss_folder(tmp_path, seed=4)
    compared(tmp_path, 2, expert_parallel=True)


@pytest.mark.samples(2)
@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("llama", "Q8_0"),
        ("llama", "Q4_0"),
        ("qwen2", "Q4_0"),
        ("qwen2", "Q4_K"),
        ("qwen3", "F16"),
        ("qwen3moe", "MXFP4"),
    ],
)
def test_a_gguf_file_is_cut_into_two(architecture: str, kind: str, tmp_path: Path) -> None:
    """Of a Llama's queries and keys the rows are kept in another order; Qwen2's have biases."""
    write_gguf(tmp_path / "model.gguf", architecture, kind, seed=5)
    compared(tmp_path / "model.gguf", 2)


@pytest.mark.parametrize(
    ("write", "ranks", "said"),
    [
        (
            lambda folder: gpt_oss_folder(folder, seed=0),
            2,
            "cannot be had: 32 inputs of model.layers.0.mlp.experts.0.down_proj share a scale, "
            "and a rank would have 48 of its 96; parts are of whole groups, or of multiples of 32",
        ),
        (
            lambda folder: write_folder(
                folder, FORMATS["gptq 4 v2"], seed=0, kept=("lm_head",), make=_narrow
            ),
            4,
            "down_proj share a scale, and a rank would have 48 of its 192; parts are of whole "
            "groups, or of multiples of 32; what can be had: 2",
        ),
    ],
)
def test_groups_that_would_be_cut_too_finely_are_refused_before_a_weight_is_read(
    write: Callable[[Path], object],
    ranks: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(tmp_path)
    config = config_of(tmp_path, ranks)

    def reads(*arguments: object) -> None:
        raise AssertionError("a weight is read")

    monkeypatch.setattr(CutWeights, "matrix", reads)
    monkeypatch.setattr(CutWeights, "tensor", reads)
    leading = thread_ranks(config)
    try:
        with pytest.raises(LoadError) as refused:
            load_runner(config, ranks=leading)
    finally:
        leading.close()
    assert f"{tmp_path}: --tensor-parallel {ranks} " in str(refused.value)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert said in (model_report(config).fault or "")


def _narrow(seed: int) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    sizes = {**SIZES, "intermediate_size": 192, "num_key_value_heads": 4}
    config = transformers.Qwen3Config(**sizes, head_dim=32, tie_word_embeddings=False)
    return transformers.Qwen3ForCausalLM(config).eval()


def test_turns_of_two_ranks_are_those_of_one(tmp_path: Path) -> None:
    write_folder(tmp_path, FORMATS["packed 4 group 128"], seed=6)
    said = []
    for ranks in (1, 2):
        driver = EngineDriver.load(model=str(tmp_path), tensor_parallel=ranks, num_blocks=64)
        first = driver.turn(list(b"the weather of the city"), session="s", max_new_tokens=24)
        told = 23 + len(first.tokens)
        more = driver.turn(list(b"?"), session="s", base="s", offset=told, max_new_tokens=24)
        said.append((first.tokens, more.tokens))
        driver.close()
    assert said[0] == said[1]


def test_the_memory_of_a_part_is_told_by_what_is_cut(tmp_path: Path) -> None:
    write_folder(tmp_path, FORMATS["packed 4 group 32"], seed=0)
    found = find_source(str(tmp_path))
    whole = contents_of(found, torch.bfloat16, CPU, 16).held_bytes
    parts = [
        contents_of(found, torch.bfloat16, CPU, 16, Partition(ranks=2, rank=rank)).held_bytes
        for rank in range(2)
    ]
    same = 2 * 320 * 128 * 2  # embedding and head, on both
    assert parts[0] == parts[1]
    assert sum(parts) == pytest.approx(whole + same, rel=0.02)
    tiny = PRESETS["qwen3-tiny"]
    assert bytes_of_part(1000, tiny, tiny, 2) == 1000
    assert bytes_of_part(10, tiny, part_of("", tiny, Partition(ranks=2, rank=0)), 2) == 10


@pytest.mark.parametrize(
    ("kind", "group", "low", "size", "left"),
    [
        ("int4", 32, 64, 32, 32),
        ("int4", 128, 64, 64, 64),
        ("int4", 256, 128, 128, 128),
        ("int8", 64, 96, 96, 32),
        ("e4m3", 128, 128, 128, 128),
        ("e2m1", 32, 160, 96, 32),
    ],
)
def test_columns_of_codes_are_the_columns_of_their_numbers(
    kind: str, group: int, low: int, size: int, left: int
) -> None:
    draw = torch.Generator().manual_seed(0)
    narrow, groups = kind in ("int4", "e2m1"), 256 // group
    values = torch.randint(0, 127, (8, 128 if narrow else 256), generator=draw)
    scales = torch.rand(8, groups, generator=draw) + 0.1
    if kind == "e2m1":
        scales = torch.randint(110, 130, (8, groups), generator=draw).to(torch.uint8)
    zeros = None
    if kind == "int4":
        zeros = torch.randint(0, 16, (8, groups), generator=draw).to(torch.int8)
    codes = Codes(
        kind=kind,  # type: ignore[arg-type]
        values=values.to(torch.uint8),
        scales=scales,
        zeros=zeros,
        group=group,
    )
    part = codes.columns(low, size)
    assert part.group == left
    whole = widen_codes(codes, torch.float32)
    assert torch.equal(widen_codes(part, torch.float32), whole[:, low : low + size])
    if narrow:
        with pytest.raises(ValueError, match="share a byte"):
            codes.columns(1, 32)
