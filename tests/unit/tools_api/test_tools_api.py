"""Ways of writing calls: what is written is read again, and each format knows its own."""

import json
import random
from typing import Any

import pytest

from tests.support.chat_models import FORMATS, format_of
from tools_api.call_parser import CallParser
from tools_api.call_reader import CallReader
from tools_api.call_rules import CallRules, JsonCallRules, NamedCallRules, SectionedCallRules
from tools_api.call_writing import write_calls
from tools_api.chat_chatml import ChatML
from tools_api.chat_deepseek import DeepSeekR1, DeepSeekR1May, DeepSeekV3, DeepSeekV31
from tools_api.chat_format import JsonCalls, Segment, SegmentWriter, TemplateOptions
from tools_api.chat_gemma4 import Gemma4, Gemma4E
from tools_api.chat_glm import Glm45, Glm47
from tools_api.chat_harmony import Harmony
from tools_api.chat_kimi import KimiK2, KimiK2Thinking, KimiK25
from tools_api.chat_lfm import Lfm2, Olmo3
from tools_api.chat_llama import Llama3
from tools_api.chat_minimax import MiniMaxM2
from tools_api.chat_minimax_m3 import MiniMaxM3
from tools_api.chat_mistral import Mistral, MistralV11, MistralV13
from tools_api.chat_qwen_xml import Nemotron3, Qwen35, QwenXml, described_in_xml
from tools_api.chat_small import Gemma3, Granite4, Phi4Mini, SmolLm3
from tools_api.grammar import call_rules
from tools_api.harmony import HarmonyCalls
from tools_api.harmony_rules import HarmonyRules
from tools_api.items import FunctionCall, Reasoning
from tools_api.lark_rules import LarkRules
from tools_api.named_calls import NamedCalls
from tools_api.parsed_events import CallDone
from tools_api.python_call_rules import PythonCallRules
from tools_api.python_calls import PythonCalls
from tools_api.quoted_call_rules import QuotedCallRules
from tools_api.quoted_calls import QuotedCalls
from tools_api.raw_call_rules import RawCallRules
from tools_api.raw_calls import RawCalls
from tools_api.sectioned_calls import SectionedCalls
from tools_api.tagged_call_rules import TaggedCallRules
from tools_api.tagged_calls import TaggedCalls
from tools_api.tools import FunctionTool

KINDS = {
    ChatML: JsonCalls,
    Llama3: JsonCalls,
    Mistral: JsonCalls,
    Granite4: JsonCalls,
    SmolLm3: JsonCalls,
    Phi4Mini: JsonCalls,
    Gemma3: JsonCalls,
    **dict.fromkeys((Gemma4, Gemma4E), QuotedCalls),
    QwenXml: RawCalls,
    Qwen35: RawCalls,
    Nemotron3: RawCalls,
    Glm45: RawCalls,
    Glm47: RawCalls,
    MiniMaxM2: RawCalls,
    MiniMaxM3: TaggedCalls,
    MistralV11: NamedCalls,
    MistralV13: NamedCalls,
    **dict.fromkeys((DeepSeekV3, DeepSeekR1, DeepSeekR1May, DeepSeekV31), SectionedCalls),
    **dict.fromkeys((KimiK2, KimiK2Thinking, KimiK25), SectionedCalls),
    Lfm2: PythonCalls,
    Olmo3: PythonCalls,
    Harmony: HarmonyCalls,
}
RULES: dict[type[Any], type[CallRules]] = {
    JsonCalls: JsonCallRules,
    NamedCalls: NamedCallRules,
    PythonCalls: PythonCallRules,
    QuotedCalls: QuotedCallRules,
    RawCalls: RawCallRules,
    SectionedCalls: SectionedCallRules,
    TaggedCalls: TaggedCallRules,
}
TOOL = FunctionTool(
    name="f",
    parameters={
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "n": {"type": "number"},
            "maybe": {"type": ["boolean", "null"]},
            "deep": {"type": "object"},
        },
    },
)
TEXTS = (
    "",
    "Oslo",
    ' "q" ',
    "a\nb\n\n",
    "{}",
    "null",
    "3",
    "</tool_call>",
    "\u00e6",
    "<b>",
    "f(x=1)",
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_family_writes_calls_in_one_way(kind: type[Any]) -> None:
    assert isinstance(kind(lambda _: True).calls, KINDS[kind])


@pytest.mark.parametrize("kind", RULES)
def test_each_way_has_rules_of_its_own(kind: type[Any]) -> None:
    syntax = next(
        chat.calls
        for chat in map(format_of, FORMATS.values())
        if type(chat.calls) is kind and chat.calls is not None
    )
    lark = LarkRules(lenient=False)
    rules = call_rules(lark, syntax, 2)
    assert type(rules) is RULES[kind]
    rules.add_tools([TOOL], frozenset({"f"}))
    assert "\ncall: call_0\n" in lark.text(rules.whole())


def test_a_model_that_reasons_and_calls_reasons_again_behind_outputs() -> None:
    """DeepSeek's turns go on behind outputs without a token of their own."""
    for kind in (DeepSeekR1, DeepSeekV31):
        chat = kind(lambda _: True)
        (opener, *_) = chat.generation_prompt(TemplateOptions(thinking=True))
        assert opener == Segment("<think>", special=True)
        assert chat.opens_reasoning
    assert DeepSeekV31(lambda _: True).generation_prompt(TemplateOptions()) == []


@pytest.mark.parametrize(
    ("kind", "thinking", "written"),
    [
        (DeepSeekV3, False, False),
        (DeepSeekV31, False, False),
        (DeepSeekV31, True, True),
        (DeepSeekR1, True, True),
        (KimiK2, False, False),
        (KimiK2Thinking, True, True),
    ],
)
def test_an_output_that_was_cut_in_its_reasoning_is_no_empty_answer(
    kind: type[Any], thinking: bool, written: bool
) -> None:
    """Where the format has a place for it, it stays."""
    segments = kind(lambda _: True).items(
        (Reasoning(content=("Hm.",)),),
        first=False,
        open_output=False,
        options=TemplateOptions(thinking=thinking),
    )
    assert (segments != []) is written
    assert any("Hm." in segment.text for segment in segments) is written


def test_harmony_binds_the_whole_output() -> None:
    lark = LarkRules(lenient=False)
    rules = HarmonyRules(lark)
    rules.add_tools([TOOL], frozenset({"f"}))
    assert "call_0" in rules.output(value=None, required=True)
    assert "last" not in lark.text("start")


def test_a_reader_tells_what_was_cut_as_incomplete() -> None:
    class Reader(CallReader):
        @property
        def unannounced(self) -> str:
            return ""

        def _step(self) -> bool:
            self._start("f")
            self._add(self._held)
            self._held = ""
            return False

        def special(self, name: str) -> bool:
            return False

        def end_of_turn(self) -> None:
            self._done()

    reader = Reader()
    assert reader.text("{") == ""
    reader.stop()
    assert reader.take()[-1] == CallDone("f", "{", complete=False)
    assert (reader.over, reader.take()) == (True, [])


@pytest.mark.samples(37)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_written_is_read_as_the_same_calls(name: str, seed: int) -> None:
    """Values are equal; and so is the text of strings, whatever it looks like."""
    rng, chat = random.Random(f"{name} {seed}"), format_of(FORMATS[name])
    syntax = chat.calls
    assert syntax is not None
    tagged = isinstance(syntax, TaggedCalls)  # nothing says that what is inside is a string
    inside = [text for text in TEXTS if not (tagged and text in ("null", "3"))]
    for _ in range(50):
        values = {
            "text": rng.choice(TEXTS),
            "n": rng.choice((0, -1.5, 10**20)),
            "maybe": rng.choice((True, False, None)),
            "deep": {"a": [rng.choice(inside), None, True]},
        }
        some = {key: values[key] for key in rng.sample(sorted(values), rng.randint(0, 4))}
        count = rng.randint(1, 3) if syntax.parallel else 1
        calls = [
            FunctionCall(call_id=f"c{i}", name="f", arguments=json.dumps(some, ensure_ascii=False))
            for i in range(count)
        ]
        out = SegmentWriter(frozenset(FORMATS[name]["tokens"]).__contains__)
        write_calls(out, syntax, calls)
        parser = CallParser(chat, False, tools=[TOOL])
        end = "<|call|>" if isinstance(syntax, HarmonyCalls) else chat.end_of_turn[0]
        events = parser.push([*out.segments, Segment(end, special=True)]) + parser.finish()
        done = [event for event in events if isinstance(event, CallDone)]
        assert [(e.name, json.loads(e.arguments), e.complete) for e in done] == [
            ("f", some, True) for _ in calls
        ]


def test_a_tool_is_told_in_xml_with_a_tag_for_each_key() -> None:
    tool = FunctionTool(
        name="f",
        description=" Does. ",
        parameters={
            "type": "object",
            "properties": {"k": {"type": "string", "enum": ["a"], "minLength": 1}},
            "required": ["k"],
        },
    )
    told = '<name>k</name>\n<type>string</type>\n<enum>["a"]</enum>\n<minLength>1</minLength>\n'
    assert told in described_in_xml(tool)
    assert '</parameter>\n<required>["k"]</required>\n</parameters>' in described_in_xml(tool)
    assert described_in_xml(tool).startswith("\n<function>\n<name>f</name>\n<description>Does.<")
