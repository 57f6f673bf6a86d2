"""The command ``keepwarm``, also as ``python -m keepwarm``: if what it needs is installed.

Knows that the base install is the client alone, and what is said there; what the commands do
stands in ``keepwarm.commands``, which is imported when a command runs and not before.
"""

import sys
from collections.abc import Callable, Sequence

from keepwarm.commands.listed import COMMANDS
from tools_api.version import __version__

_OURS = {"cluster", "kernels", "radix_cache", "runtime", "sessions", "tools_api"}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    typed, words = words is None, list(sys.argv[1:] if words is None else words)
    extra, load = ("top", _top) if words[:1] == ["top"] else ("server", _commands)
    try:
        if typed and words[:1] == ["serve"]:
            _begin_server()
        return load()(words)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in _OURS:
            raise
        return _base(words, error.name, extra)


def _base(words: Sequence[str], missing: str, extra: str) -> int:
    """Answer as the base install can; returns the exit status."""
    if words[:1] in (["-V"], ["--version"]):
        print(f"keepwarm {__version__}")
        return 0
    advice = f"pip install 'keepwarm[{extra}]'"
    if words[:1] in ([], ["-h"], ["--help"]):
        print(f"keepwarm {__version__}: the client alone (from keepwarm import Client).\n")
        print(f"These commands need more: {advice}")
        print("\n".join(f"  {name:10}{what}" for name, what in COMMANDS.items()))
        return 0 if words else 2
    print(
        f"keepwarm: error: '{words[0]}' needs more than the base install, which is the client "
        f"alone (no {missing}): {advice}",
        file=sys.stderr,
    )
    return 1


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
