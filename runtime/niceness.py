"""How far a child process stands behind its parent where cores are few.

Decodes come first: what reads a long request or tries a grammar has the cores that they leave, and
a share of the others. See ``setpriority(2)``.
"""

import contextlib
import os


def stand_behind(process_id: int, steps: int) -> None:
    """Make a process ``steps`` nicer than this one, at most as nice as there is; one that has ended
    is left alone."""
    with contextlib.suppress(OSError):
        nicest = os.getpriority(os.PRIO_PROCESS, 0) + steps
        os.setpriority(os.PRIO_PROCESS, process_id, nicest)  # the kernel bounds it
