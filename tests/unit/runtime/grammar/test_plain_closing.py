"""Endings of plain text: legal by the client's grammar, and short."""

import re

import pytest

from runtime.grammar.closing import complete
from runtime.grammar.plain_closing import PlainClosing
from runtime.tokenizer import Tokenizer
from tests.support.grammars import compiler, decode, small_tokenizer
from tools_api.grammar import GrammarSpec

PATCH = r"""start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: add | delete | update
add: "*** Add File: " name LF line+
delete: "*** Delete File: " name LF
update: "*** Update File: " name LF ("@@" LF line+)?
name: /(.+)/
line: ("+" | "-" | " ") /(.*)/ LF
%import common.LF"""
SQL = r"""start: "SELECT " column (", " column)* " FROM " table ";"
column: /[a-z_]{4,9}/
table: "users" | "orders"
"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def spec(definition: str) -> GrammarSpec:
    nested = "\n".join(f"  {line}" for line in definition.split("\n"))
    return GrammarSpec(lark=f"start: input_0\ninput_0: %lark {{\n{nested}\n}}\n")


def ending(
    tokenizer: Tokenizer, definition: str, written: str = "", steps: int = 4000
) -> str | None:
    """What the search puts behind ``written``."""
    grammar = spec(definition)
    matcher = compiler(tokenizer).parse(grammar).matcher
    for byte in written.encode():
        (token,) = [
            t for t in range(tokenizer.vocab_size) if tokenizer.token_bytes(t) == bytes([byte])
        ]
        assert matcher.consume_token(token)
    found = complete(PlainClosing(tokenizer, grammar.lark).finding(matcher, limit=200, steps=steps))
    if found is None:
        return None
    assert matcher.validate_tokens(list(found)) == len(found)
    assert found[-1] == tokenizer.end_of_turn_id
    return decode(tokenizer, list(found[:-1]))


def test_a_patch_ends_with_a_short_hunk(tokenizer: Tokenizer) -> None:
    text = ending(tokenizer, PATCH)
    assert text is not None
    assert re.fullmatch(
        r"[*]{3} Begin Patch\n[*]{3} (Add|Delete|Update) File: .\n([+ -]\n)?[*]{3} End Patch\n?",
        text,
    )


@pytest.mark.parametrize(
    "written",
    [
        "*** Begin Patch\n*** Add File: a.py",
        "*** Begin Patch\n*** Add File: a.py\n+import re\n",
        "*** Begin Patch\n*** Update File: a.py\n@@\n-x",
        "*** Begin Patch\n*** Delete File: a.py\n*** En",
    ],
)
def test_a_patch_ends_from_where_it_stands(tokenizer: Tokenizer, written: str) -> None:
    text = ending(tokenizer, PATCH, written)
    assert text is not None
    assert (written + text).rstrip("\n").endswith("\n*** End Patch")
    assert len(text) <= 25


def test_words_of_the_grammar_and_counted_letters_are_found(tokenizer: Tokenizer) -> None:
    text = ending(tokenizer, SQL)
    assert text is not None
    assert re.fullmatch(r"SELECT [a-z_]{4,9} FROM (users|orders);", text)


def test_a_search_that_may_not_go_far_finds_nothing(tokenizer: Tokenizer) -> None:
    assert ending(tokenizer, PATCH, steps=3) is None


@pytest.mark.parametrize("definition", [PATCH, SQL])
def test_a_grammar_of_plain_text_compiles_with_its_ending(
    tokenizer: Tokenizer, definition: str
) -> None:
    compiled = compiler(tokenizer).compile(spec(definition))
    assert 4 < len(compiled.closing) < 60
