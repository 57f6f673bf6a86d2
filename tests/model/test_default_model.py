"""The model that ships: small and whole, held to transformers' forward, its calls valid.

What it can do is measured in ``tests/training/test_model_card.py``.
"""

import json

import pytest
import torch

from examples.train_agent_model.agent import EngineAgent
from examples.train_agent_model.evaluate import long_sessions_of, play_all, summary
from examples.train_agent_model.generator import SessionGenerator
from examples.train_agent_model.rendering import generation_prompt, header, user_turn
from runtime.config import EngineConfig
from runtime.messages import SamplingParams
from runtime.model.weights import DEFAULT_MODEL
from runtime.process.loading import load_engine
from runtime.tokenizer import Tokenizer
from tests.support.requests import make_request
from tools_api.chat_format import Segment

MAX_BYTES = 12_000_000
PROMPTS = 50
NEW_TOKENS = 24


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
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in DEFAULT_MODEL.iterdir()) <= MAX_BYTES
    config = json.loads((DEFAULT_MODEL / "config.json").read_text())
    assert config["max_position_embeddings"] >= 16_384


def test_transformers_gives_the_same_greedy_tokens() -> None:
    from transformers import AutoModelForCausalLM

    engine = load_engine(
        EngineConfig(model="default", dtype="float32", device="cpu", threads=1, num_blocks=2048)
    )
    tokenizer = Tokenizer.load(DEFAULT_MODEL)
    inputs = prompts(tokenizer)
    ours: dict[str, list[int]] = {}
    for number, tokens in enumerate(inputs):
        request = make_request(
            tokens,
            request_id=str(number),
            max_new_tokens=NEW_TOKENS,
            sampling=SamplingParams(temperature=0.0),
        )
        ours[str(number)] = []
        engine.submit([request])
    while engine.has_work:
        step = engine.step()
        for output in step.outputs if step else ():
            ours[output.request_id] += output.new_tokens.tolist()

    theirs = AutoModelForCausalLM.from_pretrained(DEFAULT_MODEL, dtype=torch.float32)
    for number, tokens in enumerate(inputs):
        prompt = torch.tensor([tokens])
        found = theirs.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
        )
        assert ours[str(number)] == found[0, len(tokens) :].tolist(), f"prompt {number}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_calls_under_the_grammar_are_always_valid(dtype: str) -> None:
    agent = EngineAgent("default", dtype=dtype, threads=1)
    played = play_all(agent, long_sessions_of(9, 2), grammar=True)
    figures = summary([verdict for session in played for verdict in session])
    assert figures["arguments_valid"] == 1.0
