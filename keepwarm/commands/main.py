"""The command ``keepwarm``: which commands there are, and how their failures are told.

A command's module is loaded when it is asked for, so that none waits for what another needs.

Always true: a failure that a person can mend is one line on standard error, and the exit
status is 2 where what was typed is at fault and 1 where it is not.
"""

import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from typing import cast

import click

from keepwarm.commands import listed
from keepwarm.commands.parameters import HELP_OPTIONS
from sessions.command.settings import OptionError
from tools_api.version import __version__

COMMANDS = listed.COMMANDS
"""Each command with what it does, in a line; ``keepwarm.commands.NAME`` holds it."""
INTERRUPTED = 130
_TOP = click.Command("top", help=COMMANDS["top"])
"""Has an extra and a parser of its own, so keepwarm.__main__ runs it; here it is listed."""


class Commands(click.Group):
    """Commands that are loaded when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, in the order in which the help lists them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name == "top":
            return _TOP
        module = import_module(f"keepwarm.commands.{cmd_name}")
        return cast(click.Command, module.COMMAND)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List them without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def main(words: Sequence[str] | None = None) -> int:
    """Run what was typed; returns the exit status."""
    _print_whatever_is_said()
    try:
        status = _group().main(
            None if words is None else list(words), prog_name="keepwarm", standalone_mode=False
        )
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.UsageError as error:
        path = _typed(words) if error.ctx is None else error.ctx.command_path
        message = " ".join(error.format_message().split()).rstrip(".") + _meant(error)
        end = "" if message.endswith("?") else "."
        _complain(f"{message}{end} See '{path} --help'.")
        return 2
    except click.ClickException as error:
        _complain(error.format_message())
        return 1
    except click.Abort:
        return INTERRUPTED
    except OptionError as error:
        _complain(str(error))
        return 2
    except UnicodeEncodeError as error:  # bytes that were typed, or stand in the environment
        _complain(f"{error.object[:200]!a} is not text in UTF-8")
        return 2
    except OSError as error:  # a full disk, a file that somebody took away
        where = f": {error.filename}" if error.filename else ""
        _complain(f"{error.strerror or error}{where}")
        return 1
    return int(status or 0)


def _print_whatever_is_said() -> None:
    """Names are clients' words: a terminal without the letters of one is shown their numbers."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _typed(words: Sequence[str] | None) -> str:
    """The command that was typed, with its group: an option that lacks its value does not say."""
    command: click.Command = _group()
    path = "keepwarm"
    for word in sys.argv[1:] if words is None else words:
        if not isinstance(command, click.Group):
            break
        found = command.get_command(click.Context(command), word)
        if found is None:
            break
        command, path = found, f"{path} {word}"
    return path


def _meant(error: click.UsageError) -> str:
    """The command like the one that was typed, where there is none of that name and nothing else
    says so."""
    found = re.fullmatch(r"No such command '(.*)'\.?", error.format_message())
    if found is None or error.ctx is None or not isinstance(error.ctx.command, click.Group):
        return ""
    known = error.ctx.command.list_commands(error.ctx)
    alike = get_close_matches(found[1], known, n=1)
    return f". Did you mean {alike[0]!r}?" if alike else ""


def _group() -> click.Group:
    return Commands(
        "keepwarm",
        help="Inference runtime that keeps agents' sessions warm.",
        params=[_version_option()],
        no_args_is_help=True,
        context_settings={"help_option_names": HELP_OPTIONS},
    )


def _version_option() -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
        if asked:
            click.echo(f"keepwarm {__version__}")
            ctx.exit()

    return click.Option(
        ["-V", "--version"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=show,
        help="Show the version.",
    )


def _complain(message: str) -> None:
    click.echo(f"keepwarm: error: {message}", err=True)
