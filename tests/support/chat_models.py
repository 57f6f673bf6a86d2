"""A served model for each chat format: bytes are its tokens, beside the format's special ones.

What it writes and what it reads are told as text in which special tokens are spelt out.
"""

import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from runtime.tokenizer import Tokenizer
from sessions.turns.service import ServedModel
from tests.support.byte_tokenizer import files
from tools_api.call_writing import write_calls
from tools_api.chat_families import chat_format_for, chat_format_named
from tools_api.chat_format import ChatFormat, Segment, SegmentWriter
from tools_api.items import FunctionCall

_TABLE = json.loads((Path(__file__).parent / "published_chats.json").read_text())
FORMATS: dict[str, Any] = {entry["format"]: entry for entry in _TABLE["formats"]}


def format_of(entry: dict[str, Any]) -> ChatFormat:
    """The format of a row of the table, with the row's special tokens."""
    has_token = frozenset(entry["tokens"]).__contains__
    if "name" in entry:
        return chat_format_named(entry["name"], has_token)
    return chat_format_for(entry["model_type"], has_token)


@cache
def served(name: str, max_context_tokens: int = 65_536) -> ServedModel:
    """The model whose chat format is called so in ``published_chats.json``."""
    specials = FORMATS[name]["tokens"]
    chat_format = format_of(FORMATS[name])
    with tempfile.TemporaryDirectory() as folder:
        for file, text in files(specials, chat_format.end_of_turn).items():
            (Path(folder) / file).write_text(text, encoding="utf-8")
        tokenizer = Tokenizer.load(Path(folder))
    return ServedModel(
        name="default",
        aliases=frozenset({"default", "m"}),
        tokenizer=tokenizer,
        chat_format=chat_format,
        max_context_tokens=max_context_tokens,
    )


def spelled(model: ServedModel, tokens: Sequence[int]) -> str:
    """Tokens as text."""
    return b"".join(model.tokenizer.token_bytes(int(token)) for token in tokens).decode()


def written(model: ServedModel, text: str, calls: Sequence[FunctionCall] = ()) -> list[int]:
    """The tokens of an output that says a text, then makes calls, and ends."""
    out = SegmentWriter(lambda name: model.tokenizer.special_id(name) is not None)
    out.text(text)
    if calls:
        assert model.chat_format.calls is not None
        write_calls(out, model.chat_format.calls, calls)
    end = Segment(model.chat_format.end_of_turn[0], special=True)
    return model.tokenizer.encode([*out.segments, end]).tolist()
