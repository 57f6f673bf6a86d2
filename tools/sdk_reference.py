"""Writes docs/sdk_reference.md: every public name of the SDK, from its docstring and signature.

    python -m tools.sdk_reference

A test compares the file with what this writes.
"""

import dataclasses
import inspect
import re
import sys
import typing
from pathlib import Path
from typing import Any

import keepwarm

TARGET = Path(__file__).parents[1] / "docs/sdk_reference.md"
_HEAD = """\
# The SDK's reference

Made of the docstrings by `python -m tools.sdk_reference`; [the guide](sdk.md) says how the parts go
together. All names are imported from `keepwarm`, `McpServer` from `keepwarm.mcp`.
"""
_ORDER = ("AsyncClient", "AsyncSession", "Client", "Session", "tool", "ToolContext", "Retries")
"""The names that stand first; the others follow by the alphabet."""


def reference() -> str:
    """The whole document."""
    names = [name for name in keepwarm.__all__ if not name.startswith("_")]
    ordered = [*_ORDER, *sorted(set(names) - set(_ORDER))]
    return _HEAD + "".join(section(name, getattr(keepwarm, name)) for name in ordered)


def section(name: str, value: Any) -> str:
    """One name: a heading, its signature, what it says, and for a class its members."""
    lines = [f"\n## `{name}`\n"]
    if inspect.isclass(value):
        lines += _class(name, value)
    elif inspect.isfunction(value):
        lines += [_code(f"{name}{_signature(value)}"), _said(value)]
    else:
        lines.append(f"A type: {_types(value)}.")
    return "\n".join(lines[:1] + [f"{line.strip()}\n" for line in lines[1:] if line])


def _class(name: str, value: type) -> list[str]:
    if name in ("AsyncClient", "Client"):
        return [_code(f"{name}{_signature(value)}"), _said(value), *_members(value)]
    if typing.is_typeddict(value) or dataclasses.is_dataclass(value):
        return [_said(value), *_fields(value)]
    return [_said(value), *_members(value)]


def _fields(value: type) -> list[str]:
    hints = typing.get_type_hints(value, include_extras=True)
    if dataclasses.is_dataclass(value):
        own = [field.name for field in dataclasses.fields(value)]
    else:
        own = list(value.__annotations__)
    own = [name for name in own if not name.startswith("_")]
    return ["\n".join(f"- `{name}: {_type(hints[name])}`" for name in own)]


def _members(value: type) -> list[str]:
    found = []
    for name, member in value.__dict__.items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            found.append(f"\n### `{name}`\n\n{_said(member)}")
        elif inspect.isfunction(member):
            found.append(f"\n### `{name}`\n\n{_code(name + _signature(member))}\n\n{_said(member)}")
    return found


def _signature(value: Any) -> str:
    """Parameters and result, one to a line where they are many."""
    signature = inspect.signature(value)
    shown = [_parameter(p) for p in signature.parameters.values() if p.name != "self"]
    if any(p.kind is p.KEYWORD_ONLY for p in signature.parameters.values()):
        first = [p.kind for p in signature.parameters.values() if p.name != "self"]
        shown.insert(first.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = signature.return_annotation
    end = "" if result is inspect.Signature.empty else f" -> {_type(result)}"
    line = f"({', '.join(shown)}){end}"
    if len(line) <= 80:
        return line
    return "(\n" + "".join(f"    {parameter},\n" for parameter in shown) + f"){end}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    hint = "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
    return f"{stars}{parameter.name}{hint}{default}"


def _default(value: object) -> str:
    return "..." if " at 0x" in repr(value) else repr(value)


def _type(hint: Any) -> str:
    text = hint if isinstance(hint, str) else inspect.formatannotation(hint)
    for module in ("tools_api.sdk.", "tools_api.", "collections.abc.", "typing.", "builtins."):
        text = text.replace(module, "")
    text = re.sub(r"\b[a-z_]+\.(?=[A-Z])", "", text)
    text = re.sub(r"\*?<class '(\w+)'>", r"Unpack[\1]", text)
    return text.replace("NoneType", "None")


def _types(value: Any) -> str:
    return ", ".join(f"`{_type(part)}`" for part in typing.get_args(value)) or f"`{_type(value)}`"


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _said(value: Any) -> str:
    """The docstring, its lists of arguments as lists."""
    text = (inspect.getdoc(value) or "").replace("``", "`")
    text = re.sub(r"^(Args|Raises):$", r"\1:\n", text, flags=re.MULTILINE)
    text = re.sub(r"^    (\w[\w, ]*): ", r"- \1: ", text, flags=re.MULTILINE)
    return re.sub(r"^ {8}(?=\S)", "  ", text, flags=re.MULTILINE)


def main() -> int:
    """Write the document."""
    TARGET.write_text(reference(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
