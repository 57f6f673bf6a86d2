"""Recorded sessions as chains of turns."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.trace_sessions import choose, load_chains


def write(path: Path, *requests: list[object]) -> Path:
    row = {"id": "one", "tools_tok": 0, "sys_tok": 0, "subs": [], "req": list(requests)}
    path.write_text(json.dumps(row) + "\n")
    return path


def test_an_append_only_turn_keeps_prompt_and_answer_of_the_one_before(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        [0.0, 0, -1, 0, 640, 64, 0, 5.0, 3],
        [9.0, 0, 0, 640, 1000, 50, 4.0, 5.0, 17],
    )
    first, second = load_chains(path)[0].turns
    assert (first.prompt_tokens, first.output_tokens, first.calls_tool) == (640, 64, True)
    assert (second.kept_tokens, second.gap_s, second.calls_tool) == (704, 4.0, False)
    assert np.array_equal(second.tokens[:704], first.tokens)


def test_a_rewritten_turn_keeps_the_common_prefix_only(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        [0.0, 0, -1, 0, 640, 64, 0, 5.0, 3],
        [9.0, 0, 0, 128, 1000, 50, 4.0, 5.0, 3],
    )
    assert load_chains(path)[0].turns[1].kept_tokens == 128


def test_sub_agents_and_sessions_that_grow_too_long_are_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        [0.0, 0, -1, 0, 640, 64, 0, 5.0, 3],
        [1.0, 1, -1, 0, 9999, 64, 0, 5.0, 3],
    )
    assert len(load_chains(path, max_context=1000)[0].turns) == 1
    assert load_chains(path, max_context=700) == []


@pytest.mark.parametrize("scale", [2, 32])
def test_scaled_lengths_keep_equal_prefixes_equal(tmp_path: Path, scale: int) -> None:
    path = write(
        tmp_path / "t.jsonl",
        [0.0, 0, -1, 0, 6400, 640, 0, 5.0, 3],
        [9.0, 0, 0, 6400, 9600, 320, 4.0, 5.0, 3],
    )
    first, second = load_chains(path, scale=scale)[0].turns
    assert (first.prompt_tokens, second.prompt_tokens) == (6400 // scale, 9600 // scale)
    assert second.kept_tokens == 7040 // scale


def test_the_choice_depends_on_the_seed_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [0.0, 0, -1, 0, 640, 64, 0, 5.0, 3])
    sessions = load_chains(path) * 50
    assert choose(sessions, 9, 1) == choose(sessions, 9, 1)
    assert len(choose(sessions[:2], 9, 1)) == 2
