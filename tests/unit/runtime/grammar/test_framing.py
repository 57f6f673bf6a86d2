"""Tags that a grammar names are offered where they are legal."""

import numpy as np
import pytest

from runtime.grammar.compiler import GrammarCompiler
from runtime.grammar.framing import Framing
from runtime.grammar.mask_bits import mask_words
from tests.support.sessions_rig import TOKENIZER
from tools_api.chat_format import Segment
from tools_api.grammar import GrammarSpec
from tools_api.lark_rules import TAGS

LARK = (
    'start: "<k>" T "<end>"\nT: (/[a-c]{1,3}/ & ~/ab/) "</k>\\n"\n'
    + TAGS
    + '{"closing": [[["</k>\\n", false]], [["<end>", false]]], "opening": [[["<k>", false]]], '
    + '"strings": [{"const": "cab"}]}\n'
)


def offered(typed: str, *, in_text: bool = False) -> list[str]:
    matcher = (
        GrammarCompiler(TOKENIZER, max_cache_bytes=1 << 20)
        .compile(GrammarSpec(lark=LARK))
        .pristine.deep_copy()
    )
    matcher.consume_tokens(TOKENIZER.encode([Segment(typed)]).tolist())
    row = np.zeros(mask_words(TOKENIZER.vocab_size), dtype=np.int32)
    matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    ways = Framing(TOKENIZER, LARK).ways(matcher, row, in_text=in_text)
    return [b"".join(map(TOKENIZER.token_bytes, way)).decode() for way in ways]


@pytest.mark.parametrize(
    ("typed", "ways"),
    [
        ("", ["<k>"]),
        ("<", ["k>"]),
        ("<k>", ["b</k>\n"]),
        ("<k>a", ["</k>\n"]),
        ("<k>ab", ["b</k>\n"]),
        ("<k>a</k>\n", ["<end>"]),
    ],
)
def test_what_closes_comes_before_what_opens(typed: str, ways: list[str]) -> None:
    assert offered(typed) == ways


def test_a_tag_that_a_string_may_hold_is_not_offered_in_text() -> None:
    assert offered("<k>a</k>\n", in_text=True) == []


def test_a_grammar_without_tags_offers_nothing() -> None:
    assert Framing(TOKENIZER, "start: /a/\n").is_empty
