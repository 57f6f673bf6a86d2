"""What has no effect is named; every published field is in one of three groups."""

import re
from typing import Any, get_type_hints

import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from openai.types.responses.responses_client_event_param import ResponseCreate

from tests.support.architecture import ROOT
from tools_api.limits import DEFAULT_LIMITS
from tools_api.request_reading import parse_create
from tools_api.request_warnings import REFUSED, WITHOUT_EFFECT, WORKING

PUBLISHED = {*get_type_hints(ResponseCreateParamsStreaming), *get_type_hints(ResponseCreate)}


def warnings(**fields: Any) -> tuple[str, ...]:
    raw = {"type": "response.create", "input": "Hi", **fields}
    return parse_create(raw, None, DEFAULT_LIMITS).warnings


def test_every_published_field_is_in_one_group() -> None:
    groups = [WORKING, REFUSED, frozenset(WITHOUT_EFFECT)]
    assert frozenset().union(*groups) - {"keepwarm"} == PUBLISHED
    assert sum(map(len, groups)) == len(frozenset().union(*groups))


def test_the_protocol_page_has_every_published_field() -> None:
    page = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    table = page.split("## `response.create`")[1].split("### Kinds of tools")[0]
    named = set(re.findall(r"`([a-z_]+)", table))
    assert PUBLISHED - {"type"} - named == set()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream": True, "store": False, "client_metadata": {"a": "b"}, "prompt_cache_key": "k"},
        {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]},
        {"reasoning": {"effort": "low"}, "stream_options": {"include_obfuscation": False}},
        {"prompt_cache_options": {"mode": "implicit"}, "text": {"format": {"type": "text"}}},
        {"moderation": None, "background": False, "user": "u", "service_tier": "flex"},
    ],
    ids=str,
)
def test_what_works_is_not_named(fields: dict[str, Any]) -> None:
    assert warnings(**fields) == ()


@pytest.mark.parametrize(
    ("fields", "begin"),
    [
        ({"max_tool_calls": 3}, "max_tool_calls: no effect"),
        ({"moderation": {"model": "m"}}, "moderation: no effect"),
        ({"image": {}}, "image: no effect"),
        ({"access_programs": {}}, "access_programs: no effect"),
        ({"background_options": {}}, "background_options: no effect"),
        (
            {"stream_options": {"reasoning_summary_delivery": "sequential_cutoff"}},
            "stream_options.reasoning_summary_delivery: no effect",
        ),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention: no effect"),
        ({"prompt_cache_options": {"ttl": "12h"}}, "prompt_cache_options.ttl: no effect"),
        ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options.mode: no effect"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary: no effect"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode: no effect"),
        ({"text": {"verbosity": "low"}}, "text.verbosity: no effect"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"include": ["file_search_call.results"]}, "include: no effect, there is no 'file_sear"),
        ({"tools": [{"type": "web_search"}]}, "tools: left out"),
        ({"temperatur": 1}, "unknown fields are ignored: 'temperatur'"),
    ],
)
def test_what_has_no_effect_is_named(fields: dict[str, Any], begin: str) -> None:
    (warning,) = warnings(**fields)
    assert warning.startswith(begin)


def test_what_a_client_sends_fills_no_warning_beyond_measure() -> None:
    named = warnings(
        **{f"field {n} " + "x" * 1000: n for n in range(100)}, include=["y" * 999] * 50
    )
    assert sum(map(len, named)) < 3000


def test_a_client_cannot_send_warnings() -> None:
    (warning,) = warnings(warnings=["mine"], hosted_tools=["mine"])
    assert warning == "unknown fields are ignored: 'hosted_tools', 'warnings'"
