import json
import random
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.support.architecture import ROOT
from tools_api.call_parser import CallParser
from tools_api.call_rules import closed_parameters
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import ChatFormat, Segment, TemplateOptions
from tools_api.errors import ApiError
from tools_api.grammar import (
    GrammarSpec,
    grammar_for,
    param_at,
    resolve_specials,
)
from tools_api.parsed_events import (
    CallDone,
    ParsedText,
)
from tools_api.requests import TextFormat
from tools_api.tools import FunctionTool, ToolChoice, parse_tools

BYTES = ROOT / "runtime" / "assets" / "byte_tokenizer" / "tokenizer.json"
SPECIALS = (
    *("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"),
    *("[INST]", "[/INST]", "[TOOL_CALLS]", "</s>", "<|start_header_id|>", "<|eot_id|>"),
)
FORMATS: dict[str, ChatFormat] = {
    "qwen3": chat_format_for("qwen3", SPECIALS[:6].__contains__),
    "mistral": chat_format_for("mistral", SPECIALS[6:10].__contains__),
    "llama": chat_format_for("llama", SPECIALS[10:].__contains__),
}


@cache
def merging_tokenizer(specials: tuple[str, ...] = SPECIALS) -> Tokenizer:
    """A byte-level BPE with merges over JSON punctuation, and every family's specials."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = ['{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n'] * 20
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in specials])
    return tokenizer


@cache
def vocabulary() -> LLTokenizer:
    return LLTokenizer(merging_tokenizer().to_str())


def matcher_of(spec: GrammarSpec) -> LLMatcher:
    lark = resolve_specials(spec.lark, merging_tokenizer().token_to_id)
    matcher = LLMatcher(vocabulary(), LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not matcher.get_error()
    return matcher


def accepts(spec: GrammarSpec, text: str) -> bool:
    """Whether a turn may consist of exactly ``text`` from where the grammar binds."""
    matcher = matcher_of(spec)
    tokens = merging_tokenizer().encode(text, add_special_tokens=False).ids
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def forced_after(spec: GrammarSpec, text: str) -> str:
    matcher = matcher_of(spec)
    tokens = merging_tokenizer().encode(text, add_special_tokens=False).ids
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    return vocabulary().decode_str(matcher.compute_ff_tokens())


WEATHER = FunctionTool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city"],
    },
)
NOW = FunctionTool(name="now")
TEXT = TextFormat()


def spec_for(
    family: str = "qwen3",
    choice: ToolChoice | None = None,
    *,
    tools: tuple[FunctionTool, ...] = (WEATHER, NOW),
    parallel: bool = True,
    text_format: TextFormat = TEXT,
    thinking: bool = False,
    **more: Any,
) -> GrammarSpec:
    spec = grammar_for(
        FORMATS[family],
        tools,
        choice or ToolChoice(),
        parallel_tool_calls=parallel,
        text_format=text_format,
        options=TemplateOptions(thinking=thinking),
        **more,
    )
    assert spec is not None
    return spec


CALL = '\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
NOW_CALL = '\n{"name": "now", "arguments": {}}\n</tool_call>'
REQUIRED = ToolChoice(mode="required")
NAMED = ToolChoice(mode="required", names=("now",), named=True)


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        NOW_CALL,
        '\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>',
        '\n{"name": "get_weather", "arguments": {"city": ""}}\n</tool_call>',
        f"{CALL}\n<tool_call>{NOW_CALL}",
    ],
)
def test_a_right_call_is_accepted(text: str) -> None:
    assert accepts(spec_for(), text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        '\n{"name": "get_weather", "arguments": {"city": "Oslo"}}',
        '\n{"name": "get_weather","arguments": {"city": "Oslo"}}\n</tool_call>',
        '\n{"name": "get_weather", "arguments": {"city":"Oslo"}}\n</tool_call>',
        '\n{"name": "get_weather", "arguments": { "city": "Oslo"}}\n</tool_call>',
        '\n{"name": "get_weather", "arguments": {"days": 3, "city": "Oslo"}}\n</tool_call>',
        '\n{"name": "get_weather", "arguments": {"city": "Oslo", "extra": 1}}\n</tool_call>',
        '\n{"name": "get_weather", "arguments": {"city": 1}}\n</tool_call>',
        '\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 10}}\n</tool_call>',
        '\n{"name": "get_weather", "arguments": {}}\n</tool_call>',
        '\n{"name": "unknown", "arguments": {}}\n</tool_call>',
        '\n{"arguments": {}, "name": "now"}\n</tool_call>',
        f"{CALL}\n",
        f"{CALL}\n<tool_call>",
        f"{CALL} and text",
        f"{CALL}{NOW_CALL}",
    ],
)
def test_a_wrong_call_is_refused(text: str) -> None:
    assert not accepts(spec_for(), text)


def test_a_free_choice_binds_only_after_the_tag() -> None:
    spec = spec_for()
    assert (spec.after, spec.trigger) == (None, "<tool_call>")
    assert spec_for("mistral").trigger == "[TOOL_CALLS]"
    assert spec_for("llama").trigger is None


def test_a_required_call_binds_from_the_first_token() -> None:
    spec = spec_for(choice=REQUIRED)
    assert (spec.after, spec.trigger) == (None, None)
    assert accepts(spec, f"<tool_call>{CALL}")
    assert accepts(spec, f"<tool_call>{CALL}\n<tool_call>{NOW_CALL}")
    assert not accepts(spec, "Hello")
    assert not accepts(spec, CALL)


def test_a_named_function_is_called_once() -> None:
    spec = spec_for(choice=NAMED)
    assert accepts(spec, f"<tool_call>{NOW_CALL}")
    assert not accepts(spec, f"<tool_call>{CALL}")
    assert not accepts(spec, f"<tool_call>{NOW_CALL}\n<tool_call>{NOW_CALL}")


def test_allowed_tools_narrow_the_choice() -> None:
    allowed = ToolChoice(mode="auto", names=("now",))
    assert accepts(spec_for(choice=allowed), NOW_CALL)
    assert not accepts(spec_for(choice=allowed), CALL)
    required = ToolChoice(mode="required", names=("now",))
    assert accepts(spec_for(choice=required), f"<tool_call>{NOW_CALL}\n<tool_call>{NOW_CALL}")


def test_without_parallel_calls_there_is_one() -> None:
    spec = spec_for(parallel=False)
    assert accepts(spec, CALL)
    assert not accepts(spec, f"{CALL}\n<tool_call>{CALL}")


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_parallel_calls_are_bounded(limit: int) -> None:
    spec = spec_for(max_calls=limit)
    calls = [NOW_CALL] * limit
    assert accepts(spec, "\n<tool_call>".join(calls))
    assert not accepts(spec, "\n<tool_call>".join([*calls, NOW_CALL]))


def test_what_is_certain_is_forced() -> None:
    spec = spec_for(choice=REQUIRED)
    assert forced_after(spec, "") == '<tool_call>\n{"name": "'
    assert forced_after(spec, '<tool_call>\n{"name": "n') == ('ow", "arguments": {}}\n</tool_call>')
    # What may merge with the value that follows is left to the model.
    assert forced_after(spec, '<tool_call>\n{"name": "g').startswith(
        'et_weather", "arguments": {"city":'
    )
    assert forced_after(spec_for(choice=NAMED), "") == f"<tool_call>{NOW_CALL}"


@pytest.mark.parametrize(
    "name", ['quo"te', "back\\slash", "</tool_call>", "Wetter_ä", "a/b.c", "{x}", "start: y"]
)
@pytest.mark.parametrize("family", ["qwen3", "mistral", "llama"])
def test_odd_names_are_escaped(name: str, family: str) -> None:
    (tool,) = parse_tools([{"type": "function", "name": name}])
    spec = spec_for(family, REQUIRED, tools=(tool, NOW))
    key = "parameters" if family == "llama" else "arguments"
    written = json.dumps({"name": name, key: {}}, ensure_ascii=False)
    before, after = {
        "qwen3": ("<tool_call>\n", "\n</tool_call>"),
        "mistral": ("[TOOL_CALLS] [", "]"),
        "llama": ("", ""),
    }[family]
    matcher = matcher_of(spec)
    body = merging_tokenizer(specials=()).encode(written).ids  # a tag in the name is text
    head = merging_tokenizer().encode(before, add_special_tokens=False).ids
    tail = merging_tokenizer().encode(after, add_special_tokens=False).ids
    assert matcher.consume_tokens([*head, *body, *tail])
    assert matcher.is_accepting()


def test_mistrals_calls_stand_in_a_list() -> None:
    one, two = (
        '{"name": "now", "arguments": {}}',
        '{"name": "get_weather", "arguments": {"city": ""}}',
    )
    assert accepts(spec_for("mistral"), f" [{one}, {two}]")
    assert accepts(spec_for("mistral", REQUIRED), f"[TOOL_CALLS] [{two}]")
    assert not accepts(spec_for("mistral"), f" [{one},{two}]")
    assert not accepts(spec_for("mistral"), " []")
    assert not accepts(spec_for("mistral", parallel=False), f" [{one}, {two}]")


def test_llamas_call_is_an_object_and_its_text_is_none() -> None:
    call = '{"name": "now", "parameters": {}}'
    spec = spec_for("llama")
    assert accepts(spec, call)
    assert accepts(spec, "Hello {you}.\n{}")
    assert accepts(spec, "")
    assert not accepts(spec, '{"name": "later", "parameters": {}}')
    assert not accepts(spec, f"{call} {call}")
    assert not accepts(spec_for("llama", REQUIRED), "Hello")


SCHEMA = TextFormat(
    type="json_schema",
    name="answer",
    json_schema={
        "type": "object",
        "properties": {"sum": {"type": "integer"}, "ok": {"type": "boolean"}},
        "required": ["sum", "ok"],
        "additionalProperties": False,
    },
)


def test_a_text_format_is_the_value_alone() -> None:
    spec = spec_for(tools=(), text_format=SCHEMA)
    assert (spec.after, spec.trigger) == (None, None)
    assert accepts(spec, '{"sum": 3, "ok": true}')
    for wrong in ('{"sum":3, "ok": true}', '{"sum": 3}', '{"sum": 3, "ok": true} ', "3", ""):
        assert not accepts(spec, wrong)


def test_a_json_object_is_any_object() -> None:
    spec = spec_for(tools=(), text_format=TextFormat(type="json_object"))
    assert accepts(spec, '{"a": [1, {"b": null}]}')
    assert not accepts(spec, "[1]")


def test_a_text_format_with_tools_is_the_value_or_calls() -> None:
    spec = spec_for(text_format=SCHEMA)
    assert spec.trigger is None
    assert accepts(spec, '{"sum": 3, "ok": true}')
    assert accepts(spec, f"<tool_call>{CALL}")
    assert not accepts(spec, "Hello")
    assert not accepts(spec_for(choice=REQUIRED, text_format=SCHEMA), '{"sum": 3, "ok": true}')
    none = spec_for(choice=ToolChoice(mode="none"), text_format=SCHEMA)
    assert not accepts(none, f"<tool_call>{CALL}")


def test_free_text_without_tools_has_no_grammar() -> None:
    for tools, choice in (((), ToolChoice()), ((NOW,), ToolChoice(mode="none"))):
        assert (
            grammar_for(
                FORMATS["qwen3"],
                tools,
                choice,
                parallel_tool_calls=True,
                text_format=TEXT,
                options=TemplateOptions(),
            )
            is None
        )


def test_when_the_model_thinks_the_grammar_waits_for_the_end_of_it() -> None:
    auto = spec_for(thinking=True)
    assert (auto.after, auto.trigger) == ("</think>", "<tool_call>")
    assert auto.lark == spec_for().lark
    required = spec_for(choice=REQUIRED, thinking=True)
    assert (required.after, required.trigger) == ("</think>", None)
    assert accepts(required, f"\n\n<tool_call>{CALL}")
    assert accepts(
        spec_for(tools=(), text_format=SCHEMA, thinking=True), '\n\n{"sum": 1, "ok": true}'
    )
    assert spec_for("mistral", REQUIRED, thinking=True).after is None


def test_a_model_without_call_syntax_refuses_tools() -> None:
    plain = chat_format_for("qwen2", SPECIALS[:2].__contains__)
    with pytest.raises(ApiError) as refused:
        grammar_for(
            plain,
            (NOW,),
            ToolChoice(),
            parallel_tool_calls=True,
            text_format=TEXT,
            options=TemplateOptions(),
        )
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "tools")


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({"type": "object", "properties": {"a": {}}}, True),
        ({"properties": {"a": {}}, "required": ["a"]}, True),
        ({"type": "object"}, True),
        ({"type": "object", "additionalProperties": True}, False),
        ({"type": "object", "properties": {}, "required": ["a"]}, False),
        ({"anyOf": [{"required": ["a"]}]}, False),
        ({"$ref": "#/$defs/A", "$defs": {"A": {}}}, False),
        ({"type": "object", "patternProperties": {"^x": {}}}, False),
    ],
)
def test_undeclared_arguments_are_closed_where_it_is_certain(
    schema: dict[str, Any], closed: bool
) -> None:
    result = closed_parameters(schema)
    if not closed:
        assert result == schema
    else:
        assert result["additionalProperties"] is False
        assert result["type"] == "object"
        assert {key: result[key] for key in schema} == schema


def test_nested_objects_and_strings_stay_as_the_schema_has_them() -> None:
    nested = {"type": "object", "properties": {"in": {"type": "object"}}}
    tool = FunctionTool(name="f", parameters=nested)
    spec = spec_for(tools=(tool,))
    assert accepts(spec, '\n{"name": "f", "arguments": {"in": {"any": "text"}}}\n</tool_call>')


def test_a_schemas_own_style_is_overruled() -> None:
    loose = {"type": "object", "properties": {}, "x-guidance": {"whitespace_flexible": True}}
    spec = spec_for(tools=(FunctionTool(name="f", parameters=loose),))
    assert accepts(spec, '\n{"name": "f", "arguments": {}}\n</tool_call>')
    assert not accepts(spec, '\n{"name": "f", "arguments": { }}\n</tool_call>')


def test_lenient_leaves_out_what_cannot_be_enforced() -> None:
    odd = FunctionTool(name="f", parameters={"type": "object", "not": {"required": ["x"]}})
    strict = spec_for(tools=(odd,))
    lark = resolve_specials(strict.lark, merging_tokenizer().token_to_id)
    refused = LLMatcher(vocabulary(), LLMatcher.grammar_from_lark(lark), log_level=0)
    assert "not" in refused.get_error()
    assert accepts(
        spec_for(tools=(odd,), lenient=True), '\n{"name": "f", "arguments": {}}\n</tool_call>'
    )


def test_a_line_of_a_grammar_leads_to_the_parameter_it_came_from() -> None:
    spec = spec_for(choice=ToolChoice(mode="auto", names=("now",)), text_format=SCHEMA)
    params = [param_at(spec.lark, n + 1) for n in range(spec.lark.count("\n"))]
    assert {p for p in params if p is not None} == {"text.format.schema", "tools[1].parameters"}
    assert param_at(spec.lark, 0) is None


def test_special_tokens_become_ids_and_missing_ones_are_named() -> None:
    spec = spec_for("mistral", REQUIRED)
    assert "<[7]>" in resolve_specials(spec.lark, {"[TOOL_CALLS]": 7}.get)
    with pytest.raises(LookupError, match="TOOL_CALLS"):
        resolve_specials(spec.lark, {}.get)
    hostile = FunctionTool(name="f", description="\nspecial_0: <x>", parameters=WEATHER.parameters)
    assert resolve_specials(spec_for(tools=(hostile,)).lark, lambda _: 5).count("<[5]>") == 2


def test_equal_requests_give_equal_grammars() -> None:
    assert spec_for() == spec_for()
    assert hash(spec_for()) == hash(spec_for())
    assert spec_for() != spec_for(tools=(NOW, WEATHER))


BOUNDED = FunctionTool(
    name="book",
    parameters={
        "type": "object",
        "properties": {
            "who": {"type": "string", "maxLength": 6},
            "seats": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 3},
            "class": {"enum": ["first", "second", None]},
            "where": {"$ref": "#/$defs/Place"},
        },
        "required": ["who", "class"],
        "$defs": {
            "Place": {
                "type": "object",
                "properties": {"x": {"type": "boolean"}, "y": {"const": 'a"b'}},
                "required": ["x"],
                "additionalProperties": False,
            }
        },
    },
)


@cache
def byte_vocabulary() -> LLTokenizer:
    return LLTokenizer(BYTES.read_text())


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_drawn_from_the_grammar_parses_into_valid_calls(seed: int) -> None:
    """Random bytes under the mask: the worst model there is."""
    rng = random.Random(seed)
    names = {
        token["content"]: token["id"] for token in json.loads(BYTES.read_text())["added_tokens"]
    }
    specials, ends = {token: name for name, token in names.items()}, {"<|im_end|>", "<|endoftext|>"}
    spec = spec_for(choice=REQUIRED, tools=(BOUNDED, NOW), max_calls=3)
    lark = LLMatcher.grammar_from_lark(resolve_specials(spec.lark, names.get))
    matcher = LLMatcher(byte_vocabulary(), lark)
    row = np.zeros((byte_vocabulary().vocab_size + 31) // 32, dtype=np.int32)
    drawn: list[int] = []
    while not (matcher.is_accepting() and (matcher.is_stopped() or rng.random() < 0.5)):
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        legal = [int(t) for t in np.flatnonzero(bits) if specials.get(int(t)) not in ends]
        drawn.append(rng.choice(legal))
        assert matcher.consume_token(drawn[-1])
        assert len(drawn) < 3000
    parser = CallParser(FORMATS["qwen3"], thinking=False)
    events = []
    text = bytearray()
    for token in [*drawn, names["<|im_end|>"]]:
        if token in specials:
            pushed = [Segment(text.decode())] if text else []
            events += parser.push([*pushed, Segment(specials[token], special=True)])
            text.clear()
        else:
            text.append(token)
    calls = [event for event in events if isinstance(event, CallDone)]
    assert 1 <= len(calls) <= 3
    assert not any(isinstance(event, ParsedText) for event in events)
    schemas = {tool.name: tool.parameters for tool in (BOUNDED, NOW)}
    for call in calls:
        assert call.complete
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])


# Custom tools

PATCH_LARK = r"""start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: "*** Add File: " /(.+)/ LF line+ -> added
line: "+" /(.*)/ LF
%import common.LF
"""
PATCH_TEXT = "*** Begin Patch\n*** Add File: a}.py\n+x = {1}\n+\n*** End Patch"


def custom_tools(syntax: str, definition: str) -> tuple[FunctionTool, ...]:
    format_ = {"type": "grammar", "syntax": syntax, "definition": definition}
    return parse_tools(
        [
            {"type": "custom", "name": "patch", "format": format_},
            {"type": "custom", "name": "note"},
            {"type": "namespace", "name": "mcp__x", "tools": [NOW.to_wire()]},
        ]
    )


PLAIN_WAYS = {
    "qwen3": ('<tool_call>\n{"name": "patch"}\n', "</tool_call>"),
    "llama": ('{"name": "patch"}\n', ""),
    "mistral": ('[TOOL_CALLS] [{"name": "patch"}\n', ""),
}


@pytest.mark.parametrize("family", PLAIN_WAYS)
@pytest.mark.parametrize(
    ("syntax", "definition", "good", "bad"),
    [
        ("lark", PATCH_LARK, PATCH_TEXT, PATCH_TEXT.replace("+x", "x")),
        ("regex", r"^[a-z}]+/\d{2}$", "ab}}/12", "ab}}/1"),
        ("regex", r"a\/b|c", "a/b", "a"),
        ("regex", "", "", "a"),
    ],
)
def test_plain_input_is_bound_by_the_clients_grammar(
    family: str, syntax: str, definition: str, good: str, bad: str
) -> None:
    if not definition:
        definition = "^$"
    spec = spec_for(family, REQUIRED, tools=custom_tools(syntax, definition))
    begin, end = PLAIN_WAYS[family]
    assert accepts(spec, begin + good + end)
    assert not accepts(spec, begin + bad + end)


@pytest.mark.parametrize("family", PLAIN_WAYS)
def test_beside_plain_input_other_tools_are_called_as_ever(family: str) -> None:
    spec = spec_for(family, REQUIRED, tools=custom_tools("lark", PATCH_LARK))
    key = "parameters" if family == "llama" else "arguments"
    ways = {
        "qwen3": ("<tool_call>\n", "\n</tool_call>"),
        "llama": ("", ""),
        "mistral": ("[TOOL_CALLS] [", "]"),
    }
    begin, end = ways[family]
    assert accepts(spec, f'{begin}{{"name": "note", "{key}": {{"input": "a\\nb"}}}}{end}')
    assert accepts(spec, f'{begin}{{"name": "mcp__x__now", "{key}": {{}}}}{end}')
    assert not accepts(spec, f'{begin}{{"name": "patch", "{key}": {{}}}}{end}')


def test_calls_with_plain_input_and_without_follow_one_another() -> None:
    spec = spec_for("qwen3", REQUIRED, tools=custom_tools("lark", PATCH_LARK))
    begin, end = PLAIN_WAYS["qwen3"]
    one, other = begin + PATCH_TEXT + end, f"<tool_call>{NOW_CALL.replace('now', 'mcp__x__now')}"
    for calls in (f"{one}\n{other}", f"{other}\n{one}", f"{one}\n{one}"):
        assert accepts(spec, calls)
        assert not accepts(
            spec_for("qwen3", REQUIRED, tools=custom_tools("lark", PATCH_LARK), parallel=False),
            calls,
        )


def test_a_definition_stays_inside_its_rule() -> None:
    lark = 'start: "a"\nspecial_0: "b"\nvalue: "c"\narguments_1: "d"'
    spec = spec_for("qwen3", tools=custom_tools("lark", lark))
    resolved = resolve_specials(spec.lark, lambda _: 5)
    assert '  special_0: "b"' in resolved
    assert {param_at(spec.lark, n + 1) for n in range(spec.lark.count("\n"))} == {
        None, "tools[1].parameters", "tools[2].parameters"
    }  # fmt: skip


def test_a_line_leads_to_the_place_of_its_tool_in_the_request() -> None:
    tools = custom_tools("lark", PATCH_LARK)
    spec = spec_for("qwen3", tools=tools)
    params = {param_at(spec.lark, n + 1, tools) for n in range(spec.lark.count("\n"))}
    assert params == {None, "tools[1].parameters", "tools[2].tools[0].parameters"}
