"""``docs/modules.md``, made from the docstrings of the packages: a table of modules per folder.

``python -m tools.modules_table`` writes it anew; with ``--check`` it only says, by its exit code,
whether the document is as it would be written. A test holds the document to it.

A row is the first paragraph of the module's docstring, the text above a table that of the
folder's ``__init__``. The order of ``FOLDERS`` is the order in which imports may run.
"""

import ast
import functools
import sys
from pathlib import Path
from typing import Final

from tools.line_ledger import ROOT

DOCUMENT: Final = ROOT / "docs" / "modules.md"
FOLDERS: Final = (
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
    "sessions.command",
    "cluster",
    "keepwarm.scripted",
    "keepwarm",
    "keepwarm.top",
    "keepwarm.demo",
    "keepwarm.commands",
)
"""Every folder with modules, lower ones first: imports go from later folders to earlier ones."""
_HEAD = """# Modules

<!-- Made by `python -m tools.modules_table` from the modules' docstrings: change those. -->

The packages folder by folder, lower ones first: inside a package imports go from later folders to
earlier ones, inside a folder they run in no circle. A module that imports torch is marked.
[The map](architecture.md) says how they work together.
"""


def document() -> str:
    """The whole document, as the docstrings say it now."""
    return _HEAD + "".join(map(_section, FOLDERS))


@functools.cache
def first_paragraph(source: str) -> str:
    """The first paragraph of a module's docstring, on one line, as Markdown writes code."""
    text = ast.get_docstring(ast.parse(source)) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "`")


@functools.cache
def imports_torch(source: str) -> bool:
    """Whether torch is imported anywhere in ``source``."""
    imports = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom))
    return any(
        name.split(".")[0] == "torch"
        for node in imports
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    )


def _section(folder: str) -> str:
    path = ROOT / folder.replace(".", "/")
    modules = sorted(file for file in path.glob("*.py") if file.name != "__init__.py")
    rows = "".join(map(_row, modules))
    opening = first_paragraph((path / "__init__.py").read_text(encoding="utf-8"))
    head = "| module | what it is | |\n| --- | --- | --- |\n"
    return f"\n## `{path.relative_to(ROOT).as_posix()}/`\n{opening}\n\n{head}{rows}"


def _row(path: Path) -> str:
    source = path.read_text(encoding="utf-8")
    mark = "torch" if imports_torch(source) else ""
    return f"| `{path.stem}` | {first_paragraph(source)} | {mark} |\n"


def main(arguments: list[str]) -> int:
    """Write the document, or say by 1 that it is not as it would be written."""
    if arguments == ["--check"]:
        return int(DOCUMENT.read_text(encoding="utf-8") != document())
    if arguments:
        print("usage: python -m tools.modules_table [--check]", file=sys.stderr)
        return 2
    DOCUMENT.write_text(document(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
