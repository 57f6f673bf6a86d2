"""``keepwarm chat``: a session of a server, in the terminal, with one's own tools.

The session has a name under which the server keeps it, so that it can be gone on with later and
from elsewhere. Ctrl-C ends the turn, or at the prompt the conversation; Ctrl-D ends it too.
"""

import contextlib
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from keepwarm import (
    ApiError,
    Client,
    ConnectionLost,
    FunctionCall,
    GenerationOptions,
    Response,
    Session,
    TooManyTurns,
    TurnFailed,
)
from keepwarm.commands.chat_settings import CHAT_SETTINGS
from keepwarm.commands.parameters import Given, settings_command
from keepwarm.commands.registry import base_url, key_of, values_of, warn_of_strays
from keepwarm.commands.screen import Screen, printable
from keepwarm.commands.tools_file import tools_of
from sessions.command.settings import OptionError, Values
from tools_api.home_folder import home_folder

HELP = """Talk to a session of a server in the terminal.

With --tools FILE the model calls what @tool made in that Python file. --resume goes on with the
last conversation, or with the session of that name. Ctrl-C ends a turn, Ctrl-D the conversation;
/usage shows what it took, /help what else can be typed."""
PROMPT = "> "
LAST = "last"
_MOST_NAME_BYTES = 4096
COMMANDS = {
    "/help": "what can be typed here",
    "/usage": "what the conversation took: turns, tokens, what the cache saved, cost",
    "/quit": "the end, as Ctrl-D and /exit",
}
_ENDS = ("/quit", "/exit")
_COMMAND = re.compile(r"/[A-Za-z][\w-]*")
"""Alone, or as the first word of a line; a path has more slashes."""
_FAILURES = (ApiError, ConnectionLost, TurnFailed, TooManyTurns)


class Conversation:
    """The conversation in one session."""

    def __init__(
        self, session: Session, screen: Screen, options: GenerationOptions, *, resumed: bool
    ) -> None:
        """``resumed``: the server should know the session; that it does not is told."""
        self._session = session
        self._screen = screen
        self._options = options
        self._expected = resumed

    def take(self, lines: Iterator[str]) -> int:
        """Answer each line; returns 1 if the last one could not be, else 0."""
        status = 0
        for text in lines:
            command = command_of(text)
            if command in _ENDS:
                break
            if command is not None:
                status = self._obey(command)
            elif text.strip():
                status = self._answer(text[1:] if text.startswith("//") else text)
        if self._session.stats.turns:
            self._screen.whole(f"go on with: keepwarm chat --resume {self._session.name}", dim=True)
        return status

    def _obey(self, command: str) -> int:
        if command == "/usage":
            self._screen.whole(usage(self._session))
        elif command == "/help":
            for name, what in COMMANDS.items():
                self._screen.whole(f"{name:8}{what}")
            self._screen.whole("All else goes to the model; //WORD does so as /WORD.")
        else:
            self._screen.whole(
                f"error: there is no command {command}, /help lists those that are; to say it to "
                f"the model, type /{command}",
                fg="red",
            )
            return 1
        return 0

    def _answer(self, text: str) -> int:
        try:
            with contextlib.closing(self._session.stream(text, **self._options)) as events:
                for event in events:
                    self._screen.show(event)
                    if isinstance(event, Response):
                        self._look_at(event)
        except KeyboardInterrupt:
            self._screen.whole("note: the turn was cancelled")
        except _FAILURES as error:
            self._screen.whole(f"error: {error}", fg="red")
            return 1
        return 0

    def _look_at(self, response: Response) -> None:
        if self._expected and response.keepwarm.get("turn") == 1:
            self._screen.whole("note: the server did not know this session; it begins here")
        self._expected = False
        if response.status == "incomplete" and not response.cancelled:
            self._screen.whole(f"note: cut short ({response.incomplete_reason})", fg="yellow")


def run(given: Given) -> int:
    """Talk until the input ends; returns the exit status."""
    warn_of_strays()
    values = values_of("chat", given)
    resume, state = given.arguments["resume"], _state_file(os.environ)
    name = session_name(values, resume, state)
    tools = [] if values["tools"] is None else tools_of(values["tools"], values.label("tools"))
    defaults: Any = {key: values[key] for key in ("instructions", "model") if values[key]}
    url, key = base_url(values), key_of(values)
    with Client(url, api_key=key, sockets="session") as client:
        session = client.session(name=name, approve=_approve, tools=tools, **defaults)
        _remember(state, name)
        talk = Conversation(session, Screen.here(), _options(values), resumed=resume is not None)
        return talk.take(_lines())


def command_of(line: str) -> str | None:
    """The command that a line is, known or not; None: it is for the model."""
    first = next(iter(line.split()), "")
    return first if _COMMAND.fullmatch(first) else None


def usage(session: Session) -> str:
    """The session's usage through this object, in a line."""
    stats = session.stats
    used = stats.usage
    cost = "" if not stats.cost else f", ${stats.cost:.6f}"
    return (
        f"{stats.turns} turns, {used.input_tokens} input tokens ({used.hit_ratio:.0%} cached), "
        f"{used.output_tokens} output tokens{cost}"
    )


def session_name(values: Values, resume: str | None, state: Path) -> str:
    """Which session it is.

    Args:
        resume: a name, ``LAST``, or None.
        state: holds the name of the last one.

    Raises:
        OptionError: there is no last one, or two names are given.
    """
    named: str | None = values["session"]
    if resume is None:
        return named or f"chat-{secrets.token_hex(4)}"
    if named and values.found("session").origin == "typed":
        raise OptionError("--session and --resume are given: --resume NAME is enough")
    if resume != LAST:
        return resume
    try:
        with state.open("rb") as file:
            return file.read(_MOST_NAME_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        raise OptionError("--resume: there was no conversation yet; name a session") from None


def _options(values: Values) -> GenerationOptions:
    options: GenerationOptions = {"temperature": values["temperature"]}
    if values["max_output_tokens"] is not None:
        options["max_output_tokens"] = values["max_output_tokens"]
    return options


def _state_file(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_STATE_HOME") or home_folder() / ".local/state"
    return Path(home) / "keepwarm" / "last_chat"


def _remember(state: Path, name: str) -> None:
    with contextlib.suppress(OSError):  # a conversation needs no home folder
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text(name + "\n", encoding="utf-8")


def _lines() -> Iterator[str]:
    """Lines that are typed, or stand in a file."""
    prompt = PROMPT if sys.stdin.isatty() else ""
    if prompt:
        with contextlib.suppress(ImportError):
            import_module("readline")  # so that lines can be edited
    while True:
        try:
            yield input(prompt)
        except (EOFError, KeyboardInterrupt):
            return


def _approve(call: FunctionCall, arguments: Mapping[str, Any]) -> bool | str:
    """Ask whoever sits there; nobody does where input is a file."""
    if not sys.stdin.isatty():
        return "nobody is there to approve it"
    return click.confirm(printable(f"run {call.name}({call.arguments})?"), default=False, err=True)


COMMAND = settings_command(
    "chat",
    CHAT_SETTINGS,
    run,
    help=HELP,
    more=[
        click.Option(
            ["--resume"],
            is_flag=False,
            flag_value=LAST,
            default=None,
            metavar="[NAME]",
            help="go on with the session of that name; without one with the last conversation",
        )
    ],
)
