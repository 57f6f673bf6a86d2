"""Tools from a user's own Python file: what ``@tool`` made there, or its list ``tools``.

The file is run, as ``python FILE`` would run it; it is the user who names it.
"""

import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from keepwarm import Tool
from sessions.command.settings import OptionError, fault_of_file

_WAY = "; put @tool (from keepwarm import tool) on a function"


def tools_of(path: Path, label: str = "--tools") -> list[Tool]:
    """The tools of a file, in its order.

    Args:
        label: how whoever named the file did that.

    Raises:
        OptionError: there is no such file, it raises, it has no tool, or two of one name.
    """
    if fault := fault_of_file(path):
        raise OptionError(f"{label} {path}: {fault}")
    try:
        return _tools_in(_run(path))
    except OptionError as error:
        raise OptionError(f"{label} {path}{error}") from error.__cause__


def _tools_in(module: ModuleType) -> list[Tool]:
    listed = getattr(module, "tools", None)
    if isinstance(listed, list | tuple):
        for each in listed:
            if not isinstance(each, Tool):
                raise OptionError(f": its list 'tools' has {_shown(each)}, which is no tool{_WAY}")
        found = list(listed)
    else:
        found = [each for each in vars(module).values() if isinstance(each, Tool)]
    tools = list({id(each): each for each in found}.values())
    if not tools:
        raise OptionError(f": no tool in it{_WAY}")
    names = [tool.name for tool in tools]
    if twice := {name for name in names if names.count(name) > 1}:
        raise OptionError(f": two tools are called {min(twice)!r}")
    return tools


def _shown(value: object) -> str:
    return str(getattr(value, "__name__", repr(value)))


def _run(path: Path) -> ModuleType:
    spec = spec_from_file_location("keepwarm_users_tools", path)
    if spec is None or spec.loader is None:
        raise OptionError(": a Python file is needed, with .py at its end")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and type hints look
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise OptionError(f"{_line(path, error)}: {_said(error)}") from error
    return module


def _line(path: Path, error: BaseException) -> str:
    """Where in the file it happened, if it did there."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    numbers = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == str(path)
    ]
    return f", line {numbers[-1]}" if numbers else ""


def _said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
