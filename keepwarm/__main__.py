"""The command ``keepwarm``, also as ``python -m keepwarm``: if what it needs is installed.

Knows that the base install is the client alone; what the commands do stands in
``keepwarm.commands``, which is imported when a command runs and not before.
"""

import sys
from collections.abc import Callable, Sequence

_OURS = {"kernels", "radix_cache", "runtime", "sessions", "tools_api"}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status, 1 in the base install."""
    typed, words = words is None, list(sys.argv[1:] if words is None else words)
    extra, load = ("top", _top) if words[:1] == ["top"] else ("server", _commands)
    try:
        if typed and words[:1] == ["serve"]:
            _begin_in_large_pages()
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


def _begin_in_large_pages() -> None:
    from sessions.command.begin_again import begin_in_large_pages

    begin_in_large_pages()


def _commands() -> Callable[[Sequence[str]], int]:
    from keepwarm.commands import main as commands

    return commands.main


def _top() -> Callable[[Sequence[str]], int]:
    """Needs no server on this machine, only an extra of its own."""
    from sessions.top import command

    return command.main


if __name__ == "__main__":
    sys.exit(main())
