"""Calls of DeepSeek and Kimi: read as they stream, written, and bound by rules."""

import random

import pytest

from runtime.grammar.compiler import GrammarCompiler
from runtime.grammar.state import GrammarState
from tests.support import chat_models
from tests.support.chat_models import spelled
from tests.support.grammars import compiler, random_output
from tests.unit.tools_api.test_call_parser import joined, segments
from tools_api.call_parser import CallParser
from tools_api.chat_format import Segment, SegmentWriter, TemplateOptions
from tools_api.chat_kimi import kimi_call_id
from tools_api.grammar import grammar_for
from tools_api.items import FunctionCall
from tools_api.parsed_events import (
    CallArgumentsDelta,
    CallDone,
    ParsedCallStart,
    ParsedEvent,
    ParsedText,
    TextDone,
)
from tools_api.requests import TextFormat
from tools_api.sectioned_calls import SectionedCalls, call_number, write_sectioned_calls
from tools_api.tools import FunctionTool, ToolChoice

NAMES = ("deepseek-v3", "deepseek-v3.1", "kimi-k2")
TOOLS = (
    FunctionTool(
        name="get_weather",
        parameters={
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 5}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    ),
    FunctionTool(name="now", parameters={"type": "object", "properties": {}}),
)


def syntax_of(name: str) -> SectionedCalls:
    syntax = chat_models.served(name).chat_format.calls
    assert isinstance(syntax, SectionedCalls)
    return syntax


def call(name: str, arguments: str = "{}", number: int = 0) -> FunctionCall:
    return FunctionCall(call_id=f"call_x_{number}", name=name, arguments=arguments)


def written(name: str, *calls: FunctionCall) -> str:
    out = SegmentWriter(lambda _: True)
    write_sectioned_calls(out, syntax_of(name), calls)
    return "".join(segment.text for segment in out.segments)


def cut(name: str, text: str) -> list[Segment]:
    return segments(text, (*syntax_of(name).specials, end_of_turn(name)))


def end_of_turn(name: str) -> str:
    return chat_models.served(name).chat_format.end_of_turn[0]


def parse(
    name: str, pushes: list[list[Segment]], plain: frozenset[str] = frozenset()
) -> list[ParsedEvent]:
    chat_format = chat_models.served(name).chat_format
    parser = CallParser(chat_format, thinking=False, plain=plain)
    found = [event for push in pushes for event in parser.push(push)]
    return joined(found + parser.finish())


def in_pieces(found: list[Segment], rng: random.Random) -> list[list[Segment]]:
    """The same output, pushed in random parts."""
    pushes: list[list[Segment]] = []
    for segment in found:
        text = segment.text
        while text and not segment.special:
            size = rng.randint(1, 9)
            pushes.append([Segment(text[:size])])
            text = text[size:]
        if segment.special:
            pushes.append([segment])
    return pushes


def events(*calls: FunctionCall, numbered: bool) -> list[ParsedEvent]:
    return [
        event
        for each in calls
        for event in (
            ParsedCallStart(each.name, call_number(each.call_id) if numbered else ""),
            CallArgumentsDelta(each.arguments),
            CallDone(each.name, each.arguments),
        )
    ]


TWO = (call("get_weather", '{"city": "a`b}\\"", "days": 3}', 4), call("now", number=5))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(20))
def test_calls_are_read_however_they_are_split(name: str, seed: int) -> None:
    rng = random.Random(seed)
    text = "I look.\n\n" + written(name, *TWO) + end_of_turn(name)
    said = [ParsedText("I look."), TextDone()]
    found = parse(name, in_pieces(cut(name, text), rng))
    assert found == said + events(*TWO, numbered=name == "kimi-k2")


def test_how_each_writes_a_call() -> None:
    one = (call("now", number=7),)
    assert written("kimi-k2", *one) == (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:7<|tool_call_argument_begin|>"
        "{}<|tool_call_end|><|tool_calls_section_end|>"
    )
    deepseek = [
        written(name, *one).replace("\N{FULLWIDTH VERTICAL LINE}", "|")
        for name in ("deepseek-v3.1", "deepseek-v3")
    ]
    assert [text.replace("\N{LOWER ONE EIGHTH BLOCK}", "_") for text in deepseek] == [
        "<|tool_calls_begin|><|tool_call_begin|>now<|tool_sep|>{}<|tool_call_end|>"
        "<|tool_calls_end|>",
        "<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>now\n```json\n{}\n```"
        "<|tool_call_end|><|tool_calls_end|>",
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_output_that_breaks_off_keeps_what_there_is(name: str, size: int) -> None:
    """Wherever it ends a whole call stays whole, a begun one is incomplete, and nothing of a
    call whose name is not known becomes text."""
    whole = cut(name, written(name, *TWO))
    flat = [Segment(char) for each in whole for char in each.text if not each.special]
    assert flat
    for end in range(len(whole) + 1):
        found = parse(name, in_pieces(whole[:end], random.Random(size)))
        assert not any(isinstance(event, ParsedText) for event in found)
        done = [event for event in found if isinstance(event, CallDone)]
        starts = [event for event in found if isinstance(event, ParsedCallStart)]
        assert len(done) == len(starts)
        assert all(event.complete for event in done[:-1])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(200))
def test_no_output_loses_text_or_leaves_a_call_open(name: str, seed: int) -> None:
    """Tokens and texts of calls in any order: every start has one end, and letters that stand
    outside calls are told."""
    rng = random.Random(seed)
    syntax = syntax_of(name)
    parts = [Segment(special, special=True) for special in sorted(syntax.specials)]
    parts += [Segment(t) for t in ("now", "functions.now:3", "\n", "{}", '{"a": [', "```json", "x")]
    parts.append(Segment("function"))
    given = [rng.choice(parts) for _ in range(rng.randint(1, 14))]
    found = parse(name, [[each] for each in given])
    open_call = False
    for event in found:
        assert isinstance(event, ParsedCallStart) != open_call or not isinstance(
            event, ParsedCallStart | CallDone
        )
        open_call = (
            open_call if not isinstance(event, ParsedCallStart | CallDone) else not open_call
        )
    assert not open_call
    assert found == parse(name, in_pieces(given, rng))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("after", ["no call", " \n no call", "{}"])
def test_what_is_no_call_behind_an_opener_is_text(name: str, after: str) -> None:
    opener = syntax_of(name).opener or ""
    for text in (opener + after, opener + after + end_of_turn(name)):
        found = parse(name, [cut(name, text)])
        assert "".join(event.text for event in found if isinstance(event, ParsedText)) == (
            opener + after.strip()
        )


@pytest.mark.parametrize("head", ["functionX", "x", ""])
def test_a_head_that_is_not_the_word_of_calls_stays_text(head: str) -> None:
    """DeepSeek V3 begins each call with the word ``function``: nothing is dropped where it does
    not stand."""
    syntax = syntax_of("deepseek-v3")
    text = f"{syntax.opener}{syntax.call_opener}{head}{syntax.separator}now\n"
    found = parse("deepseek-v3", [cut("deepseek-v3", text)])
    assert not any(isinstance(event, ParsedCallStart) for event in found)
    told = "".join(event.text for event in found if isinstance(event, ParsedText))
    assert head in told
    assert "now" in told


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("closed", [True, False])
def test_plain_input_ends_with_the_token_of_its_call(name: str, closed: bool) -> None:
    """It may hold anything, JSON and blocks of code too; another call may follow."""
    syntax, given = syntax_of(name), 'x = {"a": 1}\n```json\n  y\n'
    number, numbered = (":3", "3") if syntax.numbered else ("", "")
    head = f"{syntax.before_name}patch{number}{syntax.separator}"
    if syntax.word is not None:
        head = f"{syntax.word}{syntax.separator}patch\n"
    text = f"{syntax.opener}{syntax.call_opener}{head}{given}"
    if closed:
        rest = written(name, call("now", number=4)).removeprefix(syntax.opener or "")
        text += f"{syntax.call_closer}{rest}"
    found = parse(name, [cut(name, text + end_of_turn(name))], plain=frozenset({"patch"}))
    wanted: list[ParsedEvent] = [
        ParsedCallStart("patch", numbered),
        CallArgumentsDelta(given),
        CallDone("patch", given, closed),
    ]
    if closed:
        wanted += events(call("now", number=4), numbered=syntax.numbered)
    assert found == wanted


@pytest.mark.parametrize("name", NAMES)
def test_a_call_without_arguments_has_none(name: str) -> None:
    if name == "deepseek-v3":
        return
    text = written(name, call("now")).replace("{}", "")
    assert parse(name, [cut(name, text)]) == events(call("now"), numbered=name == "kimi-k2")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(6))
def test_what_the_rules_let_pass_is_read_as_whole_calls(name: str, seed: int) -> None:
    model = chat_models.served(name)
    rng = random.Random(seed)
    spec = grammar_for(
        model.chat_format,
        TOOLS,
        ToolChoice(mode="required"),
        parallel_tool_calls=True,
        text_format=TextFormat(),
        options=TemplateOptions(),
    )
    assert spec is not None
    found_compiler: GrammarCompiler = compiler(model.tokenizer)
    state = GrammarState(found_compiler.compile(spec), model.tokenizer)
    tokens = random_output(state, model.tokenizer, 3000, rng)
    assert state.ended
    found = parse(name, [cut(name, spelled(model, tokens))])
    done = [event for event in found if isinstance(event, CallDone)]
    assert done
    assert all(event.complete and event.name in ("now", "get_weather") for event in done)
    assert not any(isinstance(event, ParsedText) for event in found)
    numbers = [event.number for event in found if isinstance(event, ParsedCallStart)]
    assert all(bool(number) == (name == "kimi-k2") for number in numbers)


@pytest.mark.parametrize(
    ("call_id", "number"),
    [("call_ab12_7", "7"), ("functions.f:12", "12"), ("call_1_007", "7"), ("call_12345", None)],
)
def test_a_number_stands_at_the_end_of_an_id_or_follows_from_it(
    call_id: str, number: str | None
) -> None:
    found = call_number(call_id)
    assert found == number or (number is None and found.isdigit() and int(found) < 10_000)
    assert found == call_number(call_id)


def test_kimi_knows_a_call_by_its_function() -> None:
    assert kimi_call_id("call_ab_3", "f") == "functions.f:3"
    assert kimi_call_id("functions.g:5", "f") == "functions.g:5"
    assert kimi_call_id("call_ab_3", None) == "call_ab_3"
