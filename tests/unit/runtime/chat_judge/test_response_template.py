"""What a folder says of how outputs are read helps where its template writes calls in a way of
its own; only literals are read, and only what the template is seen to write counts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.chat_judge.judge import Judgement, judge
from runtime.chat_judge.response_template import told_calls
from runtime.chat_template import response_template_of
from tests.support import judged_templates as templates
from tests.support.byte_tokenizer import SPECIAL_TOKENS
from tools_api.call_parser import CallDone, CallParser
from tools_api.call_writing import write_calls
from tools_api.chat_format import ChatFormat, SegmentWriter
from tools_api.chat_generic import CALL_KINDS, chat_format_described
from tools_api.items import FunctionCall

SPECIALS = (*SPECIAL_TOKENS, "<call>", "</call>")
ONE = "{'name': call.function.name, '%s': call.function.arguments} | tojson"
OBJECTS = """\
    {{- message.content -}}
    {%%- for call in message.tool_calls or [] -%%}
      {{- '<call>' ~ (%s) ~ '</call>' -}}
    {%%- endfor -%%}
"""
LIST = """\
    {{- message.content -}}
    {%%- for call in message.tool_calls or [] -%%}
      {{- ('<call> [' if loop.first else ', ') ~ (%s) ~ (']</call>' if loop.last else '') -}}
    {%%- endfor -%%}
"""
PYTHON = """\
    {{- message.content -}}
    {%- for call in message.tool_calls or [] -%}
      {{- ('<call>[' if loop.first else ', ') ~ call.function.name ~ '(' -}}
      {%- for key, value in call.function.arguments.items() -%}
        {{- (', ' if not loop.first else '') ~ key ~ '=' ~ (value | tojson) -}}
      {%- endfor -%}
      {{- ')' ~ (']</call>' if loop.last else '') -}}
    {%- endfor -%}
"""


def template(calls: str) -> str:
    """A template that writes calls so."""
    return templates.HERMES.replace(templates.HERMES_CALLS, calls)


def told(content: str, transform: Any = None, **anchors: Any) -> dict[str, Any]:
    field = {"open": "<call>", "close": "</call>", "content": content, **anchors}
    if transform is not None:
        field["transform"] = transform
    return {"start_anchor": "<|im_start|>assistant\n", "fields": {"tool_calls": field}}


def judged(text: str, response_template: Any) -> Judgement:
    return judge(text, {}, SPECIALS, response_template=response_template)


def renderer(found: Judgement) -> ChatFormat:
    return chat_format_described(found.description, frozenset(SPECIALS).__contains__)


@pytest.mark.samples(2)
@pytest.mark.parametrize(
    ("calls", "response_template", "written"),
    [
        (
            OBJECTS % (ONE % "arguments"),
            told("json", {"type": "function", "function": "{content}"}),
            '<call>{"name": "f", "arguments": {"a": 1}}</call>',
        ),
        (
            OBJECTS % (ONE % "input"),
            told(
                "json",
                {"function": {"name": "{content.name}", "arguments": "{content.input}"}},
                open=["<other>", "<call>\n"],
            ),
            '<call>{"name": "f", "input": {"a": 1}}</call>',
        ),
        (
            LIST % (ONE % "parameters"),
            told("json"),
            '<call> [{"name": "f", "parameters": {"a": 1}}',
        ),
        (PYTHON, told("python-call-list"), "<call>[f(a=1)"),
    ],
    ids=["objects", "another key", "a list", "python"],
)
def test_calls_of_a_folders_own_kind_are_written_and_read(
    calls: str, response_template: Any, written: str
) -> None:
    text = template(calls)
    assert "in no way that is known here" in judged(text, None).no_tools
    found = judged(text, response_template)
    assert found.no_tools == ""
    chat_format = renderer(found)
    assert chat_format.calls is not None
    out = SegmentWriter(frozenset(SPECIALS).__contains__)
    sent = [FunctionCall(call_id=f"c{i}", name="f", arguments='{"a": 1}') for i in range(2)]
    write_calls(out, chat_format.calls, sent)
    assert "".join(segment.text for segment in out.segments).startswith(written)
    parser = CallParser(chat_format, thinking=False)
    events = [*parser.push(out.segments), *parser.finish()]
    read = [event for event in events if isinstance(event, CallDone)]
    assert [(each.name, json.loads(each.arguments)) for each in read] == [("f", {"a": 1})] * 2


@pytest.mark.samples(2)
@pytest.mark.parametrize(
    "response_template",
    [
        told("json", open_pattern=r"(a+)+<call>", open=None),
        told("json", open="<unknown>"),
        told("text"),
        told("xml-inline"),
        told("json") | {"version": 2},
        told("json", {"function": {"arguments": "{content.other}"}}),
        {"fields": []},
        "text",
    ],
)
def test_what_is_no_literal_or_not_what_the_template_writes_counts_for_nothing(
    response_template: Any,
) -> None:
    found = judged(template(OBJECTS % (ONE % "arguments")), response_template)
    assert "in no way that is known here" in found.no_tools


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("<call>"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["fields", "tool_calls", "open", "close", "content", "transform"])
            | st.sampled_from(["function", "arguments", "version"]),
            st.just("json") | inner,
        )
    ),
)


@given(_JSON)
def test_whatever_it_holds_there_is_an_answer(response_template: Any) -> None:
    for way in told_calls(response_template):
        assert way.format in CALL_KINDS
        assert all(isinstance(gap, str) for gap in way.gaps.values())


def test_it_is_read_from_the_tokenizers_file(tmp_path: Any) -> None:
    assert response_template_of(tmp_path) is None
    said = {"response_template": told("json")}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    assert response_template_of(tmp_path) == told("json")
