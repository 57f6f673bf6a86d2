"""JSON spelled in Lark, tried by the library's own parser."""

from collections.abc import Callable

import llguidance
import pytest

from runtime.grammar.compiler import GrammarCompiler
from runtime.grammar.lark_json import RuleBook, TooLong, key, pair, several
from runtime.tokenizer import Tokenizer
from tests.support.grammars import compiler, encode, small_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> GrammarCompiler:
    return compiler(tokenizer)


Accepts = Callable[[str], bool]


def judge(grammars: GrammarCompiler, tokenizer: Tokenizer, start: str, book: RuleBook) -> Accepts:
    matcher: llguidance.LLMatcher = grammars.builder(
        f"start: value\nvalue: {start}\n{''.join(book.lines)}"
    )()
    assert not matcher.is_error(), matcher.get_error()

    def accepts(text: str) -> bool:
        copy, tokens = matcher.deep_copy(), encode(tokenizer, text)
        return copy.try_consume_tokens(tokens) == len(tokens) and copy.is_accepting()

    return accepts


NEEDED = [(), ("a",), ("b",), ("a", "c"), ("b", "d"), ("a", "b", "c", "d")]


@pytest.mark.parametrize("needed", NEEDED)
def test_an_object_has_its_pairs_in_order_and_those_that_must_come(
    grammars: GrammarCompiler, tokenizer: Tokenizer, needed: tuple[str, ...]
) -> None:
    book = RuleBook("x", 10_000)
    pairs = [(pair(key(name), '"1"'), name in needed) for name in "abcd"]
    accepts = judge(grammars, tokenizer, book.object(pairs), book)
    for chosen in range(16):
        names = [name for bit, name in enumerate("abcd") if chosen >> bit & 1]
        pairs_written = ", ".join(f'"{name}": 1' for name in names)
        text = f"{{{pairs_written}}}"
        assert accepts(text) is (set(needed) <= set(names)), text
    assert not accepts('{"b": 1, "a": 1, "c": 1, "d": 1}')


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("other", [True, False])
@pytest.mark.parametrize(("least", "most"), [(0, None), (0, 2), (1, 1), (2, 5), (3, None), (0, 0)])
def test_an_array_has_as_many_items_as_it_may(
    grammars: GrammarCompiler,
    tokenizer: Tokenizer,
    first: int,
    other: bool,
    least: int,
    most: int | None,
) -> None:
    items = [f'"{at}"' for at in range(first if most is None else min(first, most))]
    rest = '"x"' if other and (most is None or most > len(items)) else None
    longest = len(items) if rest is None else 9 if most is None else most
    if least > longest:
        return  # whoever asks for that has found out before that there is none
    book = RuleBook("exact_0", 10_000)
    accepts = judge(grammars, tokenizer, book.array(items, rest, least, most), book)
    for size in range(9):
        written = [str(at) for at in range(len(items))] + ["x"] * 9
        text = f"[{', '.join(written[:size])}]"
        assert accepts(text) is (least <= size <= longest), text


def test_several_have_commas_between() -> None:
    assert several("a", 1, 1).strip() == "a"
    assert several("a", 0, None) == 'a (", " a){0,}'
    assert several("a", 3, 5) == 'a (", " a){2,4}'


def test_another_name_is_none_of_those_that_are_taken(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    book = RuleBook("x", 10_000)
    accepts = judge(grammars, tokenizer, book.other_name(["a", 'q"', "tab\t"]), book)
    for text in ('"b"', '""', '"aa"', '"é"', r'"\n"', r'"\\"', r'"\u0001"', '"A"'):
        assert accepts(text), text
    for text in ('"a"', r'"q\""', r'"tab\t"', r'"\u0061"', r'"tab\u0009"', '"', '"a', '"\n"'):
        assert not accepts(text), text


def test_bodies_have_one_name_and_no_more_than_their_room() -> None:
    book = RuleBook("x", 60)
    assert book.rule('"a"') == book.rule('"a"') == "x_0"
    assert book.terminal("/b/") == "X_1"
    assert book.knows('"a"')
    assert not book.knows('"b"')
    assert book.one_of(["1", "2", "1"]) == "X_2"
    assert book.lines[-1] == 'X_2: "1" | "2"\n'
    with pytest.raises(TooLong):
        book.rule('"' + "long" * 10 + '"')


def test_thousands_of_pairs_and_items_are_compiled_in_few_calls_inside_each_other(
    grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    book = RuleBook("exact_0", 10**7)
    pairs = [(pair(key(f"p{at}"), '"1"'), at == 700) for at in range(3000)]
    items = [f'"{at}"' for at in range(3000)]
    start = book.rule(f"{book.object(pairs)} {book.array(items, None, 2, None)}")
    assert book.depth(start) < 40
    accepts = judge(grammars, tokenizer, start, book)
    assert accepts('{"p5": 1, "p6": 1, "p700": 1, "p2999": 1}[0, 1, 2, 3, 4]')
    assert not accepts('{"p5": 1, "p6": 1, "p2999": 1}[0, 1]')
    assert not accepts('{"p700": 1}[0]')
    assert not accepts('{"p700": 1}[0, 1, 3]')


def test_the_depth_is_that_of_the_longest_way_that_is_new() -> None:
    book = RuleBook("exact_0", 1000)
    first, second = book.name(), book.name()
    book.add(first, f'"a" {second}')
    book.add(second, f'"b" {first} | {book.rule("/c/")}')
    assert book.depth(first) == 3
