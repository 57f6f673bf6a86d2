"""The packages as the tree holds them: dotted names of modules, and what they import.

``__init__`` is not a module. The order of the folders is that of ``tools.modules_table``.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kernels", "radix_cache", "tools_api", "runtime", "sessions", "cluster", "keepwarm")


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
