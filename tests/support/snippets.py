"""Programs in the documents that use our client, each as a file that a type checker reads."""

import re
from pathlib import Path

from tests.support.architecture import ROOT

DOCUMENTS = ("README.md", "docs/sdk.md", "docs/protocol.md", "docs/clients.md", "docs/cluster.md")
GIVEN = {"tools": "tools: list[Tool] = []", "url": 'url: str = ""'}
"""Names that a program takes from the one before it, declared."""
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def programs() -> dict[str, str]:
    """Name of a file -> a program that imports ``keepwarm``."""
    found: dict[str, str] = {}
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        for number, program in enumerate(_BLOCK.findall(text), start=1):
            if re.search(r"^from keepwarm", program, re.MULTILINE):
                found[f"{Path(document).stem}_{number}.py".lower()] = _whole(program)
    return found


def _whole(program: str) -> str:
    missing = [
        declared
        for name, declared in GIVEN.items()
        if re.search(rf"={name}\b", program) and not re.search(rf"\b{name} = ", program)
    ]
    before = ["from keepwarm import Tool", *missing] if missing else []
    return "\n".join([*before, program])


def written(folder: Path) -> list[Path]:
    """All of them as files in ``folder``."""
    for name, program in programs().items():
        (folder / name).write_text(program, encoding="utf-8")
    return sorted(folder.glob("*.py"))
