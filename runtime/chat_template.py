"""The chat template of a Hugging Face folder, as text: where it may stand, and in which order.

It is never run: what it says is compared with what our own renderers write. A template that
cannot be read is as good as none, because nothing depends on it.
"""

from pathlib import Path
from typing import Any

import orjson

MAX_BYTES = 4 << 20


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


def _stated(path: Path) -> Any:
    text = _text(path)
    try:
        value = None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value.get("chat_template") if isinstance(value, dict) else None


def _text(path: Path) -> str | None:
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return None
