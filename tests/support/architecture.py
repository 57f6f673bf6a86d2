"""The packages as the document describes them and as the tree holds them.

``docs/architecture.md`` has one section per folder (``### name/`` or ``### name/folder/``) with a
table of its modules, by the alphabet. Both readings give dotted module names; ``__init__`` is
not a module.
"""

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kernels", "radix_cache", "tools_api", "runtime", "sessions", "keepwarm")
FOLDERS = (
    "kernels",
    "radix_cache",
    "tools_api",
    "tools_api.dialects",
    "tools_api.sdk",
    "runtime",
    "runtime.chat_judge",
    "runtime.grammar",
    "runtime.model",
    "runtime.scheduling",
    "runtime.offload",
    "runtime.drafting",
    "runtime.engine",
    "runtime.process",
    "sessions",
    "sessions.http",
    "sessions.durable",
    "sessions.journal",
    "sessions.turns",
    "sessions.pages",
    "sessions.wire",
    "sessions.top",
    "sessions.command",
    "keepwarm",
    "keepwarm.demo",
    "keepwarm.commands",
)
"""Every folder with modules, lower ones first: imports go from later folders to earlier ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedModule:
    name: str
    uses_torch: bool


def documented_modules(text: str) -> list[DocumentedModule]:
    """The rows of the module tables in ``text``, in order."""
    modules: list[DocumentedModule] = []
    package = ""
    for line in text.splitlines():
        if heading := re.match(r"#+ `?(\w+(?:/\w+)*)/", line):
            package = heading[1].replace("/", ".")
        elif line.startswith("#"):
            package = ""
        elif package and (row := re.match(r"\| `(\w+)` \|.*\|$", line)):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            modules.append(
                DocumentedModule(name=f"{package}.{row[1]}", uses_torch="torch" in cells[2:])
            )
    return modules


def document() -> list[DocumentedModule]:
    return documented_modules((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))


def source_files(package: str) -> list[Path]:
    """Every Python file of ``package``, ``__init__`` included."""
    return sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def folder_of(module: str) -> str:
    """The folder that holds a module, dotted."""
    return module.rpartition(".")[0]


def modules_in_tree() -> dict[str, Path]:
    """Dotted name -> file of every module of the packages."""
    return {
        module_name(path): path
        for package in PACKAGES
        for path in source_files(package)
        if path.name != "__init__.py"
    }


@functools.cache
def imported_modules(source: str) -> frozenset[str]:
    """Dotted names that ``source`` imports anywhere, also inside functions."""
    return frozenset(_imports(ast.walk(ast.parse(source))))


@functools.cache
def imported_at_load(source: str) -> frozenset[str]:
    """Dotted names imported when the module itself is imported."""
    return frozenset(_imports(_outside_functions(ast.parse(source))))


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _outside_functions(child)


def _imports(nodes: Iterator[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
