"""The syntax in which calls are written is found, with the white space that is a template's own."""

import dataclasses

import pytest

from runtime.chat_judge.call_match import Match, matching_syntax
from runtime.chat_judge.conversations import call
from runtime.chat_judge.literals import Literals
from tests.unit.tools_api.test_chat_families import TABLE
from tools_api.call_writing import write_calls
from tools_api.chat_families import call_syntax_named, chat_format_names
from tools_api.chat_format import CallSyntax, JsonCalls, SegmentWriter
from tools_api.chat_generic import Learned
from tools_api.raw_calls import RawCalls

TOKENS = sorted({token for entry in TABLE["formats"] for token in entry["tokens"]})
LITERALS = Literals(TOKENS)
WAYS = [Learned(format=name) for name in chat_format_names()]
CALLS = tuple(call(i, f"qname{i}", {"qa": f"qtext{i}", "qb": i}) for i in (1, 2, 3))


def texts(syntax: CallSyntax, before: str = "", behind: str = "") -> list[str]:
    found = []
    for count in (1, 2, 3):
        out = SegmentWriter(LITERALS.has_token)
        write_calls(out, syntax, CALLS[:count])
        found.append(before + "".join(each.text for each in out.segments) + behind)
    return found


def match(given: list[str]) -> Match | None:
    return matching_syntax(given, CALLS, LITERALS, WAYS)


def parallel() -> list[str]:
    names = []
    for name in chat_format_names():
        try:
            syntax = call_syntax_named(name, LITERALS.has_token)
            written = texts(syntax)
        except (ValueError, TypeError):
            continue
        if syntax.parallel and len(set(written)) == 3:
            names.append(name)
    return names


@pytest.mark.parametrize("name", parallel())
def test_each_syntax_is_found_in_what_it_writes(name: str) -> None:
    syntax = call_syntax_named(name, LITERALS.has_token)
    found = match(texts(syntax, "\n", " "))
    assert found is not None
    assert (found.before, found.behind) == ("\n", " ")
    assert found.written(CALLS) == texts(syntax)[2]


@pytest.mark.parametrize("name", ["qwen3-coder", "glm4.5", "glm4.7", "minimax-m2", "qwen3"])
def test_white_space_of_its_own_is_learned(name: str) -> None:
    syntax = call_syntax_named(name, LITERALS.has_token)
    assert isinstance(syntax, RawCalls | JsonCalls)
    gaps = ["before", "between"]
    gaps += ["after"] if isinstance(syntax, JsonCalls) else ["name_gap", "value_gap"]
    for gap in gaps:
        own = dataclasses.replace(syntax, **{gap: getattr(syntax, gap) + "\n "})
        found = match(texts(own))
        assert found is not None, gap
        assert found.written(CALLS) == texts(own)[2], gap


def test_what_no_syntax_writes_is_none() -> None:
    for given in (
        ["", "", ""],
        ["f()", "f() g()", "f() g() h()"],
        texts(call_syntax_named("qwen3", LITERALS.has_token))[:1] * 3,
        texts(call_syntax_named("qwen3", LITERALS.has_token), before="call:"),
    ):
        assert match(given) is None
