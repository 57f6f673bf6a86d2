"""Judgements of folders' chat templates, kept for the next start.

A file of the cache folder belongs to a template, a tokenizer and the code that judged; it says all
three again inside (``runtime.machine_files``), and what it says is read like anything from outside.

Always true: a file that is not whole, or of something else, counts as none.
"""

import functools
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import xxhash

from runtime.chat_judge.judge import Judgement, judge
from runtime.chat_template import response_template_of, special_tokens_of
from runtime.machine_files import MachineFile
from tools_api.chat_generic import chat_format_described
from tools_api.version import __version__

_CODE = (Path(__file__).parent, Path(__file__).parents[2] / "tools_api")


def judged(
    template: str, folder: Path, specials: Mapping[str, int], cache_folder: str | None
) -> Judgement:
    """The judgement of a template, found out or kept.

    Args:
        template: the text.
        folder: where it is from, with its tokenizer.
        specials: every special token, with its id.
        cache_folder: where it is kept; None: nowhere.

    Raises:
        Refused: as ``judge``.
    """
    tokens = special_tokens_of(folder)
    read = response_template_of(folder)
    facts = _facts(template, folder, specials, tokens) | {"response_template": _digest(read)}
    kept = MachineFile.of(cache_folder, "chat-format", facts)
    if kept is not None:
        found = kept.read(lambda content: _understood(content, specials))
        if found is not None:
            return found
    made = judge(template, tokens, tuple(specials), response_template=read)
    if kept is not None:
        kept.write({"description": made.description, "how": made.how, "no_tools": made.no_tools})
    return made


def _understood(content: Any, specials: Mapping[str, int]) -> Judgement:
    texts = content.values() if isinstance(content, dict) else (None,)
    if not all(isinstance(value, str) for value in texts):
        raise TypeError("not texts alone")
    found = Judgement(**content)
    try:
        chat_format_described(found.description, specials.__contains__)
    except LookupError as error:
        raise ValueError(str(error)) from error
    return found


def _facts(
    template: str, folder: Path, specials: Mapping[str, int], tokens: Mapping[str, str]
) -> dict[str, str]:
    file = folder / "tokenizer.json"
    tokenizer = xxhash.xxh3_128(file.read_bytes() if file.is_file() else b"")
    tokenizer.update(repr((sorted(specials.items()), sorted(tokens.items()))).encode())
    return {
        "template": hashlib.sha256(template.encode(errors="replace")).hexdigest(),
        "tokenizer": tokenizer.hexdigest(),
        "keepwarm": f"{__version__} {_digest_of_code()}",
    }


def _digest(told: Any) -> str:
    return hashlib.sha256(repr(told).encode(errors="replace")).hexdigest()


@functools.cache
def _digest_of_code() -> str:
    """A digest of everything that a judgement depends on here."""
    state = xxhash.xxh3_128()
    for file in _sources():
        state.update(file.name.encode() + file.read_bytes())
    return state.hexdigest()


def _sources() -> Iterable[Path]:
    return sorted(file for folder in _CODE for file in folder.glob("*.py"))
