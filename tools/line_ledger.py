"""Measures of the tree: lines, functions, docstrings, constructors, and how imports run.

Printed for each change by CI, with any Python 3.11 and nothing installed. A size is a question
("is this two things?"), not a verdict: nothing fails here. What is reached is held by
``tests/unit/repository/test_line_ledger.py``.

A function's body is its lines without decorators, signature and docstring. Public is what has
no underscore in front, at the top of a module or in a public class. Imports are those made when
a module is loaded.
"""

import ast
import functools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kernels", "radix_cache", "tools_api", "runtime", "sessions", "cluster", "keepwarm")
BESIDE = ("examples", "benchmarks", "tools", "tests")
MAX_PARAMETERS = 8
"""The bound for a constructor written by hand, besides self; those with more are listed."""

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef
Graph = Mapping[str, Set[str]]
"""For every module, the modules of its package that it imports."""


@dataclass(frozen=True, kw_only=True)
class Function:
    name: str
    lines: int
    """Decorators apart."""
    body: int


@dataclass(frozen=True, kw_only=True)
class Module:
    """One file, measured."""

    path: Path
    lines: int
    functions: tuple[Function, ...]
    public: int
    documented: int
    """How many of ``public`` have a docstring."""
    constructors: dict[str, int]
    """Parameters besides self of every ``__init__``, by class."""
    imports: frozenset[str]
    """Dotted names; for ``from a import b`` both ``a`` and ``a.b``."""


@functools.cache
def measure(path: Path, source: str) -> Module:
    """The measures of one file."""
    tree = ast.parse(source)
    public = list(_public(tree.body))
    return Module(
        path=path,
        lines=len(source.splitlines()),
        functions=tuple(_function(node) for node in _functions(tree)),
        public=len(public),
        documented=sum(ast.get_docstring(node) is not None for node in public),
        constructors={
            node.name: _parameters(init)
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for init in node.body
            if isinstance(init, AnyFunction) and init.name == "__init__"
        },
        imports=frozenset(_imports(tree)),
    )


def measure_folder(folder: str) -> list[Module]:
    """Every Python file of ``folder`` and the folders in it."""
    paths = sorted(p for p in (ROOT / folder).rglob("*.py") if "__pycache__" not in p.parts)
    return [measure(path, path.read_text(encoding="utf-8")) for path in paths]


def _functions(tree: ast.AST) -> Iterator[AnyFunction]:
    return (node for node in ast.walk(tree) if isinstance(node, AnyFunction))


def _function(node: AnyFunction) -> Function:
    end = node.end_lineno or node.lineno
    first = node.body[0]
    start = min(n.lineno for n in (first, *getattr(first, "decorator_list", ())))
    if ast.get_docstring(node) is not None:
        start = (first.end_lineno or first.lineno) + 1
    return Function(name=node.name, lines=end - node.lineno + 1, body=end - start + 1)


def _public(body: Sequence[ast.stmt]) -> Iterator[AnyFunction | ast.ClassDef]:
    for node in body:
        if isinstance(node, AnyFunction | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body)


def _parameters(init: AnyFunction) -> int:
    given = init.args
    return len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - 1


def _imports(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif not isinstance(child, AnyFunction):
            yield from _imports(child)


def bodies(modules: Sequence[Module]) -> list[int]:
    return [function.body for module in modules for function in module.functions]


def percentile_95(values: Sequence[int]) -> int:
    """The smallest value that 95 % of ``values`` do not exceed; 0 of none."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1] if values else 0


def median(values: Sequence[int]) -> float:
    return statistics.median(values) if values else 0


def longest_function(modules: Sequence[Module]) -> Function:
    functions = [function for module in modules for function in module.functions]
    nothing = Function(name="", lines=0, body=0)
    return max(functions, key=lambda function: function.lines, default=nothing)


def documented(modules: Sequence[Module]) -> float:
    """The share of public functions, methods and classes that have a docstring."""
    public = sum(module.public for module in modules)
    return sum(module.documented for module in modules) / public if public else 1.0


def wide_constructors(modules: Sequence[Module]) -> dict[str, int]:
    """Constructors with more than ``MAX_PARAMETERS`` besides self, by module and class."""
    return {
        f"{module_name(module.path)}.{name}": parameters
        for module in modules
        for name, parameters in module.constructors.items()
        if parameters > MAX_PARAMETERS
    }


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def import_graph(modules: Sequence[Module]) -> Graph:
    """How the modules of one package import one another; ``__init__`` is none of them."""
    names = {
        module_name(module.path): module for module in modules if module.path.name != "__init__.py"
    }
    return {name: module.imports & names.keys() - {name} for name, module in names.items()}


def in_cycles(graph: Graph) -> set[str]:
    """The modules that import themselves by way of others."""
    return {name for name in graph if name in _reached(graph, name)}


def _reached(graph: Graph, start: str) -> set[str]:
    reached: set[str] = set()
    open_names = [start]
    while open_names:
        new = graph[open_names.pop()] - reached
        reached |= new
        open_names += new
    return reached


def folders(graph: Graph) -> list[str]:
    return sorted({name.rpartition(".")[0] for name in graph})


def longest_chain(graph: Graph, folder: str) -> list[str]:
    """The most modules of ``folder`` of which each imports the next; those in cycles apart."""
    inside = {name for name in graph if name.rpartition(".")[0] == folder} - in_cycles(graph)
    chains: dict[str, list[str]] = {}

    def chain(name: str) -> list[str]:
        if name not in chains:
            below = [chain(other) for other in sorted(graph[name] & inside)]
            chains[name] = [name, *max(below, key=len, default=[])]
        return chains[name]

    return max(map(chain, sorted(inside)), key=len, default=[])


def _row(name: str, modules: Sequence[Module], *, with_docstrings: bool = True) -> str:
    longest_file = max(modules, key=lambda module: module.lines)
    function = longest_function(modules)
    share = f"{documented(modules):.0%}" if with_docstrings else ""
    file_text = f"{longest_file.path.name} {longest_file.lines}"
    return (
        f"{name:<12}{len(modules):>6}{sum(module.lines for module in modules):>8}"
        f"{median(bodies(modules)):>8g}{percentile_95(bodies(modules)):>5}{share:>12}"
        f"  {file_text:<28}{function.name} {function.lines}"
    )


def main() -> None:
    packages = {package: measure_folder(package) for package in PACKAGES}
    everything = [module for modules in packages.values() for module in modules]
    print(
        f"{'package':<12}{'files':>6}{'lines':>8}{'median':>8}{'p95':>5}{'documented':>12}"
        f"  {'largest file':<28}longest function"
    )
    for package, modules in packages.items():
        print(_row(package, modules))
    print(_row("together", everything))
    for folder in BESIDE:
        print(_row(folder, measure_folder(folder), with_docstrings=False))
    print(f"\n{'folder':<20}{'longest chain of imports':>25}")
    cycles: set[str] = set()
    for modules in packages.values():
        graph = import_graph(modules)
        cycles |= in_cycles(graph)
        for folder in folders(graph):
            chain = longest_chain(graph, folder)
            print(f"{folder:<20}{len(chain):>4}  {' > '.join(n.split('.')[-1] for n in chain)}")
    wide = [f"{name} {count}" for name, count in wide_constructors(everything).items()]
    print(f"\nmodules in import cycles: {', '.join(sorted(cycles)) or 'none'}")
    print(f"constructors of more than {MAX_PARAMETERS}: {', '.join(wide) or 'none'}")


if __name__ == "__main__":
    main()
