"""``@tool``: a tool of a Python function, its schema and description read from the function.

Knows nothing of how a tool is run. Loads all of pydantic, which a client without tools of its
own has no need of.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any, get_args, get_origin, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, create_model

from tools_api.sdk.options import meant
from tools_api.sdk.schemas import read_json, strict_schema
from tools_api.sdk.tools import (
    DEFAULT_MAX_OUTPUT_BYTES,
    DEFAULT_TIMEOUT_S,
    Conduct,
    Tool,
    ToolContext,
)
from tools_api.tools import FunctionTool


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    timeout_s: float | None = DEFAULT_TIMEOUT_S,
    retries: int = 0,
    needs_approval: bool = False,
    max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, **conduct: Any
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a strict tool of a function, as ``@tool`` or ``@tool(read_only=True, timeout_s=5)``.

    The schema comes from the type hints: anything pydantic knows, with bounds and
    descriptions as ``Annotated[str, Field(max_length=20, description="...")]``. The first
    paragraph of the docstring is the description. The schema has the model give every argument,
    also one with a default, which counts where a call comes without it all the same. A parameter
    of type ``ToolContext`` is not the model's to give.

    Args:
        name: as the model calls it; the function's own without it.
        conduct: how it is to be run, the fields of ``Conduct``.

    Raises:
        TypeError: an argument has no type or cannot be passed by name; it is no function; an
            option does not exist.
    """
    known = [field.name for field in dataclasses.fields(Conduct)]
    for option in conduct:
        if option not in known:
            raise TypeError(f"tool has no option {option!r}{meant(option, known)}")
    settled = Conduct(**conduct)
    if function is not None:
        return _made(function, name, settled)
    return lambda function: _made(function, name, settled)


def _made(function: Callable[..., Any], name: str | None, conduct: Conduct) -> Tool:
    if not inspect.isroutine(function):
        kind = type(function).__name__
        raise TypeError(f"a tool is made of a function, not of one of type {kind}")
    shown = name or function.__name__
    if not re.fullmatch(r"[\w.-]{1,64}", shown):
        raise ValueError(f"{shown!r} cannot be a tool's name: letters, digits, _ and -, up to 64")
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    context: tuple[str, Any] | None = None
    for argument in inspect.signature(function).parameters.values():
        hint = _hint(shown, argument, hints)
        if hint is ToolContext or get_origin(hint) is ToolContext:
            context = (argument.name, next(iter(get_args(hint)), None))
            continue
        # By alias: an argument may have a name that a pydantic model uses itself.
        fields[f"argument_{len(fields)}"] = (hint, _field(argument))
    arguments = create_model(shown, __config__=ConfigDict(extra="forbid"), **fields)
    paragraph = (inspect.getdoc(function) or "").split("\n\n")[0]
    definition = FunctionTool(
        name=shown,
        description=" ".join(paragraph.split()) or None,
        parameters=strict_schema(arguments),
    )
    return Tool(function, definition, _binder(arguments), conduct, context)


def _field(argument: inspect.Parameter) -> Any:
    """Made by a factory, a default is no part of the schema and need not be JSON."""
    if argument.default is argument.empty:
        return Field(alias=argument.name)
    return Field(alias=argument.name, default_factory=lambda: argument.default)


def _hint(name: str, argument: inspect.Parameter, hints: dict[str, Any]) -> Any:
    if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
        raise TypeError(f"tool {name}: {argument} cannot be passed by name")
    if argument.name not in hints:
        raise TypeError(f"tool {name}: argument {argument.name} has no type")
    return hints[argument.name]


def _binder(arguments: type[BaseModel]) -> Callable[[str], dict[str, Any]]:
    fields = arguments.model_fields

    def bind(text: str) -> dict[str, Any]:
        checked = read_json(arguments, text)
        return {str(field.alias): getattr(checked, name) for name, field in fields.items()}

    return bind
