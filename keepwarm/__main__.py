"""The command ``keepwarm``, also as ``python -m keepwarm``: if what it needs is installed.

Knows that the base install is the client alone, which extra each command needs beside it, and what
is said where that is not there; what the commands do stands in ``keepwarm.commands``, which is
imported when a command runs and not before.
"""

import sys
from collections.abc import Callable, Sequence

from keepwarm.commands.listed import COMMANDS
from tools_api.version import __version__

_EXTRAS = {"top": "cli", "chat": "cli", "keys": "cli", "config": "cli"}
"""The extra that a command needs where it is not ``server``."""
_OF_JOURNALS = ("numpy", "xxhash")
"""Packages with which a journal is read, beside those of the extra ``cli``."""
_INTERRUPTED = 130
_OURS = {"cluster", "kernels", "radix_cache", "runtime", "sessions", "tools_api"}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    typed, words = words is None, list(sys.argv[1:] if words is None else words)
    load = _top if words[:1] == ["top"] else _commands
    try:
        if typed and words[:1] == ["serve"]:
            _begin_server()
        return load()(words)
    except KeyboardInterrupt:  # while the command's modules are loaded
        return _INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in _OURS:
            raise
        return _base(words, error.name.split(".")[0])


def _base(words: Sequence[str], missing: str) -> int:
    """Answer as an install can that lacks something; returns the exit status."""
    if words[:1] in (["-V"], ["--version"]):
        print(f"keepwarm {__version__}")
        return 0
    if words[:1] in ([], ["-h"], ["--help"]):
        print(f"keepwarm {__version__}: the client alone (from keepwarm import Client).\n")
        for extra in ("cli", "server"):
            print(f"These commands need more: {_advice(extra)}")
            for name, what in COMMANDS.items():
                if _EXTRAS.get(name, "server") == extra:
                    print(f"  {name:10}{what}")
        return 0 if words else 2
    print(f"keepwarm: error: {_lacks(words[0], missing)}", file=sys.stderr)
    return 1


def _lacks(command: str, missing: str) -> str:
    if command == "sessions" and missing in _OF_JOURNALS:
        wanted = " and ".join(_OF_JOURNALS)
        return (
            f"'sessions' reads a journal with {wanted} (no {missing}): pip install "
            f"{' '.join(_OF_JOURNALS)}"
        )
    return (
        f"'{command}' needs more than is installed (no {missing}): "
        f"{_advice(_EXTRAS.get(command, 'server'))}"
    )


def _advice(extra: str) -> str:
    return f"pip install 'keepwarm[{extra}]'"


def _begin_server() -> None:
    from sessions.command.begin_again import begin

    begin()


def _commands() -> Callable[[Sequence[str]], int]:
    from keepwarm.commands import main as commands

    return commands.main


def _top() -> Callable[[Sequence[str]], int]:
    """Needs no server on this machine, only an extra of its own."""
    from keepwarm.top import command

    return command.main


if __name__ == "__main__":
    sys.exit(main())
