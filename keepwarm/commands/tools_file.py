"""Tools from a user's own Python file: what ``@tool`` made there, or its list ``tools``.

The file is run, as ``python FILE`` would run it; it is the user who names it.
"""

import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from keepwarm import Tool
from sessions.command.settings import OptionError


def tools_of(path: Path) -> list[Tool]:
    """The tools of a file, in its order.

    Raises:
        OptionError: there is no such file, it raises, it has no tool, or two of one name.
    """
    if not path.is_file():
        raise OptionError(f"--tools {path}: no such file")
    module = _run(path)
    listed = getattr(module, "tools", None)
    found = listed if isinstance(listed, list | tuple) else list(vars(module).values())
    tools = list({id(each): each for each in found if isinstance(each, Tool)}.values())
    if not tools:
        raise OptionError(f"--tools {path}: no tool in it; put @tool (keepwarm.tool) on a function")
    names = [tool.name for tool in tools]
    if twice := {name for name in names if names.count(name) > 1}:
        raise OptionError(f"--tools {path}: two tools are called {min(twice)!r}")
    return tools


def _run(path: Path) -> ModuleType:
    spec = spec_from_file_location("keepwarm_users_tools", path)
    if spec is None or spec.loader is None:
        raise OptionError(f"--tools {path}: a Python file is needed, with .py at its end")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and type hints look
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise OptionError(f"--tools {path}{_line(path, error)}: {_said(error)}") from error
    return module


def _line(path: Path, error: Exception) -> str:
    """Where in the file it happened, if it did there."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    numbers = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == str(path)
    ]
    return f", line {numbers[-1]}" if numbers else ""


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
