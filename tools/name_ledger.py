"""The words of the tree: type names, docstrings, parameters, and what tests look at inside.

Printed for each change by CI behind the line ledger, with any Python 3.11 and nothing installed.
What is reached is held by ``tests/unit/repository/test_name_ledger.py``.

A type name is that of a public class at the top of a module; it counts where two modules of a
package have it. A docstring stands first in a module, class or function, or behind the field that
it explains. A parameter is only handed on where its function does nothing with it but pass it, as
it came, to what it calls. A private attribute is one with an underscore that a package defines and
a test reads from outside; what the standard library documents, ``_replace``, is none.
"""

import ast
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.line_ledger import BESIDE, PACKAGES, ROOT, AnyFunction, module_name

DOCUMENTED = frozenset({"_asdict", "_field_defaults", "_fields", "_fields_", "_make", "_replace"})
"""Names with an underscore that the standard library documents for everybody's use, of named tuples
and of ctypes."""
BAD_OPENING = re.compile(r"(What|Of|Who)\b")
Documented = ast.Module | ast.ClassDef | AnyFunction


@dataclass(frozen=True, kw_only=True)
class Docstring:
    text: str
    subject: str
    """The dotted name of what it explains."""
    path: Path
    line: int

    @property
    def opens_badly(self) -> bool:
        """Whether it hides its subject behind "What", "Of" or "Who"."""
        return BAD_OPENING.match(self.text) is not None


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file, read."""

    path: Path
    tree: ast.Module


def read_folder(folder: str) -> list[Source]:
    """Every Python file of ``folder`` and the folders in it."""
    paths = sorted(p for p in (ROOT / folder).rglob("*.py") if "__pycache__" not in p.parts)
    return [_read(path, path.read_text(encoding="utf-8")) for path in paths]


@functools.cache
def _read(path: Path, text: str) -> Source:
    return Source(path=path, tree=ast.parse(text))


def docstrings(source: Source) -> Iterator[Docstring]:
    """Every docstring of a file, those of fields included."""
    name = module_name(source.path) if source.path.is_relative_to(ROOT) else source.path.stem
    yield from _docstrings(source, source.tree, name)


def _docstrings(source: Source, node: Documented, name: str) -> Iterator[Docstring]:
    before: ast.stmt | None = None
    for statement in node.body:
        subject = name if before is None else _field(before)
        match statement:
            case ast.Expr(value=ast.Constant(value=str(text))) if subject is not None:
                inside = subject if before is None else f"{name}.{subject}"
                text = " ".join(text.split())
                line = statement.lineno
                yield Docstring(text=text, subject=inside, path=source.path, line=line)
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _docstrings(source, statement, f"{name}.{statement.name}")
        before = statement


def _field(statement: ast.stmt) -> str | None:
    """The name that an assignment gives, if it is one."""
    match statement:
        case (
            ast.AnnAssign(target=ast.Name(id=name))
            | ast.Assign(targets=[ast.Name(id=name)])
            | ast.AnnAssign(target=ast.Attribute(attr=name))
            | ast.Assign(targets=[ast.Attribute(attr=name)])
        ):
            return name
    return None


def types_twice(sources: Sequence[Source]) -> dict[str, list[str]]:
    """Names of public classes that several modules have, with these modules."""
    modules = defaultdict(list)
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(module_name(source.path))
    return {name: found for name, found in sorted(modules.items()) if len(found) > 1}


def parameters(source: Source) -> tuple[int, int]:
    """How many parameters functions have besides self, and how many are only handed on."""
    every, handed_on = 0, 0
    for node in ast.walk(source.tree):
        if isinstance(node, AnyFunction):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            names = {arg.arg for arg in given} - {"self", "cls"}
            every += len(names)
            uses, handed = _uses(node)
            handed_on += sum(uses[name] == handed[name] > 0 for name in names)
    return every, handed_on


def _uses(function: AnyFunction) -> tuple[Counter[str], Counter[str]]:
    """How often each name stands in a function, and how often as a whole argument of a call."""
    uses: Counter[str] = Counter()
    handed: Counter[str] = Counter()
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            uses[node.id] += 1
        elif isinstance(node, ast.Call):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            handed.update(value.id for value in values if isinstance(value, ast.Name))
    return uses, handed


def private_names(sources: Sequence[Source]) -> set[str]:
    """Attributes and methods with an underscore in front that ``sources`` define."""
    found: set[str] = set()
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, AnyFunction):
                found.add(node.name)
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def private_reads(tests: Sequence[Source], private: set[str]) -> list[tuple[Path, int, str]]:
    """Where ``tests`` reach from outside for one of the names ``private``."""
    return [
        (source.path, node.lineno, node.attr)
        for source in tests
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute)
        and node.attr in private - DOCUMENTED
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]


def opening_share(sources: Sequence[Source]) -> float:
    """The share of docstrings that open with "What", "Of" or "Who"."""
    found = [docstring for source in sources for docstring in docstrings(source)]
    return sum(docstring.opens_badly for docstring in found) / len(found) if found else 0.0


def handed_on_share(sources: Sequence[Source]) -> float:
    """The share of parameters that are only handed on."""
    counts = [parameters(source) for source in sources]
    every = sum(count for count, _ in counts)
    return sum(handed for _, handed in counts) / every if every else 0.0


def main() -> None:
    """Print the words of every package, and of what lies beside."""
    packages = {package: read_folder(package) for package in PACKAGES}
    beside = {folder: read_folder(folder) for folder in BESIDE}
    print(
        f"\n{'words':<12}{'docstrings opening What, Of, Who':>34}{'parameters only handed on':>28}"
    )
    for folder, sources in (packages | beside).items():
        print(f"{folder:<12}{opening_share(sources):>34.1%}{handed_on_share(sources):>28.0%}")
    twice = [
        f"{package}: {name} ({', '.join(modules)})"
        for package, sources in packages.items()
        for name, modules in types_twice(sources).items()
    ]
    print("type names that a package has twice:", *(twice or ["none"]), sep="\n  ")
    every = [source for sources in packages.values() for source in sources]
    reads = private_reads(beside["tests"], private_names(every))
    print(f"private attributes read by tests: {len(reads)}")


if __name__ == "__main__":
    main()
