"""Numbers of schemas to the last digit: what random weights write under schemas with numbers of
any size satisfies them, and values that satisfy them can be written.

``KEEPWARM_EXACT_SCHEMAS`` sets how many schemas are drawn, ``KEEPWARM_EXACT_SEED`` from which seed.
"""

import os
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from runtime.grammar.compiler import CompiledGrammar, GrammarCompiler
from runtime.grammar.exact_rules import with_exact_numbers
from runtime.grammar.number_rules import literal
from runtime.grammar.state import GrammarState
from runtime.tokenizer import Tokenizer
from tests.support.exact_schemas import Schemas, satisfies
from tests.support.grammars import compiler, decode, encode, random_output, schema_spec
from tests.support.vocabularies import vocabulary
from tools_api.exact_json import written
from tools_api.exact_numbers import is_number
from tools_api.schema_dialect import rewrite_schema

SCHEMAS = int(os.environ.get("KEEPWARM_EXACT_SCHEMAS", "100"))
SEED = int(os.environ.get("KEEPWARM_EXACT_SEED", "0"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return vocabulary("bytes", tmp_path_factory.mktemp("bytes"))


def spelled(value: Any) -> str:
    """A value as our grammars space JSON, numbers without exponents."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{written(key)}: {spelled(inner)}" for key, inner in value.items())
        return f"{{{pairs}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(spelled, value))}]"
    return literal(value) if is_number(value) else written(value)


def accepts(compiled: CompiledGrammar, tokenizer: Tokenizer, text: str) -> bool:
    matcher, tokens = compiled.pristine.deep_copy(), encode(tokenizer, text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@dataclass
class Tally:
    """What became of the schemas."""

    written: int = 0
    cut: int = 0
    """Outputs that reached their limit before they ended."""
    rounded: int = 0
    """Schemas that the grammar library alone would have rounded."""
    faults: list[str] = field(default_factory=list)


def try_schema(tokenizer: Tokenizer, grammars: GrammarCompiler, seed: str, tally: Tally) -> None:
    rng = random.Random(seed)
    drawn = Schemas(rng).document()
    spec = schema_spec(rewrite_schema(drawn.schema).schema)
    compiled = grammars.compile(spec)
    tally.rounded += with_exact_numbers(spec.lark) is not None
    for _ in range(3):
        value = drawn.draw(rng)
        if not accepts(compiled, tokenizer, spelled(value)):
            tally.faults.append(f"{seed}: {spelled(value)} cannot be written: {drawn.schema}")
    for room in (0, 3, 100):
        limit = (len(compiled.closing) if compiled.closing else 400) + room
        state = GrammarState(compiled, tokenizer)
        text = decode(tokenizer, random_output(state, tokenizer, limit, rng)[:-1])
        if not state.ended:
            tally.cut += 1
            if state.failed or compiled.closing:
                tally.faults.append(f"{seed}: {state.failed or 'cut'}: {text}: {drawn.schema}")
            continue
        tally.written += 1
        if not satisfies(drawn.schema, text):
            tally.faults.append(f"{seed}: {text} was written: {drawn.schema}")


def test_what_is_written_satisfies_its_schema_and_what_satisfies_it_can_be_written(
    tokenizer: Tokenizer,
) -> None:
    grammars, tally = compiler(tokenizer, max_cache_bytes=0), Tally()
    for number in range(SCHEMAS):
        try_schema(tokenizer, grammars, f"{SEED}/{number}", tally)
    print(f"seed {SEED}: {replace(tally, faults=[])}")
    assert not tally.faults, "\n".join(tally.faults[:10])
    assert tally.rounded > SCHEMAS // 3
