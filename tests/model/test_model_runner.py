"""The forward pass over paged KV: identities that scheduling relies on."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch

from kernels.native_library import native_library
from runtime.config import EngineConfig
from runtime.messages import SamplingParams, TokenArray
from runtime.model import presets
from runtime.model import runner as model_runner
from runtime.model.batch import SequenceInput
from runtime.model.config import LoadError
from runtime.model.layers import WeightBits
from runtime.model.runner import ModelRunner, _records, free_after_loading, load_runner
from runtime.model.sampler import SampleRow, sample
from runtime.model.weights import load_model
from tests.support.begun_states import begun_states
from tests.support.model_shapes import changed
from tests.support.preset_kinds import EVERY_KIND
from tests.support.reference import ReferenceModel, ReferenceTurn, first_difference

CPU = torch.device("cpu")
FAMILIES = EVERY_KIND


def make_runner(name: str, num_blocks: int = 64) -> ModelRunner:
    model = load_model(f"random:{name}", dtype=torch.float64, device=CPU)
    return ModelRunner(model, num_blocks=num_blocks, block_size=16)


def random_tokens(rng: np.random.Generator, count: int) -> TokenArray:
    return rng.integers(0, 256, count, dtype=np.int32)


def whole(runner: ModelRunner, tokens: TokenArray) -> torch.Tensor:
    table = np.arange(-(-len(tokens) // 16), dtype=np.int32)
    return runner.run(
        [SequenceInput(tokens=tokens, start=0, block_table=table, num_logits=len(tokens))]
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.samples(2)
def test_chunks_in_scattered_blocks_equal_one_pass(family: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = random_tokens(rng, 400)
    expected = whole(make_runner(family), tokens)

    runner, table = make_runner(family), rng.permutation(64)[:25].astype(np.int32)
    (slot,), rows, at = begun_states(runner, 1), [], 0
    while at < len(tokens):
        count = min(int(rng.choice([1, 1, 2, 5, 17, 64, 150])), len(tokens) - at)
        chunk = SequenceInput(
            tokens=tokens[at : at + count],
            start=at,
            block_table=table,
            num_logits=count,
            state_slot=slot,
        )
        rows.append(runner.run([chunk]))
        at += count

    assert torch.allclose(torch.cat(rows), expected, rtol=0, atol=1e-9)


@pytest.mark.samples(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_sequence_does_not_notice_its_neighbours(family: str) -> None:
    rng = np.random.default_rng(7)
    prompts = [random_tokens(rng, count) for count in (1, 40, 3, 130)]
    expected = [whole(make_runner(family), prompt)[-1] for prompt in prompts]

    runner, free = make_runner(family), rng.permutation(64).astype(np.int32)
    tables = [free[index * 10 : index * 10 + 10] for index in range(4)]
    logits = runner.run(
        [
            SequenceInput(tokens=prompt, start=0, block_table=table, num_logits=1)
            for prompt, table in zip(prompts, tables, strict=True)
        ]
    )

    assert torch.allclose(logits, torch.stack(expected), rtol=0, atol=1e-9)


def test_logits_come_only_for_the_rows_asked_for() -> None:
    runner = make_runner("qwen3-tiny")
    tokens = random_tokens(np.random.default_rng(0), 20)
    everything = whole(runner, tokens)
    table = np.array([2, 3], dtype=np.int32)

    none = runner.run([SequenceInput(tokens=tokens, start=0, block_table=table, num_logits=0)])
    three = runner.run([SequenceInput(tokens=tokens, start=0, block_table=table, num_logits=3)])

    assert none.shape == (0, everything.shape[1])
    assert torch.allclose(three, everything[-3:], rtol=0, atol=1e-9)


def test_the_pool_hears_which_blocks_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner("qwen3-tiny")
    heard: list[tuple[int, int | None]] = []
    monkeypatch.setattr(runner.pool, "reach", lambda *blocks: heard.append(blocks))
    tokens = random_tokens(np.random.default_rng(0), 20)
    parts = [
        SequenceInput(tokens=tokens, start=0, block_table=np.array(table), num_logits=0)
        for table in ([2, 9], [30, 4])
    ]
    runner.run(parts)
    assert heard == [(30, None)]


def test_text_of_random_models_ends() -> None:
    model = load_model("random:qwen3-tiny", dtype=torch.float32, device=CPU)
    shaping = model.config.shaping
    assert shaping is not None
    tokens = random_tokens(np.random.default_rng(0), shaping.period)
    best = whole(ModelRunner(model, num_blocks=8, block_size=16), tokens).argmax(-1)
    assert best[-1] == shaping.end_of_turn
    assert all(token < shaping.num_plain or token == shaping.end_of_turn for token in best)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.samples(2)
def test_random_schedules_give_the_reference_engines_tokens(family: str, seed: int) -> None:
    """Any chunking, company, block placement and wrong or right drafts: the same tokens."""
    rng = np.random.default_rng(seed)
    runner = make_runner(family, num_blocks=256)
    free = rng.permutation(256).astype(np.int32)
    turns = [
        ReferenceTurn(
            prompt=random_tokens(rng, int(rng.integers(1, 120))).tolist(),
            params=SamplingParams(
                temperature=float(rng.choice([0, 0.8])),
                top_p=float(rng.choice([1, 0.9])),
                seed=int(rng.integers(1 << 40)),
            ),
            max_new_tokens=int(rng.integers(1, 30)),
            end_tokens={258},
        )
        for _ in range(6)
    ]
    tables = [np.sort(free[i * 20 : i * 20 + 20]) for i in range(6)]
    slots = begun_states(runner, len(turns))
    emitted: list[list[int]] = [[] for _ in turns]
    computed = [0] * 6

    def finished(i: int) -> bool:
        ended = bool(emitted[i]) and emitted[i][-1] in turns[i].end_tokens
        return ended or len(emitted[i]) >= turns[i].max_new_tokens

    while not all(finished(i) for i in range(6)):
        chosen = [i for i in range(6) if not finished(i) and rng.random() < 0.7]
        inputs, rows, drafts = [], [], []
        for i in chosen:
            known = [*turns[i].prompt, *emitted[i]]
            end = min(len(known), computed[i] + int(rng.integers(1, 50)))
            draft = rng.integers(0, 256, int(rng.integers(0, 3))).tolist()
            draft = draft if end == len(known) else []
            tokens = np.array(known[computed[i] : end] + draft, dtype=np.int32)
            wanted = 1 + len(draft) if end == len(known) else 0
            inputs.append(
                SequenceInput(
                    tokens=tokens,
                    start=computed[i],
                    block_table=tables[i],
                    num_logits=wanted,
                    state_slot=slots[i],
                )
            )
            positions = range(len(known), len(known) + wanted)
            rows += [SampleRow(params=turns[i].params, position=p) for p in positions]
            drafts.append(draft)
        if not inputs:
            continue
        drawn = iter(sample(runner.run(inputs), rows).tokens.tolist())
        for i, entry, draft in zip(chosen, inputs, drafts, strict=True):
            new = [next(drawn) for _ in range(entry.num_logits)]
            computed[i] = entry.start + len(entry.tokens) - len(draft)
            for token, guess in zip(new, [*draft, None], strict=False):
                if finished(i):
                    break
                emitted[i].append(token)
                if token != guess:
                    break
                computed[i] += 1

    model = ReferenceModel.random(family)
    for turn, tokens in zip(turns, emitted, strict=True):
        assert first_difference(model, turn, tokens) == len(tokens)


@pytest.mark.parametrize(
    ("device", "dtype", "name", "bits", "stacked", "expected"),
    [
        ("cuda", torch.bfloat16, "qwen3-tiny", 16, True, True),
        ("cuda", torch.bfloat16, "qwen3-tiny", "fp8", True, True),
        ("cuda", torch.float64, "qwen3-tiny", 16, True, False),
        ("cuda", torch.bfloat16, "qwen3-moe-tiny", 16, True, True),
        ("cuda", torch.bfloat16, "qwen3-moe-tiny", "fp8", True, True),
        ("cuda", torch.bfloat16, "qwen3-moe-tiny", 16, False, False),
        ("cuda", torch.bfloat16, "nemotron-h-tiny", 16, True, True),
        ("cuda", torch.bfloat16, "deepseek-v3-tiny", 16, True, True),
        ("cuda", torch.bfloat16, "deepseek-v3-100m", 16, True, True),
        ("cuda", torch.bfloat16, "deepseek-v32-tiny", 16, True, False),
        ("cuda", torch.bfloat16, "minimax-m3-tiny", 16, True, False),
        ("cuda", torch.bfloat16, "deepseek-v4-tiny", 16, True, False),
        ("cpu", torch.bfloat16, "qwen3-tiny", 16, True, False),
    ],
)
def test_steps_are_recorded_where_nothing_in_them_asks_the_host(
    device: str,
    dtype: torch.dtype,
    name: str,
    bits: WeightBits,
    stacked: bool,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.model.feed_forward.multiplies_grouped", lambda _: stacked)
    model = load_model(f"random:{name}", dtype=torch.float32, device=CPU, bits=bits)
    elsewhere = replace(model, device=torch.device(device), dtype=dtype)
    assert _records(elsewhere) is expected


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_what_has_no_kernel_on_a_gpu_is_refused_before_anything_is_loaded(
    quantization: Literal["int8", "int4"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = EngineConfig(model="random:qwen3-tiny", device="cuda", quantization=quantization)
    with pytest.raises(LoadError, match=f"quantization {quantization} is for a CPU.*fp8"):
        load_runner(config)


COMPILED = native_library(torch.bfloat16)
AMX = COMPILED is not None and "8" not in COMPILED.kinds_for_many_rows


@pytest.mark.skipif(COMPILED is None or not COMPILED.has_linear, reason="no compiled products here")
@pytest.mark.parametrize(
    ("dtype", "quantization", "own"),
    [
        ("bfloat16", "none", COMPILED is not None and "16" in COMPILED.kinds_for_many_rows),
        ("bfloat16", "int8", not AMX),
        ("float32", "none", False),
    ],
)
def test_torch_has_one_thread_where_compiled_kernels_have_the_others(
    dtype: str, quantization: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads would keep the cores that theirs need: what torch multiplies needs them."""
    theirs: list[int | None] = []
    monkeypatch.setattr(model_runner, "own_threads", theirs.append)
    wide = changed(presets.PRESETS["llama-tiny"], mixer={"head_dim": 32})  # taken whole
    monkeypatch.setitem(presets.PRESETS, "wide-tiny", wide)
    config = EngineConfig(
        model="random:wide-tiny",
        dtype=dtype,  # type: ignore[arg-type]
        quantization=quantization,  # type: ignore[arg-type]
        device="cpu",
        threads=3,
        num_blocks=8,
    )
    load_runner(config)
    assert (torch.get_num_threads(), theirs) == ((1, [None, 3]) if own else (3, [None, None]))


def test_what_loading_left_behind_on_a_gpu_is_let_go_of_before_it_is_asked_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: order.append("emptied"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (order.append("asked"), 0))
    free_after_loading(torch.device("cuda"))
    assert order == ["emptied", "asked"]
