"""The command ``keepwarm``, also as ``python -m keepwarm``: the server if it is installed.

Knows that the base install is the client alone; what the command does stands in
``sessions.command.cli``, which is imported when the command runs and not before.
"""

import sys
from collections.abc import Callable, Sequence

_OURS = {"kernels", "radix_cache", "runtime", "sessions", "tools_api"}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status, 1 in the base install."""
    words = list(sys.argv[1:] if words is None else words)
    extra, load = ("top", _top) if words[:1] == ["top"] else ("server", _server)
    try:
        run = load()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in _OURS:
            raise
        return _missing(error.name, extra)
    return run(words)


def _missing(name: str, extra: str) -> int:
    print(
        f"keepwarm: error: this needs more than the base install (no {name}): "
        f"pip install 'keepwarm[{extra}]'",
        file=sys.stderr,
    )
    return 1


def _server() -> Callable[[Sequence[str]], int]:
    from sessions.command import cli

    return cli.main


def _top() -> Callable[[Sequence[str]], int]:
    """Needs no server on this machine, only an extra of its own."""
    from sessions.top import command

    return command.main


if __name__ == "__main__":
    sys.exit(main())
