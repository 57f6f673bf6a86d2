"""Pieces are found by comparing texts, and what contradicts itself is refused with the place."""

from collections.abc import Mapping

import pytest

from runtime.chat_judge.conversations import Conversation
from runtime.chat_judge.differences import without_empty_thoughts, written
from runtime.chat_judge.literals import Literals
from runtime.chat_judge.pieces import Found, Unfit, pieces_of
from runtime.chat_judge.short_conversations import conversations
from tests.support.byte_tokenizer import SPECIAL_TOKENS
from tools_api.chat_families import chat_format_named, chat_format_names
from tools_api.chat_format import TemplateOptions
from tools_api.chat_generic import GenericFormat, Learned

LITERALS = Literals(SPECIAL_TOKENS)


def texts_of(name: str) -> dict[str, str]:
    """What a renderer of ours writes, as if a template did."""
    chat_format = chat_format_named(name, LITERALS.has_token)
    return {each.name: written(chat_format, each) for each in conversations()}


def found(texts: Mapping[str, str], errors: Mapping[str, str] | None = None) -> Found:
    return pieces_of(
        texts, errors or {}, LITERALS, [Learned(format=name) for name in chat_format_names()]
    )


@pytest.mark.parametrize("name", ["qwen3", "hermes", "qwen3-coder", "qwen2.5", "nemotron3"])
def test_a_renderers_own_texts_give_pieces_that_write_the_same(name: str) -> None:
    made = found(texts_of(name))
    assert made.no_tools == ""
    chat_format = GenericFormat(made.pieces, LITERALS.has_token)
    for each in conversations():
        if not each.thinking:
            ours, theirs = written(chat_format, each), texts_of(name)[each.name]
            assert without_empty_thoughts(ours) == without_empty_thoughts(theirs), each.name


def test_reasoning_is_learned_where_there_are_think_tokens() -> None:
    made = found(texts_of("qwen3"))
    assert (made.pieces.thinking, made.pieces.after_thinking) == (True, "\n\n")
    chat_format = GenericFormat(made.pieces, LITERALS.has_token)
    for thinking in (False, True):
        options = TemplateOptions(thinking=thinking)
        native = chat_format_named("qwen3", LITERALS.has_token).generation_prompt(options)
        assert "".join(each.text for each in chat_format.generation_prompt(options)) == "".join(
            each.text for each in native
        )


@pytest.mark.parametrize(
    ("conversation", "old", "new", "said"),
    [
        ("a second user", "Qmarkaa", "Qmarkxx", "depends on what follows it"),
        ("a second user", "Qmarkub", "", "drops what it is given"),
        ("a second user", "Qmarkub", "Qmarkub Qmarkub", "writes it 2 times"),
        ("two users", "Qmarkub", "Qmarkub!", "in 'two users' the last turn stands"),
        ("instructions", "user\n", "user:\n", "in 'instructions' the user message stands"),
        ("a prompt", "assistant\n", "model\n", "the model's turn is opened by"),
        ("one output", "Qmarkoa", "", "drops what it is given"),
        ("an output and a user", "Qmarkub", "Qmarkub!", "in 'an output and a user'"),
    ],
)
def test_a_text_that_does_not_fit_the_others_is_told_by_name(
    conversation: str, old: str, new: str, said: str
) -> None:
    texts = texts_of("qwen3-coder")
    assert old in texts[conversation]
    texts[conversation] = texts[conversation].replace(old, new)
    with pytest.raises(Unfit, match=said):
        found(texts)


def test_without_a_text_that_is_needed_the_error_is_told() -> None:
    texts = texts_of("qwen3")
    del texts["a second user"]
    with pytest.raises(Unfit, match="for 'a second user' it gives no text: it says no"):
        found(texts, {"a second user": "it says no"})


@pytest.mark.parametrize(
    ("conversation", "said"),
    [("one tool", "'one tool'"), ("two calls", "'two calls'"), ("one output", "outputs of calls")],
)
def test_where_tools_have_no_place_there_are_pieces_without_them(
    conversation: str, said: str
) -> None:
    texts = texts_of("qwen3")
    del texts[conversation]
    made = found(texts)
    assert said in made.no_tools
    assert made.pieces.calls is None


def test_the_conversations_have_names() -> None:
    names = [each.name for each in conversations()]
    assert len(set(names)) == len(names)
    assert all(isinstance(each, Conversation) for each in conversations())
