"""Items as one model's token ids: nothing is rendered twice, and what cannot fit is not begun."""

from collections.abc import Sequence

import pytest

from runtime.messages import TokenArray
from runtime.text_encoder import UnsplittableText
from runtime.tokenizer import Tokenizer
from sessions.durable.renderer import Renderer
from sessions.durable.transcript import Tail
from tests.support.architecture import ROOT
from tests.support.sessions_rig import TOKENIZER, Rig, spelled
from tests.unit.sessions.durable.test_transcript import OPTIONS, entry, items, said
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import Segment
from tools_api.errors import ApiError

DEFAULT = ROOT / "runtime" / "assets" / "default_model"


def test_a_header_of_equal_parts_is_taken_over_as_it_is() -> None:
    renderer = Rig().model.renderer
    made = renderer.header(instructions="x", opening=None, tools=(), options=OPTIONS, parent=None)
    parent = entry(None)
    again = renderer.header(
        instructions=None, opening=None, tools=(), options=OPTIONS, parent=parent
    )
    assert again is parent.header
    assert not made.same_tokens(parent.header)


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (Tail.START, "<|im_start|>user\nhi<|im_end|>\n"),
        (Tail.INPUT, "<|im_start|>user\nhi<|im_end|>\n"),
        (Tail.CLOSED_OUTPUT, "\n<|im_start|>user\nhi<|im_end|>\n"),
        (Tail.OPEN_OUTPUT, "<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"),
    ],
)
def test_new_items_begin_as_the_text_before_them_ends(tail: Tail, expected: str) -> None:
    renderer = Rig().model.renderer
    ids, after = renderer.input(items(said("user", "hi")), tail, generate=False, options=OPTIONS)
    assert (spelled(ids.tolist()), after) == (expected, Tail.INPUT)


def test_a_tail_inside_a_turn_is_as_another_where_a_format_closes_turns() -> None:
    renderer = Rig().model.renderer
    given = items(said("user", "hi"))
    inside, after = renderer.input(given, Tail.INSIDE, generate=True, options=OPTIONS)
    plain, _ = renderer.input(given, Tail.INPUT, generate=True, options=OPTIONS)
    assert (inside.tolist(), after) == (plain.tolist(), Tail.INPUT)
    assert [tail for tail in Tail if tail.is_input] == [Tail.INPUT, Tail.INSIDE]


def test_nothing_new_leaves_the_tail_as_it_was() -> None:
    ids, after = Rig().model.renderer.input((), Tail.START, generate=False, options=OPTIONS)
    assert (len(ids), after) == (0, Tail.START)


class Unsplittable(Tokenizer):
    """Gives up on spaces, as one does whose expression only the library knows."""

    def encode(self, segments: Sequence[Segment]) -> TokenArray:
        if any(" " in segment.text for segment in segments):
            raise UnsplittableText
        return super().encode(segments)


def renderer_of(tokenizer: Tokenizer, max_tokens: int) -> Renderer:
    chat_format = chat_format_for("qwen3", tokenizer.specials.__contains__)
    return Renderer(tokenizer, chat_format, max_tokens=max_tokens)


def test_a_text_that_cannot_be_tokenised_is_too_long_for_the_context() -> None:
    renderer = renderer_of(Unsplittable.load(DEFAULT), 4096)
    with pytest.raises(ApiError, match="run of characters") as caught:
        renderer.input(items(said("user", " ")), Tail.START, generate=True, options=OPTIONS)
    refused = caught.value
    assert (refused.status, refused.code, refused.param) == (
        400,
        "context_length_exceeded",
        "input",
    )
    # Truncation cuts it: it counts as many tokens as it may have.
    assert renderer.count(items(said("user", " " * 5000)), OPTIONS) > 5000


@pytest.mark.parametrize("char", [" ", "-", "\t", "─", "字", "\0", "{", "a", "\n"])
def test_a_text_that_cannot_fit_is_refused_or_counted_before_it_is_tokenised(char: str) -> None:
    renderer = renderer_of(Unsplittable.load(DEFAULT), 4096)
    long = items(said("user", " " + char * 1_000_000))
    with pytest.raises(ApiError, match="context length is 4096") as caught:
        renderer.input(long, Tail.START, generate=True, options=OPTIONS, most=4096)
    assert caught.value.code == "context_length_exceeded"
    assert renderer.count(long, OPTIONS) > 4096


def test_a_run_of_a_million_is_tokenised_as_its_parts_are() -> None:
    """In the shipped model's vocabulary no token is longer than what is repeated here."""
    renderer = renderer_of(Tokenizer.load(DEFAULT), 10**9)
    counts = [
        renderer.count(items(said("user", "\t" * length)), OPTIONS)
        for length in (1_000, 10_000, 1_000_000)
    ]
    assert [count - counts[0] for count in counts] == [0, 9_000, 999_000]


def test_end_of_turn_tokens_are_never_banned() -> None:
    renderer = Rig().model.renderer
    for thinking in (False, True):
        for calls in (False, True):
            banned = renderer.banned_tokens(thinking=thinking, calls=calls)
            assert not TOKENIZER.end_of_turn_ids & set(banned)
            assert list(banned) == sorted(banned)
