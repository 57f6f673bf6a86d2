"""What compiles, what is refused and why, and what is remembered."""

import threading
from typing import Any

import pytest

from runtime.grammar.closing import complete
from runtime.grammar.compiler import MAX_CLOSING_TOKENS, CompiledGrammar, GrammarCompiler
from runtime.grammar.refusal import GrammarRefused
from runtime.grammar.state import GrammarState
from runtime.tokenizer import Tokenizer
from tests.support.grammars import compiler, decode, encode, mask_of, schema_spec, small_tokenizer
from tools_api.grammar import GrammarSpec

FLIGHT = {
    "type": "object",
    "properties": {"user_id": {"type": "string"}, "seats": {"type": "integer"}},
    "required": ["user_id"],
}


LONG = {"type": "string", "minLength": 6000}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> GrammarCompiler:
    return compiler(tokenizer)


@pytest.mark.parametrize(
    ("schema", "message", "keyword", "path"),
    [
        ({"not": {}}, "'not' is not supported", "not", ("not",)),
        (
            {"properties": {"not": {"type": "array", "uniqueItems": True}}},
            "is not supported",
            "uniqueItems",
            ("properties", "not", "uniqueItems"),
        ),
        ({"type": "string", "format": "foobar"}, "Unknown format: foobar", "format", ("format",)),
        (
            {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^(?=a)"}]},
            "look-around",
            "pattern",
            ("anyOf", 1, "pattern"),
        ),
        ({"$ref": "https://example.com/s.json"}, "not present", "$ref", ("$ref",)),
        (
            {"type": "string", "minLength": 5, "maxLength": 2},
            "minLength",
            "minLength",
            ("minLength",),
        ),
        *(
            (
                {"type": "string", "minLength": size},
                "a string of more than 6000 characters",
                "minLength",
                ("minLength",),
            )
            for size in (6001, 10_000, 30_000, 2**63)
        ),
        (
            {"type": "array", "prefixItems": [LONG, {"type": "null"}, LONG | {"minLength": 6001}]},
            "a string of more than 6000 characters",
            "minLength",
            ("prefixItems", 2, "minLength"),
        ),
        ({"$ref": "#"}, "it refers to nothing but itself", "$ref", ("$ref",)),
        (
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/properties/a"}},
                "required": ["a"],
            },
            "it refers to nothing but itself",
            "$ref",
            ("properties", "a", "$ref"),
        ),
        (
            {
                "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}},
                "type": "array",
                "items": {"$ref": "#/$defs/b"},
                "minItems": 1,
            },
            "it refers to nothing but itself",
            "$ref",
            ("items", "$ref"),
        ),
        (False, "schema is false", None, None),
        (
            {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            "no value satisfies it",
            None,
            None,
        ),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_keyword_and_path(
    grammars: GrammarCompiler,
    schema: Any,
    message: str,
    keyword: str | None,
    path: tuple[str | int, ...] | None,
) -> None:
    with pytest.raises(GrammarRefused, match=message) as caught:
        grammars.compile(schema_spec(schema))
    assert caught.value.keyword == keyword
    assert caught.value.path == path
    assert "\n" not in caught.value.message
    assert "%json" not in caught.value.message


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {
            "$defs": {"a": {"$ref": "#/$defs/a"}},
            "anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}],
        },
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "type": "null"},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
        {
            "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}},
            "type": "array",
            "items": {"$ref": "#/$defs/b"},
        },
    ],
)
def test_a_circle_that_no_output_has_to_enter_is_no_reason_to_refuse(
    grammars: GrammarCompiler, tokenizer: Tokenizer, schema: Any
) -> None:
    compiled = grammars.compile(schema_spec(schema))
    assert compiled.closing is not None
    shortest = {"array": "[]", "object": "{}"}.get(schema.get("type"), "null")
    assert decode(tokenizer, list(compiled.closing[:-1])) == shortest


def test_a_phase_token_that_the_model_lacks_is_refused(grammars: GrammarCompiler) -> None:
    with pytest.raises(GrammarRefused, match="no special token '<call>'"):
        grammars.compile(GrammarSpec(lark='start: "a"', trigger="<call>"))


def test_grammars_are_remembered_within_the_bound_of_bytes(tokenizer: Tokenizer) -> None:
    grammars = compiler(tokenizer, max_cache_bytes=450_000)
    specs = [schema_spec({"const": number}) for number in range(3)]
    first = grammars.compile(specs[0])
    grammars.compile(specs[1])
    assert grammars.compile(specs[0]) is first, "used again, so the other one is older"
    grammars.compile(specs[2])
    assert [grammars.cached(spec) is not None for spec in specs] == [True, False, True]


def test_threads_that_want_the_same_grammar_share_one_compilation(tokenizer: Tokenizer) -> None:
    grammars = compiler(tokenizer)
    spec, barrier = schema_spec(FLIGHT), threading.Barrier(8)
    results: list[int] = []

    def work() -> None:
        barrier.wait()
        results.append(id(grammars.compile(spec)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert len(set(results)) == 1


def test_a_refusal_reaches_everyone_and_is_not_remembered(tokenizer: Tokenizer) -> None:
    grammars = compiler(tokenizer)
    spec = schema_spec({"not": {}})
    for _ in range(2):
        with pytest.raises(GrammarRefused):
            grammars.compile(spec)
    assert grammars.cached(spec) is None


def test_a_grammar_that_ran_out_of_fuel_is_forgotten_and_compiled_anew(
    tokenizer: Tokenizer,
) -> None:
    grammars = compiler(tokenizer)
    spec = schema_spec({"type": "string", "pattern": "^(.{0,60}x){0,60}$"})

    def walked(compiled: CompiledGrammar) -> int:
        matcher, count = compiled.pristine.deep_copy(), 0
        quote, x = (encode(tokenizer, letter)[0] for letter in '"x')
        while count < 200 and matcher.consume_token(x if count else quote):
            matcher.compute_bitmask()
            count += 1
        return count

    first = grammars.compile(spec)
    assert 1 < walked(first) < 200
    assert walked(first) <= 1, "the automaton is shared, and unfit now"
    grammars.forget(first)
    second = grammars.compile(spec)
    assert second is not first
    assert walked(second) > 1
    grammars.forget(first)
    assert grammars.cached(spec) is second


def test_a_compilation_may_be_finished_in_pieces(grammars: GrammarCompiler) -> None:
    spec = schema_spec({"type": "array", "items": FLIGHT, "minItems": 3})
    work = grammars.finishing(grammars.parse(spec))
    for _ in range(5):
        next(work)
    assert grammars.cached(spec) is None
    compiled = complete(work)
    assert grammars.cached(spec) is compiled
    assert grammars.compile(spec) is compiled


def test_what_nothing_can_satisfy_is_refused(grammars: GrammarCompiler) -> None:
    endless = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    work = grammars.finishing(grammars.parse(schema_spec(endless)))
    with pytest.raises(GrammarRefused, match="no value satisfies it") as caught:
        complete(work)
    assert caught.value.block == 0


def test_where_no_ending_is_found_the_grammar_is_no_worse_for_it(
    grammars: GrammarCompiler,
) -> None:
    long = {"type": "array", "items": {"type": "integer"}, "minItems": MAX_CLOSING_TOKENS}
    compiled = grammars.compile(schema_spec(long))
    assert compiled.closing is None
    assert compiled.least_tokens == 3


@pytest.mark.parametrize(
    ("lark", "least"),
    [
        ('start: "a"', 2),
        ('start: "a"?', 1),
        ('start: "a" | "b"', 2),
        ('start: "q" /[ab]/ "z"', 3),
        ('start: "q" ("z")*', 2),
    ],
)
def test_the_least_is_what_all_outputs_begin_with_and_what_must_follow(
    grammars: GrammarCompiler, lark: str, least: int
) -> None:
    compiled = grammars.compile(GrammarSpec(lark=lark))
    assert compiled.least_tokens == least
    assert compiled.closing is not None
    assert len(compiled.closing) >= least


@pytest.mark.samples(2)
@pytest.mark.parametrize("bound", [{"minLength": 6000}, {"maxLength": 6000}])
@pytest.mark.parametrize("text", ["a", "\N{GRINNING FACE}"])
def test_a_string_as_long_as_can_be_counted_is_written_to_its_end(
    grammars: GrammarCompiler, tokenizer: Tokenizer, bound: dict[str, int], text: str
) -> None:
    state = GrammarState(grammars.compile(schema_spec({"type": "string"} | bound)), tokenizer)
    state.advance(encode(tokenizer, '"'))
    for token in encode(tokenizer, text) * 6000:
        assert token in mask_of(state, tokenizer), state.failed
        state.advance([token])
    state.advance(encode(tokenizer, '"'))
    assert state.failed is None
    assert tokenizer.end_of_turn_id in mask_of(state, tokenizer)
