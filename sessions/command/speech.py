"""How a model is spoken to: its tokenizer, and the chat format that its special tokens choose.

Knows no weights: a model that is not loaded yet has both.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runtime.chat_template import chat_template_of
from runtime.tokenizer import Tokenizer, TokenizerError
from sessions.command.settings import OptionError
from tools_api.call_signatures import mismatch
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import ChatFormat


class Tokenised(Protocol):
    """What says how text becomes tokens, of a model that is loaded or is not."""

    @property
    def model_type(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def tokenizer_folder(self) -> str | Path: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """What transcripts are written with."""

    tokenizer: Tokenizer
    chat_format: ChatFormat
    warning: str | None
    """In a sentence, where the folder's own template writes calls in another way."""


def speech_of(model: str, of: Tokenised) -> Speech:
    """Read the tokenizer of ``model`` and choose its chat format.

    Raises:
        OptionError: the tokenizer's files are unfit, or no format fits its special tokens.
    """
    folder = Path(of.tokenizer_folder)
    try:
        tokenizer = Tokenizer.load(folder, vocab_size=of.vocab_size, model_type=of.model_type)
        chat_format = chat_format_for(
            of.model_type, lambda name: tokenizer.special_id(name) is not None
        )
    except TokenizerError as error:
        raise OptionError(f"--model {error}") from error
    except ValueError as error:
        raise OptionError(f"--model {model}: {error}") from error
    template = chat_template_of(folder)
    warning = None if template is None else mismatch(template, chat_format)
    return Speech(tokenizer=tokenizer, chat_format=chat_format, warning=warning)
