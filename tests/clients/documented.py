"""The lines of ``docs/clients.md`` that point a client at a server.

Always true: an address in them is ``ADDRESS``, which a test replaces by its own server's.
"""

import re
from dataclasses import dataclass

from tests.support.architecture import ROOT

ADDRESS = "http://127.0.0.1:8080"
_EXAMPLE = re.compile(r"^### (`[^`]+` \(\w+\))\n\n```(python|js)\n(.*?)```", re.M | re.S)


@dataclass(frozen=True, kw_only=True)
class Example:
    name: str
    """A client, as the matrix names it."""
    code: str
    is_for_node: bool

    def at(self, base: str) -> str:
        """The code with ``base`` (without ``/v1``) for the address."""
        assert ADDRESS in self.code
        return self.code.replace(ADDRESS, base)


def examples() -> list[Example]:
    """All of them, in the document's order."""
    return [
        Example(name=name, code=code, is_for_node=language == "js")
        for name, language, code in _EXAMPLE.findall(_text())
    ]


def block_of(section: str, language: str) -> str:
    """The first block of that language in the section of that name."""
    text = next((text for text in _text().split("\n## ") if text.startswith(f"{section}\n")), "")
    found = re.search(rf"^```{language}\n(.*?)```", text, re.M | re.S)
    assert found, f"no {language} in {section}"
    return found[1]


def _text() -> str:
    return (ROOT / "docs/clients.md").read_text(encoding="utf-8")
