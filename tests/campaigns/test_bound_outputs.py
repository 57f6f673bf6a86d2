"""What a grammar binds is whole and legal, or ends as cut with the beginning of something legal.

``KEEPWARM_BOUND_OUTPUTS`` sets how many outputs the drawn part writes (10^5 for a campaign; each is
written in three ways), ``KEEPWARM_BOUND_SEED`` where it begins, ``KEEPWARM_BOUND_TURNS`` how many
turns the served part plays. Drawn tokens stand in a model's place; a failure names its seed.
"""

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runtime.grammar.refusal import GrammarRefused
from runtime.grammar.state import GrammarState
from runtime.messages import FinishReason
from runtime.tokenizer import Tokenizer
from tests.support import vocabularies
from tests.support.bound_outputs import STOPS, Task, Writer, fault, random_task, read
from tests.support.tokenizers import byte_level_json, sentencepiece_json, write_tokenizer

OUTPUTS = int(os.environ.get("KEEPWARM_BOUND_OUTPUTS", "1000"))
SEED = int(os.environ.get("KEEPWARM_BOUND_SEED", "0"))
PER_TASK = 20
NAMES = (*vocabularies.NAMES, "llama", "mistral")
LLAMA_SPECIALS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
TOOLS = Path(__file__).parents[3] / "shared" / "schemas" / "tools.jsonl"
_BEYOND_JSONSCHEMA = ("oneOf", "format", "pattern", "$ref", "not", "contains")


def parameters_in_use(rng: random.Random, most: int) -> list[dict[str, Any]]:
    """Of tools of others, where they are at hand; those whose every keyword both judges read
    alike."""
    if not TOOLS.exists():
        return []
    rows = [json.loads(line)["schema"] for line in TOOLS.read_text("utf-8").splitlines()]
    found = [row.get("parameters", row) for row in rows if isinstance(row, dict)]
    plain = [s for s in found if not any(f'"{k}"' in json.dumps(s) for k in _BEYOND_JSONSCHEMA)]
    objects = [s for s in plain if isinstance(s, dict) and s.get("type") == "object"]
    return rng.sample(objects, min(most, len(objects)))


def vocabulary(name: str, folder: Path) -> Tokenizer:
    """One of three that differ in what their tokens cover, or one with the calls of another
    family: without tags, or in a list."""
    if name in vocabularies.NAMES:
        return vocabularies.vocabulary(name, folder)
    if name == "mistral":
        return Tokenizer.load(write_tokenizer(folder, sentencepiece_json()), model_type="mistral")
    raw = byte_level_json()
    for token, text in zip(raw["added_tokens"], LLAMA_SPECIALS, strict=False):
        token["content"] = text
    raw["added_tokens"] = raw["added_tokens"][: len(LLAMA_SPECIALS)]
    return Tokenizer.load(write_tokenizer(folder, raw), model_type="llama")


def random_limit(rng: random.Random, least: int) -> int:
    """From the least that is accepted upward."""
    return least + rng.choice((0, 1, 2, 3, 5, 8, 13, 21, 34, rng.randint(0, 90)))


def play(writer: Writer, task: Task, rng: random.Random, seed: int) -> str:
    """One output in all ways; returns how it ended."""
    state = GrammarState(writer.compile(task), writer.tokenizer)
    limit = random_limit(rng, state.least_tokens)
    stops = tuple(rng.sample(STOPS, rng.choice((0, 0, 1, 2))))
    written = writer.write(task, limit=limit, stops=stops, seed=seed, way="runs")
    for way in ("single", "drafts"):
        again = writer.write(
            task, limit=limit, stops=stops, seed=seed, way=way, truth=written.tokens
        )
        assert again == written, way
    assert written.reason is not FinishReason.ERROR, written.message
    whole = written.reason is not FinishReason.LENGTH
    if written.reason is FinishReason.STOP_STRING:
        assert task.choice == "auto", "a bound output was cut by a stop string"
    wrong = fault(task, read(writer, task, written, stops, seed), whole=whole)
    assert wrong is None, (limit, stops, written.reason, wrong)
    return written.reason.value


@pytest.mark.parametrize("name", NAMES)
def test_a_bound_output_is_legal_or_begins_something_legal(name: str, tmp_path: Path) -> None:
    writer = Writer(vocabulary(name, tmp_path))
    in_use = parameters_in_use(random.Random(SEED), 300)
    ended: Counter[str] = Counter()
    for number in range(max(1, OUTPUTS // PER_TASK // len(NAMES))):
        seed = SEED * 1_000_000 + number
        rng = random.Random(seed)
        task = random_task(rng, in_use, thinks=writer.format.thinking)
        try:
            writer.compile(task)
        except GrammarRefused:
            ended["refused"] += 1
            continue
        for turn in range(PER_TASK):
            try:
                ended[play(writer, task, rng, seed * PER_TASK + turn)] += 1
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, output {turn}, {task}: {error}") from error
    print(f"{name}: {dict(ended)}")
    assert ended["refused"] * PER_TASK < OUTPUTS // len(NAMES)
    assert min(ended["stop"], ended["length"]) > OUTPUTS // 40
