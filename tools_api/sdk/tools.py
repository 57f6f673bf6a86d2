"""A Python function as a tool: what the model sees of it, and how it is to be run.

``tools_api.sdk.tool_making`` makes it of a function, ``tools_api.sdk.tool_runner`` runs it.
Knows nothing of models and loops.

Always true: a tool has effects unless it was declared ``read_only`` or ``idempotent``.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_origin

from tools_api.items import FunctionCall
from tools_api.sdk.options import Defined

DEFAULT_TIMEOUT_S = 300.0
DEFAULT_MAX_OUTPUT_BYTES = 16 * 1024
Context = TypeVar("Context")
Approve = Callable[[FunctionCall, Mapping[str, Any]], bool | str | Awaitable[bool | str]]
"""Asked before a call runs, with its arguments: True lets it run, False or a reason does not.
A plain function is asked in a thread, so that it may wait for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext(Generic[Context]):
    """The argument that a tool is given beside its own, if one of its parameters has this type.

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
        definition: Defined,
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

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    @property
    def name(self) -> str:
        """As the model calls it."""
        return self.definition.name

    def to_wire(self) -> dict[str, Any]:
        """As an entry of ``tools``."""
        return self.definition.to_wire()

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
        wanted = get_origin(wanted) or wanted
        if isinstance(wanted, type) and not isinstance(value, wanted):
            there = "none" if value is None else type(value).__name__
            raise TypeError(
                f"tool {self.name} wants a context of type {wanted.__name__}, the session "
                f"has {there}: give it as session(context=...)"
            )
