"""The reference engine agrees with ``transformers``, with the kernels' law, and with itself."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from kernels.masked_sampling import position_bits
from runtime.messages import SamplingParams
from runtime.model.hf_config import read_model_config
from runtime.model.sampler import SampleRow, sample
from tests.support.hf_models import FAMILIES, make_model, save
from tests.support.reference import (
    ReferenceModel,
    ReferenceTurn,
    draw,
    first_difference,
    generate,
    uniform,
)

VOCAB = 60


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = make_model(family)
    weights = load_file(save(model, tmp_path) / "model.safetensors")
    reference = ReferenceModel(read_model_config(tmp_path), lambda name, shape: weights[name])
    tokens = np.random.default_rng(0).integers(0, 320, 300)
    with torch.inference_mode():
        expected = model(torch.from_numpy(tokens)[None]).logits[0]
    assert (reference.logits(tokens.tolist()) - expected).abs().max() < 1e-4


def test_philox_agrees_with_the_published_vectors() -> None:
    """Known answers of Random123 (kat_vectors, philox4x32-10): zero key and counter."""
    words = (0x6627E8D5, 0xE169C58D)
    assert uniform(0, 0) == ((words[0] >> 5) * 2**26 + (words[1] >> 6)) / 2**53


@pytest.mark.parametrize("seed", range(4))
def test_randomness_is_the_same_in_both_implementations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    seeds = rng.integers(0, 1 << 64, 50, dtype=np.uint64)
    positions = rng.integers(0, 1 << 20, 50, dtype=np.uint64)
    expected = [uniform(int(s), int(p)) for s, p in zip(seeds, positions, strict=True)]
    assert (position_bits(seeds, positions) / 2.0**53).tolist() == expected


@pytest.mark.parametrize("seed", range(30))
def test_draws_equal_those_of_the_sampler(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(40, VOCAB)) * 3)
    rows, expected = [], []
    for values in logits:
        params = SamplingParams(
            temperature=float(rng.choice([0, 0.4, 1, 2])),
            top_k=int(rng.choice([0, 1, 7, 500])),
            top_p=float(rng.choice([1, 0.9, 0.3])),
            min_p=float(rng.choice([0, 0.1])),
            seed=int(rng.integers(-(1 << 62), 1 << 62)),
            repetition_penalty=float(rng.choice([1, 1.3])),
            presence_penalty=float(rng.choice([0, 0.5])),
            frequency_penalty=float(rng.choice([0, -0.5])),
        )
        emitted = rng.integers(0, VOCAB, 12, dtype=np.int32)
        allowed = rng.choice(VOCAB, 20, replace=False).tolist() if rng.random() < 0.5 else None
        position = int(rng.integers(1 << 20))
        rows.append(
            SampleRow(
                params=params,
                position=position,
                emitted=emitted,
                mask=None if allowed is None else pack(allowed),
            )
        )
        expected.append(draw(values, params, position, emitted.tolist(), allowed))
    assert sample(logits, rows).tokens.tolist() == expected


def pack(allowed: list[int]) -> np.ndarray:
    bits = np.zeros(-(-VOCAB // 32) * 32, dtype=np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


@pytest.mark.parametrize("temperature", [0, 1])
def test_one_pass_finds_the_same_tokens_as_one_pass_per_token(temperature: float) -> None:
    model = ReferenceModel.random("qwen3-tiny")
    turn = ReferenceTurn(
        prompt=[1, 2, 3],
        params=SamplingParams(temperature=temperature, seed=5, frequency_penalty=0.3),
        max_new_tokens=12,
        end_tokens={258},
        allowed=lambda emitted: range(100) if len(emitted) % 2 else None,
    )
    tokens = generate(model, turn)
    assert first_difference(model, turn, tokens) == len(tokens)
    for index in range(len(tokens)):
        wrong = [*tokens[:index], (tokens[index] + 1) % 100, *tokens[index + 1 :]]
        assert first_difference(model, turn, wrong) == index
    assert first_difference(model, turn, [*tokens, 7]) == len(tokens)
