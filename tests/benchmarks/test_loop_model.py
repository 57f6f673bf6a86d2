"""Models with wide margins: two engines say the same, whatever they round."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.loop_model import successors, write_margin_model
from benchmarks.report import DataMissing
from runtime.model.batch import SequenceInput
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model
from runtime.tokenizer import Tokenizer

NAME = "random:qwen3-tiny"
VOCAB = 272


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("margins") / "model"
    assert write_margin_model(path, NAME) > 100_000
    return path


def ours(folder: Path, prompt: list[int], steps: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Logits of greedy steps, each from the cache of those before."""
    model = load_model(str(folder), dtype=dtype, device=torch.device("cpu"))
    runner = ModelRunner(model, num_blocks=16, block_size=16)
    table = np.arange(16, dtype=np.int32)
    tokens, start, found = prompt, 0, []
    for _ in range(steps):
        step = SequenceInput(
            tokens=np.array(tokens, np.int32), start=start, block_table=table, num_logits=1
        )
        found.append(runner.run([step])[-1].clone())
        start += len(tokens)
        tokens = [int(found[-1].argmax())]
    return found


def theirs(folder: Path, prompt: list[int], steps: int, dtype: torch.dtype) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    ids = torch.tensor([prompt])
    said = model.generate(ids, max_new_tokens=steps, min_new_tokens=steps, do_sample=False)
    return said[0, len(prompt) :].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ours_and_transformers_say_the_same_greedy_tokens(folder: Path, dtype: torch.dtype) -> None:
    tokenizer = Tokenizer.load(folder)
    source = np.random.default_rng(0)
    follows = successors(VOCAB)
    for length in (1, 40, 130):
        prompt = source.integers(0, VOCAB, length).tolist()
        logits = ours(folder, prompt, 40, dtype)
        said = [int(row.argmax()) for row in logits]
        assert said == theirs(folder, prompt, 40, dtype)
        assert said == [follows[token] for token in [prompt[-1], *said[:-1]]]
        assert len(set(said)) == 40
        assert tokenizer.text_of(said).isprintable()


def test_margins_are_wide_beside_what_rounding_moves(folder: Path) -> None:
    prompt = np.random.default_rng(1).integers(0, VOCAB, 100).tolist()
    exact = ours(folder, prompt, 30, torch.float64)
    rounded = ours(folder, prompt, 30, torch.bfloat16)
    for fine, coarse in zip(exact, rounded, strict=True):
        first, second = fine.topk(2).values.tolist()
        moved = float((fine - coarse.double()).abs().max())
        assert first - second > 10 * moved


def test_a_ring_holds_all_that_may_be_said_and_seeds_differ(tmp_path: Path) -> None:
    follows = successors(VOCAB)
    token, ring = ord("a"), []
    while not ring or token != ord("a"):
        ring.append(token)
        token = follows[token]
    assert len(ring) == len(set(ring)) == len(set(follows))
    assert {ord("~"), VOCAB - 1} < set(ring)
    assert not {0, 10, 127, 258} & set(ring)
    assert successors(VOCAB, 1) != follows
    with pytest.raises(DataMissing):
        write_margin_model(tmp_path, "random:qwen3-none")
