"""How the server's own process begins: with its heap in large pages, and cheap imports.

The C library reads how it is to allocate before a program's first line, so a process that was
started without large pages cannot have them later and is begun anew. Then come the imports.
"""

import os
import sys
from collections.abc import Callable, Mapping

from runtime.heap_pages import with_large_pages
from runtime.importing import imports_are_over, imports_begin

Begin = Callable[[str, list[str], dict[str, str]], object]


def begin() -> None:
    """Begin in large pages; from then on nothing is collected until it ``has_begun``."""
    begin_in_large_pages()
    imports_begin()


def has_begun() -> None:
    """Whether all that a server is made of is imported."""
    imports_are_over()


def begin_in_large_pages(
    environment: Mapping[str, str] = os.environ, begin: Begin = os.execve
) -> None:
    """Begin this process's program again with its heap in large pages. Returns where it has them,
    where there are none and where it cannot be begun again.

    The process keeps its number, its open files and its words.
    """
    wanted = with_large_pages(environment)
    if wanted == environment or not sys.executable or not sys.orig_argv:
        return
    try:
        begin(sys.executable, [sys.executable, *sys.orig_argv[1:]], wanted)
    except OSError:
        return
