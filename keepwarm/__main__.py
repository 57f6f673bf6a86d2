"""The command ``keepwarm``, also as ``python -m keepwarm``: the server if it is installed.

Knows that the base install is the client alone; what the command does stands in
``sessions.command.cli``, which is imported when the command runs and not before.
"""

import sys
from collections.abc import Sequence

_OURS = {"kernels", "radix_cache", "runtime", "sessions", "tools_api"}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status, 1 in the base install."""
    words = sys.argv[1:] if words is None else words
    if words and words[0] == "top":
        return _top(words[1:])
    try:
        from sessions.command import cli
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in _OURS:
            raise
        print(
            f"keepwarm: error: serving needs more than the base install (no {error.name}): "
            "pip install 'keepwarm[server]'",
            file=sys.stderr,
        )
        return 1
    return cli.main(words)


def _top(words: Sequence[str]) -> int:
    """Needs no server here, only an extra of its own."""
    try:
        from sessions.top import command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in _OURS:
            raise
        print(
            f"keepwarm: error: top needs more than the base install (no {error.name}): "
            "pip install 'keepwarm[top]'",
            file=sys.stderr,
        )
        return 1
    return command.main(words)


if __name__ == "__main__":
    sys.exit(main())
