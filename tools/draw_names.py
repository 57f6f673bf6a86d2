"""Forty public names and forty docstrings, drawn at random, for somebody who does not know them.

``python -m tools.draw_names --seed 1`` prints the names without their text and the texts without
their names: whoever reads says of each what it is. ``--answers`` prints what they belong to.
"""

import argparse
import ast
import random
from collections.abc import Iterator, Sequence

from tools.line_ledger import PACKAGES, AnyFunction, module_name
from tools.name_ledger import Docstring, Source, docstrings, read_folder

DRAWN = 40


def public_names(source: Source) -> Iterator[str]:
    """Dotted names of the public classes, functions and methods of a file."""
    yield from _public(source.tree.body, module_name(source.path))


def _public(body: Sequence[ast.stmt], inside: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef | AnyFunction) and not node.name.startswith("_"):
            yield f"{inside}.{node.name}"
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body, f"{inside}.{node.name}")


def draw(sources: Sequence[Source], seed: int) -> tuple[list[str], list[Docstring]]:
    """The names and the docstrings that belong to ``seed``."""
    chance = random.Random(seed)
    names = [name for source in sources for name in public_names(source)]
    texts = [text for source in sources for text in docstrings(source)]
    return chance.sample(names, DRAWN), chance.sample(texts, DRAWN)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both lists."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--answers", action="store_true", help="what they belong to as well")
    given = parser.parse_args(arguments)
    sources = [source for package in PACKAGES for source in read_folder(package)]
    names, texts = draw(sources, given.seed)
    print(f"Names, seed {given.seed}")
    for number, name in enumerate(names, 1):
        print(f"{number:>3}  {name if given.answers else name.rpartition('.')[2]}")
    print(f"\nTexts, seed {given.seed}")
    for number, text in enumerate(texts, 1):
        answer = f"  [{text.subject}]" if given.answers else ""
        print(f"{number:>3}  {text.text}{answer}")


if __name__ == "__main__":
    main()
