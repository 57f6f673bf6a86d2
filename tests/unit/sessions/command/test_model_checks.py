"""What a model is, how it is spoken to and what it takes is told before a server starts."""

from pathlib import Path
from typing import Any

import pytest

from runtime.model.presets import random_model_config
from sessions.command.finding import Finding
from sessions.command.model_checks import family, model, read_model, spoken_to
from sessions.command.options import ServeOptions, read_serve_options
from sessions.command.serve_settings import SERVE_SETTINGS
from sessions.command.settings import resolve
from tests.support import chat_templates, judged_templates
from tests.support.judged_templates import default_model_with

REPORT = {
    "fault": None,
    "form": "safetensors, fp8 (e4m3 in blocks of 128 x 128)",
    "left": "*visual.* (312), mtp.* (5)",
    "dtype": "bfloat16",
    "device": "cpu",
    "weight_bytes": 28 << 30,
    "adapter_bytes": 0,
    "free_bytes": 60 << 30,
    "kv_bytes": 4 << 30,
    "token_bytes": 64 << 10,
    "tokens": 65536,
    "host_tokens": 0,
    "host_near_tokens": 0,
    "context": 40960,
    "state_slots": None,
    "state_bytes": 0,
    "state_share": 0.0,
    "host_states": 0,
    "disk_states": 0,
    "window_tokens": 0,
    "windowed_share": 0.0,
    "near_tokens": 0,
    "near_token_bytes": 0,
    "ranks": 1,
}


def options(**typed: str) -> ServeOptions:
    return read_serve_options(resolve("serve", SERVE_SETTINGS, typed=typed, environment={}), {})


def verdict(finding: Finding) -> str:
    assert bool(finding.advice) == (finding.verdict != "ok")
    return finding.verdict


def test_a_model_that_is_not_there_is_a_fault() -> None:
    assert verdict(model("default")) == "ok"
    assert verdict(model("/nowhere/model")) == "fault"


def test_of_a_model_that_is_there_context_and_chat_format_are_told(tmp_path: Path) -> None:
    assert [finding.what for finding in spoken_to(options(model="/nowhere"))] == ["model"]
    _, _, context, chat_format = spoken_to(options(max_context_tokens="1000"))
    assert (verdict(context), context.found) == ("ok", "1000 of 32768 tokens")
    assert (verdict(chat_format), chat_format.found) == ("ok", "Hermes")
    _, _, context, _ = spoken_to(options(max_context_tokens="32769"))
    assert verdict(context) == "fault"
    assert "32769" in context.found
    assert "32768" in context.found
    coder = default_model_with(tmp_path / "coder", judged_templates.QWEN3_CODER)
    *_, chat_format = spoken_to(options(model=str(coder)))
    assert verdict(chat_format) == "ok"
    assert chat_format.found == (
        "Qwen3-Coder: the chat template writes 20 conversations as qwen3-coder does"
    )
    plain = default_model_with(tmp_path / "plain", chat_templates.WITHOUT_CALLS)
    *_, chat_format = spoken_to(options(model=str(plain)))
    assert verdict(chat_format) == "note"
    assert "requests with tools are refused" in chat_format.advice
    other = default_model_with(tmp_path / "other", judged_templates.COUNTS_ITS_TURNS)
    *_, chat_format = spoken_to(options(model=str(other)))
    assert verdict(chat_format) == "fault"
    assert "at character" in chat_format.found
    (coder / "tokenizer.json").write_text("{}")
    *_, chat_format = spoken_to(options(model=str(coder)))
    assert verdict(chat_format) == "fault"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("qwen3-100m", "qwen3: 12 layers of attention, 101 million parameters"),
        (
            "gpt-oss-tiny",
            "gpt_oss: 2 layers of attention, 1 of them with a window, 2 of 8 experts a token, "
            "178016 parameters",
        ),
        (
            "gemma4-tiny",
            "gemma4_text: 5 layers of attention, 3 of them with a window, 2 of them read the keys "
            "and values of others, 189373 parameters",
        ),
        (
            "qwen3.5-tiny",
            "qwen3_5_text: 2 layers of attention, 3 of gated delta nets, 185980 parameters",
        ),
        (
            "kimi-linear-tiny",
            "kimi_linear: 2 layers of attention, 3 of Kimi delta attention, 3 of 8 experts a "
            "token, 273792 parameters",
        ),
        (
            "granite-hybrid-tiny",
            "granitemoehybrid: 1 layers of attention, 3 of Mamba-2, 146564 parameters",
        ),
        (
            "lfm2-tiny",
            "lfm2: 2 layers of attention, 3 of short convolutions, 184640 parameters",
        ),
    ],
)
def test_a_family_is_told_with_what_its_layers_are_made_of(name: str, told: str) -> None:
    found = family(random_model_config(name))
    assert (verdict(found), found.found) == ("ok", told)


@pytest.mark.parametrize(
    ("own", "expected", "told"),
    [
        ({}, "ok", "sessions that fit: 8 of 8192 tokens, 2 of 32768 tokens, 1 of 40960 tokens"),
        ({"context": 8192}, "ok", "sessions that fit: 8 of 8192 tokens"),
        ({"context": 512}, "ok", "sessions that fit: 128 of 512 tokens"),
        ({"ranks": 2}, "ok", "of each of 2 ranks; weights take 28 GiB"),
        ({"state_slots": 5}, "ok", "sessions that fit: 5 of 8192 tokens, 2 of 32768 tokens"),
        ({"host_tokens": 999}, "ok", "host memory holds 999 tokens more"),
        (
            {"host_tokens": 999, "host_near_tokens": 99, "near_tokens": 2048, "window_tokens": 9},
            "ok",
            "host memory holds 999 tokens more, those layers 99 of them",
        ),
        (
            {"state_slots": 5, "state_bytes": 61 << 20, "state_share": 0.125},
            "ok",
            "5 states of 61 MiB each, 12.5 % of what both take",
        ),
        (
            {"state_slots": 5, "host_tokens": 99, "host_states": 40, "disk_states": 300},
            "ok",
            "host memory holds 99 tokens more and 40 states, the disk 300",
        ),
        (
            {"window_tokens": 512, "windowed_share": 0.8},
            "ok",
            "layers that see 512 tokens keep all: a session of 40960 tokens takes 4.76 times what "
            "its windows need",
        ),
        (
            {
                "window_tokens": 512,
                "windowed_share": 0.8,
                "near_tokens": 2048,
                "near_token_bytes": 12 << 10,
            },
            "ok",
            "sessions that fit: 4 of 8192 tokens, 2 of 32768 tokens, 1 of 40960 tokens; layers "
            "that see 512 tokens give back what is behind: they take 12 KiB a token more, of 2048 "
            "tokens at a time",
        ),
        ({"tokens": 20000}, "note", "2 of 8192 tokens, 0 of 32768 tokens, 0 of 40960 tokens"),
    ],
)
def test_memory_is_told_with_the_sessions_that_fit(
    own: dict[str, Any], expected: str, told: str
) -> None:
    checkpoint, memory = read_model(REPORT | own)
    assert (verdict(checkpoint), checkpoint.found) == (
        "ok",
        "safetensors, fp8 (e4m3 in blocks of 128 x 128); not read: *visual.* (312), mtp.* (5)",
    )
    assert verdict(memory) == expected
    assert "weights take 28 GiB in bfloat16, 60 GiB are free on cpu" in memory.found
    assert "KV takes 64 KiB a token, 4 GiB in all" in memory.found
    assert told in memory.found


def test_adapters_are_told_beside_the_weights() -> None:
    _, memory = read_model(REPORT | {"adapter_bytes": 80 << 20})
    assert "weights take 28 GiB in bfloat16 and adapters 80 MiB, 60 GiB are free" in memory.found


def test_a_model_that_does_not_fit_is_a_fault() -> None:
    (memory,) = read_model(REPORT | {"fault": "its weights take 99 GiB"})
    assert (verdict(memory), memory.found) == ("fault", "its weights take 99 GiB")
