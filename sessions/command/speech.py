"""How a model is spoken to: its tokenizer, and the chat format that its folder's template says.

Knows no weights: a model that is not loaded yet has both. What a template says is found out by
``runtime.chat_judge``; the models that come along have none and are not judged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runtime.chat_judge.judge import Judgement, Refused, fitting_names
from runtime.chat_judge.kept import judged
from runtime.chat_template import chat_template_of
from runtime.model.sources import DEFAULT_MODEL, folder_of
from runtime.tokenizer import Tokenizer, TokenizerError
from sessions.command.settings import OptionError
from tools_api.call_signatures import mismatch
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import ChatFormat
from tools_api.chat_generic import chat_format_described


class Tokenised(Protocol):
    """The tokenizer and chat format of a model that is loaded or is not."""

    @property
    def model_type(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def tokenizer_folder(self) -> str | Path: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """The means by which transcripts are written."""

    tokenizer: Tokenizer
    chat_format: ChatFormat
    description: str | None
    """A description of the format, for other processes; None: it is what the special tokens
    choose."""
    how: str
    """Why it is this format, in words; empty: it is the model's own."""
    warning: str | None
    """Why calls will fail, in a sentence; empty: they will not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    chat_format: ChatFormat
    description: str | None
    how: str
    warning: str | None = None


def speech_of(
    model: str,
    of: Tokenised,
    *,
    chat_format: str | None = None,
    cache_folder: str | None = None,
) -> Speech:
    """Read the tokenizer of ``model`` and choose its chat format.

    Args:
        model: its name.
        of: the same, loaded or not.
        chat_format: the name of the format, if somebody has named it.
        cache_folder: keeps what was found out of a template; None: nothing is kept.

    Raises:
        OptionError: the tokenizer's files are unfit, or there is no format for it.
    """
    folder = Path(of.tokenizer_folder)
    choices: list[_Choice] = []

    def choose(specials: Mapping[str, int]) -> ChatFormat:
        found = _chosen(model, of, specials, chat_format, cache_folder)
        choices.append(found)
        return found.chat_format

    try:
        tokenizer = Tokenizer.load(
            folder, vocab_size=of.vocab_size, model_type=of.model_type, format_of=choose
        )
    except TokenizerError as error:
        raise OptionError(f"--model {error}") from error
    _check_written(model, tokenizer, chat_template_of(folder) or "")
    (choice,) = choices
    return Speech(
        tokenizer=tokenizer,
        chat_format=choice.chat_format,
        description=choice.description,
        how=choice.how,
        warning=choice.warning,
    )


def _check_written(model: str, tokenizer: Tokenizer, template: str) -> None:
    """Raises OptionError: the template writes a token that the model cannot read."""
    unread = next((text for text in sorted(tokenizer.without_rows) if text in template), None)
    if unread is not None:
        raise OptionError(
            f"--model {model}: the chat template writes {unread[:80]!r}, which has no row in an "
            f"embedding of {tokenizer.vocab_size} tokens; tokenizer and weights are of different "
            "models"
        )


def _chosen(
    model: str,
    of: Tokenised,
    specials: Mapping[str, int],
    named: str | None,
    cache_folder: str | None,
) -> _Choice:
    template = chat_template_of(Path(of.tokenizer_folder))
    if named is not None:
        return _named(named, of, specials, template)
    if folder_of(model) in (None, DEFAULT_MODEL):
        by_vocabulary = chat_format_for(of.model_type, specials.__contains__)
        return _Choice(chat_format=by_vocabulary, description=None, how="")
    if template is None:
        raise OptionError(f"--model {model}: {_without_template(specials)}")
    try:
        found = judged(template, Path(of.tokenizer_folder), specials, cache_folder)
    except Refused as refused:
        raise OptionError(f"--model {model}: {refused}{_way_out(specials)}") from refused
    return _judged(found, of, specials)


def _named(named: str, of: Tokenised, specials: Mapping[str, int], template: str | None) -> _Choice:
    try:
        chat_format = chat_format_described(named, specials.__contains__)
    except (LookupError, ValueError) as error:
        raise OptionError(f"--chat-format: {_message(error)}") from error
    warning = None if template is None else mismatch(template, chat_format)
    return _Choice(
        chat_format=chat_format,
        description=_told(named, chat_format, of, specials),
        how="--chat-format names it",
        warning=warning,
    )


def _judged(found: Judgement, of: Tokenised, specials: Mapping[str, int]) -> _Choice:
    chat_format = chat_format_described(found.description, specials.__contains__)
    warning = f"requests with tools are refused: {found.no_tools}" if found.no_tools else None
    return _Choice(
        chat_format=chat_format,
        description=_told(found.description, chat_format, of, specials),
        how=found.how,
        warning=warning,
    )


def _told(
    description: str, chat_format: ChatFormat, of: Tokenised, specials: Mapping[str, int]
) -> str | None:
    """The description, or None where the special tokens choose the same: what was kept of such a
    model's sessions stays its own."""
    try:
        other = chat_format_for(of.model_type, specials.__contains__)
    except ValueError:
        return description
    same = type(other) is type(chat_format) and _state(other) == _state(chat_format)
    return None if same else description


def _state(chat_format: ChatFormat) -> dict[str, object]:
    return {name: value for name, value in vars(chat_format).items() if name != "_has_token"}


def _without_template(specials: Mapping[str, int]) -> str:
    return (
        "the folder has no chat template that can be read (chat_template.jinja, or chat_template "
        f"in tokenizer_config.json), which says how conversations are written{_way_out(specials)}"
    )


def _way_out(specials: Mapping[str, int]) -> str:
    names = fitting_names(tuple(specials))
    if not names:
        return "; its tokenizer has the special tokens of no chat format that is known here"
    return (
        "; if you know how the model was trained, name it: --chat-format NAME, where its tokenizer "
        f"fits {', '.join(names)}"
    )


def _message(error: Exception) -> str:
    return str(error.args[0]) if error.args else str(error)
