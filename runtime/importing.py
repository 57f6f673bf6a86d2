"""Imports without the collector of cyclic garbage, and the start of a child process with them.

Importing torch or pydantic makes a million objects that stay, and no garbage to speak of; the
collector looks at them again and again meanwhile. So it rests until the imports are over, and
what they left is set aside for good (``gc.freeze``). Imports nothing that is not there at once.

``python -m runtime.importing MODULE ARGUMENT...`` is ``python -m MODULE ARGUMENT...`` like that:
the module has a ``main`` that takes its arguments from ``sys.argv`` and returns the exit status
(None: 0). A child outlives a hangup from its first line on: whoever sends one to all processes of a
service means the server.
"""

import contextlib
import gc
import importlib
import signal
import sys
from collections.abc import Iterator


def imports_begin() -> None:
    """Collect no garbage from now on."""
    gc.disable()


def imports_are_over() -> None:
    """From now on garbage is collected again, and never again is looked at what is there now.

    Nothing happens where no imports had begun.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A block for imports in which nothing is collected, however it ends."""
    imports_begin()
    try:
        yield
    finally:
        imports_are_over()


def child_words(module: str) -> list[str]:
    """The beginning of a command that runs a module of ours; its arguments follow."""
    return [sys.executable, "-m", "runtime.importing", module]


def main() -> int:
    """Entry point: the first argument names the module, the others are its own."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    del sys.argv[0]
    with importing():
        module = importlib.import_module(sys.argv[0])
    return module.main() or 0


if __name__ == "__main__":
    sys.exit(main())
