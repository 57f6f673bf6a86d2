"""The chat template of a Hugging Face folder, as text: where it may stand, and in which order.

It is not run here: ``runtime.chat_judge`` does that, in a process of its own. A template that
cannot be read is as good as none.
"""

from pathlib import Path
from typing import Any

import orjson

MAX_BYTES = 4 << 20
_ROLES = frozenset(f"{role}_token" for role in ("bos", "eos", "pad", "unk", "cls", "sep", "mask"))


def chat_template_of(folder: Path) -> str | None:
    """The text of the template for tools, or of the only one; None: there is none.

    ``chat_template.jinja`` goes before ``tokenizer_config.json``, as in transformers; of several
    under one roof the one called ``tool_use`` before the one called ``default``.
    """
    named = {path.stem: _text(path) for path in folder.glob("additional_chat_templates/*.jinja")}
    alone = _text(folder / "chat_template.jinja")
    for name in ("tokenizer_config.json", "chat_template.json"):
        if alone is None and not named:
            found = _stated(folder / name)
            if isinstance(found, str):
                alone = found
            elif isinstance(found, list):
                named = {
                    str(each.get("name")): each.get("template")
                    for each in found
                    if isinstance(each, dict)
                }
    texts = [named.get("tool_use"), alone, named.get("default"), *named.values()]
    return next((text for text in texts if isinstance(text, str)), None)


def special_tokens_of(folder: Path) -> dict[str, str]:
    """The special tokens that templates know by a role, as ``bos_token``."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for role, token in _object(folder / name).items():
            text = token.get("content") if isinstance(token, dict) else token
            if role in _ROLES and isinstance(text, str):
                found[role] = text
    return found


def response_template_of(folder: Path) -> Any:
    """What ``tokenizer_config.json`` says of how outputs are read, as parsed; None: nothing."""
    return _object(folder / "tokenizer_config.json").get("response_template")


def _stated(path: Path) -> Any:
    return _object(path).get("chat_template")


def _object(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        value = None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _text(path: Path) -> str | None:
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return None
