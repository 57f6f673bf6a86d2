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
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import JsonCalls, Segment, SegmentWriter, call_object
from tools_api.items import FunctionCall

_TABLE = json.loads((Path(__file__).parent / "published_chats.json").read_text())
FORMATS: dict[str, Any] = {entry["format"]: entry for entry in _TABLE["formats"]}


@cache
def served(name: str, max_context_tokens: int = 65_536) -> ServedModel:
    """The model whose chat format is called so in ``published_chats.json``."""
    specials = FORMATS[name]["tokens"]
    chat_format = chat_format_for(FORMATS[name]["model_type"], frozenset(specials).__contains__)
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
    syntax = model.chat_format.calls
    if calls:
        assert isinstance(syntax, JsonCalls)
        out.calls(syntax, [call_object(call, syntax) for call in calls])
    end = Segment(model.chat_format.end_of_turn[0], special=True)
    return model.tokenizer.encode([*out.segments, end]).tolist()
