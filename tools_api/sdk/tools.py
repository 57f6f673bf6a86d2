"""A Python function as a tool: what the model sees of it, and how it is to be run.

``@tool`` reads schema and description from the function itself. Knows nothing of models and
loops; ``tools_api.sdk.tool_runner`` runs what is described here.

Always true: a tool has effects unless it was declared ``read_only`` or ``idempotent``.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, create_model

from tools_api.items import FunctionCall
from tools_api.sdk.options import strict_schema
from tools_api.tools import FunctionTool

DEFAULT_TIMEOUT_S = 300.0
DEFAULT_MAX_OUTPUT_BYTES = 16 * 1024
Context = TypeVar("Context")
Approve = Callable[[FunctionCall, Mapping[str, Any]], bool | str | Awaitable[bool | str]]
"""Asked before a call runs, with its arguments: True lets it run, False or a reason does not.
A plain function is asked in a thread, so that it may wait for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext(Generic[Context]):
    """What a tool is given beside its arguments, if one of its parameters has this type.

    ``ToolContext[Shop]`` says of what type the session's ``context`` has to be.
    """

    call_id: str
    """Names the call for good: the same when a lost turn is taken up again, so that a tool can
    keep its effect from happening twice."""
    tool: str
    attempt: int
    """From 1; higher where ``retries`` runs the tool again."""
    value: Context
    """The session's ``context``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """How a tool is to be run."""

    read_only: bool = False
    """It changes nothing: it may start while its turn still decodes, and run in vain."""
    idempotent: bool = False
    """To run it twice is as good as once: it may start early as well."""
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    """Longest run of one attempt; None for no bound."""
    retries: int = 0
    """Further attempts after it raised; after a timeout only if it is read-only or idempotent."""
    needs_approval: bool = False
    """The session's ``approve`` is asked before it runs."""
    max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES
    """Longer output is cut in its middle, with a note that says so."""

    def __post_init__(self) -> None:
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise ValueError(f"timeout_s {self.timeout_s:g} is not above 0")
        if self.retries < 0:
            raise ValueError(f"retries {self.retries} is below 0")
        if self.max_output_bytes < 256:
            raise ValueError(f"max_output_bytes {self.max_output_bytes} is below 256")

    @property
    def may_start_early(self) -> bool:
        """Nothing is lost if it runs and its turn does not end."""
        return self.read_only or self.idempotent


class Tool:
    """A function and how the model sees it. Made by ``tool``; callable as before."""

    def __init__(
        self,
        function: Callable[..., Any],
        definition: FunctionTool,
        bind: Callable[[str], dict[str, Any]],
        conduct: Conduct,
        context: tuple[str, Any] | None = None,
    ) -> None:
        """``context``: the parameter that takes the ToolContext, and the type of its value."""
        self._function = function
        self._bind = bind
        self._context = context
        self.definition = definition
        self.conduct = conduct
        self.is_async = inspect.iscoroutinefunction(function)

    @property
    def name(self) -> str:
        """As the model calls it."""
        return self.definition.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def bind(self, arguments: str) -> dict[str, Any]:
        """Read JSON arguments into what the function takes.

        Raises:
            ValidationError: they do not fit the function's types.
        """
        return self._bind(arguments)

    def takes(self, context: ToolContext[Any]) -> dict[str, Any]:
        """The further arguments that a call is given: the context, if the function wants it."""
        return {} if self._context is None else {self._context[0]: context}

    def check_context(self, value: object) -> None:
        """Whether ``value`` may be the context of a session with this tool.

        Raises:
            TypeError: the function wants another type.
        """
        wanted = None if self._context is None else self._context[1]
        if isinstance(wanted, type) and not isinstance(value, wanted):
            raise TypeError(
                f"tool {self.name} wants a context of type {wanted.__name__}, the session "
                f"has {type(value).__name__}: give it as session(context=...)"
            )


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
    paragraph of the docstring is the description. The model must give every argument, also
    one with a default. A parameter of type ``ToolContext`` is not the model's to give.

    Args:
        name: as the model calls it; the function's own without it.
        conduct: how it is to be run, the fields of ``Conduct``.

    Raises:
        TypeError: an argument has no type or cannot be passed by name.
    """
    settled = Conduct(**conduct)
    if function is not None:
        return _made(function, name, settled)
    return lambda function: _made(function, name, settled)


def _made(function: Callable[..., Any], name: str | None, conduct: Conduct) -> Tool:
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
        fields[f"argument_{len(fields)}"] = (hint, Field(alias=argument.name))
    arguments = create_model(shown, __config__=ConfigDict(extra="forbid"), **fields)
    paragraph = (inspect.getdoc(function) or "").split("\n\n")[0]
    definition = FunctionTool(
        name=shown,
        description=" ".join(paragraph.split()) or None,
        parameters=strict_schema(arguments),
    )
    return Tool(function, definition, _binder(arguments), conduct, context)


def _hint(name: str, argument: inspect.Parameter, hints: dict[str, Any]) -> Any:
    if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
        raise TypeError(f"tool {name}: {argument} cannot be passed by name")
    if argument.name not in hints:
        raise TypeError(f"tool {name}: argument {argument.name} has no type")
    return hints[argument.name]


def _binder(arguments: type[BaseModel]) -> Callable[[str], dict[str, Any]]:
    fields = arguments.model_fields

    def bind(text: str) -> dict[str, Any]:
        checked = arguments.model_validate_json(text)
        return {str(field.alias): getattr(checked, name) for name, field in fields.items()}

    return bind
