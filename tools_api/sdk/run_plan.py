"""The settings of a run: its tools, how often the model is asked, what its answer has to be.

Always true: a plan that exists is one that can be played; what is wrong with it was said to whoever
made it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tools_api.sdk.checks import of_kind
from tools_api.sdk.options import (
    AnyTool,
    GenerationOptions,
    ToolChoice,
    TurnOptions,
    check_options,
)
from tools_api.sdk.schemas import json_format
from tools_api.sdk.tools import Tool

DEFAULT_MAX_TURNS = 16
DEFAULT_MAX_REPAIRS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The settings of a run."""

    tools: Sequence[AnyTool]
    options: GenerationOptions
    tool_choice: ToolChoice | Callable[[int], ToolChoice] = "auto"
    """The tool choice of the first turn; later ones have ``auto``, since a choice that forces a
    call never ends. Or a function of the turn's number, which counts from 0."""
    max_turns: int = DEFAULT_MAX_TURNS
    output_type: Any = None
    max_repairs: int = DEFAULT_MAX_REPAIRS

    def __post_init__(self) -> None:
        check_options(self.options)
        for name in ("max_turns", "max_repairs"):
            of_kind(name, getattr(self, name), int, "a whole number")
        if self.max_turns < 1:
            raise ValueError(f"max_turns {self.max_turns} is below 1")
        if self.max_repairs < 0:
            raise ValueError(f"max_repairs {self.max_repairs} is below 0")

    def turn_options(self, number: int, *, late: bool = False) -> TurnOptions:
        """The options of turn ``number``. ``late``: the history has brought tools as well."""
        choice: ToolChoice = "auto"
        if not callable(self.tool_choice) or isinstance(self.tool_choice, Tool):
            choice = self.tool_choice if number == 0 else choice
        else:
            choice = self.tool_choice(number)
        options = cast(TurnOptions, dict(self.options))
        if self.tools:
            options["tools"] = self.tools
        if self.tools or late:
            options["tool_choice"] = choice
        if self.output_type is not None:
            options["text"] = json_format(self.output_type)
        return options

    @property
    def functions(self) -> list[Tool]:
        """The tools that can be run here."""
        return [tool for tool in self.tools if isinstance(tool, Tool)]


def left_to_caller(tools: Iterable[AnyTool]) -> set[str]:
    """Names of those that are definitions alone."""
    raw = [tool for tool in tools if not isinstance(tool, Tool)]
    return {
        str(tool.get("name") if isinstance(tool, Mapping) else getattr(tool, "name", None))
        for tool in raw
    }
