"""The model that ships: small and whole, held to transformers' forward, its calls valid.

What it can do is measured in ``tests/training/test_model_card.py``.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

from examples.train_agent_model.agent import EngineAgent
from examples.train_agent_model.evaluate import long_sessions_of, play_all, summary
from examples.train_agent_model.generator import SessionGenerator
from examples.train_agent_model.rendering import generation_prompt, header, user_turn
from runtime.config import DTypeName, EngineConfig
from runtime.messages import SamplingParams
from runtime.model.hf_config import read_model_config
from runtime.model.kv_pool import block_bytes
from runtime.model.rotary import RotaryTable
from runtime.model.sources import DEFAULT_MODEL
from runtime.process.loading import load_engine
from runtime.tokenizer import Tokenizer
from tests.support.requests import make_request
from tools_api.chat_format import Segment

MAX_BYTES = 12_000_000
PROMPTS = 50
NEW_TOKENS = 24
FIRST_TURN = 24_000
"""Tokens with which coding agents begin: instructions and tools."""


def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    generator = SessionGenerator("prompts", held_out=True)
    found = []
    for number in range(PROMPTS):
        session = generator.session(num_tools=number % 8 + 1, num_questions=1)
        parts = header(session) + user_turn(session.questions[0].text) + generation_prompt()
        segments = [Segment(part.text, part.special) for part in parts]
        found.append(tokenizer.encode(segments).tolist())
    return found


def test_the_folder_is_small_and_whole() -> None:
    names = {path.name for path in DEFAULT_MODEL.iterdir()}
    assert names == {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in DEFAULT_MODEL.iterdir()) <= MAX_BYTES
    config = json.loads((DEFAULT_MODEL / "config.json").read_text())
    assert config["max_position_embeddings"] >= FIRST_TURN + 8192


def long_prompt(num_tokens: int) -> list[int]:
    """Instructions and tools of many sessions one after the other, as a coding agent begins."""
    tokenizer, generator = Tokenizer.load(DEFAULT_MODEL), SessionGenerator("long", held_out=True)
    ids: list[int] = []
    while len(ids) < num_tokens:
        parts = header(generator.session(num_tools=8, num_questions=1))
        ids += tokenizer.encode([Segment(part.text, part.special) for part in parts]).tolist()
    return ids[:num_tokens]


def greedy_tokens(
    model: str, inputs: list[list[int]], *, dtype: DTypeName = "float32"
) -> list[list[int]]:
    """What the engine says to each of the inputs, all of them at once."""
    engine = load_engine(
        EngineConfig(
            model=model, dtype=dtype, device="cpu", threads=1, num_blocks=2048,
            startup_profile_ms=0,
        )
    )  # fmt: skip
    said: dict[str, list[int]] = {}
    for number, tokens in enumerate(inputs):
        said[str(number)] = []
        request = make_request(
            tokens,
            request_id=str(number),
            max_new_tokens=NEW_TOKENS,
            sampling=SamplingParams(temperature=0.0),
        )
        engine.submit([request])
    while engine.has_work:
        step = engine.step()
        for output in step.outputs if step else ():
            said[output.request_id] += output.new_tokens.tolist()
    return list(said.values())


@pytest.mark.tail
def test_the_window_holds_the_first_turn_of_a_coding_agent() -> None:
    (said,) = greedy_tokens("default", [long_prompt(FIRST_TURN)], dtype="auto")
    assert len(said) == NEW_TOKENS


def test_the_angles_of_the_whole_window_are_those_of_transformers() -> None:
    from transformers import AutoConfig
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    config = read_model_config(DEFAULT_MODEL)
    last = config.max_context_tokens - 1
    positions = torch.tensor([0, 2047, 16_383, FIRST_TURN, last])
    theirs = Qwen3RotaryEmbedding(AutoConfig.from_pretrained(DEFAULT_MODEL))
    expected = theirs(torch.zeros(1), positions[None])
    mixer = config.layers[0].mixer
    table = RotaryTable(mixer.rope, mixer.head_dim, torch.float32, torch.device("cpu"))
    rotation = table.at(positions, last)
    assert rotation.query_scale is None
    for ours, angles in zip((rotation.cos, rotation.sin), expected, strict=True):
        assert torch.allclose(ours, angles[0, :, : mixer.head_dim // 2], atol=1e-5, rtol=0)


@pytest.mark.tail
def test_tokens_do_not_depend_on_how_large_the_window_is(tmp_path: Path) -> None:
    """Those of the first 16,384 positions are what they were when the window ended there."""
    former = tmp_path / "former"
    shutil.copytree(DEFAULT_MODEL, former)
    config = json.loads((former / "config.json").read_text())
    (former / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 16_384}))
    inputs = [*prompts(Tokenizer.load(DEFAULT_MODEL))[:8], long_prompt(16_384 - NEW_TOKENS)]
    ours, before = (greedy_tokens(each, inputs, dtype="auto") for each in ("default", str(former)))
    assert ours == before


def test_a_quarter_of_a_small_machine_holds_several_such_sessions() -> None:
    """``keepwarm serve`` takes a quarter of what is free, on a CPU 4 GiB at most: 1 GiB holds
    five in float32, ten in bfloat16."""
    config = read_model_config(DEFAULT_MODEL)
    blocks = -(-FIRST_TURN // 16)
    for dtype, sessions in ((torch.float32, 5), (torch.bfloat16, 10)):
        assert sessions * blocks * block_bytes(config, 16, dtype) <= 1 << 30


@pytest.mark.tail
def test_transformers_gives_the_same_greedy_tokens() -> None:
    from transformers import AutoModelForCausalLM

    inputs = prompts(Tokenizer.load(DEFAULT_MODEL))
    ours = greedy_tokens("default", inputs)
    theirs = AutoModelForCausalLM.from_pretrained(DEFAULT_MODEL, dtype=torch.float32)
    for number, tokens in enumerate(inputs):
        prompt = torch.tensor([tokens])
        found = theirs.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
        )
        assert ours[number] == found[0, len(tokens) :].tolist(), f"prompt {number}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.samples(1)
def test_calls_under_the_grammar_are_always_valid(dtype: str) -> None:
    agent = EngineAgent("default", dtype=dtype, threads=1)
    played = play_all(agent, long_sessions_of(9, 2), grammar=True)
    figures = summary([verdict for session in played for verdict in session])
    assert figures["arguments_valid"] == 1.0
