"""The table of limits in ``docs/security.md``, made from ``tools_api/limits.py``.

``python -m tools.limits_table`` writes it anew; a test holds the document to it.
"""

import ast
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Final

from tools_api.limits import DEFAULT_LIMITS, MIB, Limits

ROOT: Final = Path(__file__).parents[1]
DOCUMENT: Final = ROOT / "docs" / "security.md"
_SOURCE = ROOT / "tools_api" / "limits.py"
_BEGIN, _END = "<!-- limits -->", "<!-- end of limits -->"


def descriptions() -> dict[str, str]:
    """The description of each limit, by its name; empty where its name says it all."""
    (body,) = (
        node.body for node in ast.parse(_SOURCE.read_text()).body if isinstance(node, ast.ClassDef)
    )
    told = {field.name: "" for field in fields(Limits)}
    for before, node in pairwise(body):
        if not (isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            told[before.target.id] = " ".join(str(node.value.value).split()).replace("``", "`")
    return told


def table() -> str:
    """The rows, a limit each, in the order of the source."""
    told = descriptions()
    rows = ["| limit | value | what it bounds |", "| --- | --: | --- |"]
    for field in fields(Limits):
        value = _shown(field.name, getattr(DEFAULT_LIMITS, field.name))
        rows.append(f"| `{field.name}` | {value} | {told[field.name]} |")
    return "\n".join(rows)


def _shown(name: str, value: object) -> str:
    if isinstance(value, int) and "bytes" in name and value >= MIB and value % MIB == 0:
        return f"{value // MIB} MiB"
    if isinstance(value, float) and name.endswith("_s"):
        return f"{value:g} s"
    return f"{value:,}" if isinstance(value, int) else f"{value}"


def with_table(text: str) -> str:
    """The document with the table as it should be."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{after}"


def main() -> int:
    """Write the table into the document."""
    DOCUMENT.write_text(with_table(DOCUMENT.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
