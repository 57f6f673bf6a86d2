"""The command's process begun anew with its heap in large pages.

The C library reads how it is to allocate before a program's first line, so a process that was
started without cannot have them later.
"""

import os
import sys
from collections.abc import Callable, Mapping

from runtime.heap_pages import with_large_pages

Begin = Callable[[str, list[str], dict[str, str]], object]


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
