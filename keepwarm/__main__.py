"""The command ``keepwarm``, also as ``python -m keepwarm``: if what it needs is installed.

Knows that the base install is the client alone; what the commands do stands in
``keepwarm.commands``, which is imported when a command runs and not before.
"""

import sys
from collections.abc import Callable, Sequence

_OURS = {"kernels", "radix_cache", "runtime", "sessions", "tools_api"}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status, 1 in the base install."""
    words = list(sys.argv[1:] if words is None else words)
    extra, load = ("top", _top) if words[:1] == ["top"] else ("server", _commands)
    try:
        return load()(words)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in _OURS:
            raise
        return _missing(error.name, extra)


def _missing(name: str, extra: str) -> int:
    print(
        f"keepwarm: error: this needs more than the base install (no {name}): "
        f"pip install 'keepwarm[{extra}]'",
        file=sys.stderr,
    )
    return 1


def _commands() -> Callable[[Sequence[str]], int]:
    from keepwarm.commands import main as commands

    return commands.main


def _top() -> Callable[[Sequence[str]], int]:
    """Needs no server on this machine, only an extra of its own."""
    from sessions.top import command

    return command.main


if __name__ == "__main__":
    sys.exit(main())
