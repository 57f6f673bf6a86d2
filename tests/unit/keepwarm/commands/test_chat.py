"""Which session a conversation is in, and what is said where it cannot go on."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from keepwarm import ConnectionLost, Response, Session, SessionStats, TextDelta, Usage
from keepwarm.commands.chat import COMMANDS, LAST, Conversation, session_name, usage
from keepwarm.commands.chat_settings import CHAT_SETTINGS
from keepwarm.commands.registry import base_url
from keepwarm.commands.screen import Screen
from sessions.command.settings import OptionError, Values, resolve


def values(typed: dict[str, Any] | None = None, **environment: str) -> Values:
    return resolve("chat", CHAT_SETTINGS, typed=typed or {}, environment=environment)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1"),
        ("https://h/", "https://h/v1"),
        ("http://h/v1", "http://h/v1"),
        ("ws://h/prefix/v1/", "ws://h/prefix/v1/"),
    ],
)
def test_an_address_may_leave_its_path_out(url: str, expected: str) -> None:
    assert base_url(values({"url": url})) == expected
    assert base_url(values(KEEPWARM_URL=url)) == expected


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "http://", "ftp://h", "http://h:x"])
def test_another_address_is_refused_by_the_name_of_its_option(url: str) -> None:
    with pytest.raises(OptionError, match=r"KEEPWARM_URL '.*' is not of the form"):
        base_url(values(KEEPWARM_URL=url))


def test_a_session_is_new_or_named_or_the_one_to_go_on_with(tmp_path: Path) -> None:
    state = tmp_path / "last_chat"
    first, second = (session_name(values(), None, state) for _ in range(2))
    assert first != second
    assert session_name(values({"session": "mine"}), None, state) == "mine"
    assert session_name(values(KEEPWARM_CHAT_SESSION="mine"), "other", state) == "other"
    with pytest.raises(OptionError, match="there was no conversation yet"):
        session_name(values(), LAST, state)
    state.write_text("chat-1\n")
    assert session_name(values(), LAST, state) == "chat-1"
    with pytest.raises(OptionError, match="--session and --resume are given"):
        session_name(values({"session": "mine"}), "other", state)


class Scripted:
    """A session that says what it is told: a text, or an exception to raise."""

    name = "chat-1"

    def __init__(self, *script: str | BaseException, turn: int = 1) -> None:
        self.script = list(script)
        self.turn = turn
        self.stats = SessionStats()

    def stream(self, text: str, **options: Any) -> Iterator[object]:
        said = self.script.pop(0)
        if isinstance(said, BaseException):
            yield TextDelta(text="beg")
            raise said
        self.stats = SessionStats(turns=self.stats.turns + 1, usage=Usage(input_tokens=10))
        yield TextDelta(text=said)
        yield response(self.turn)


def response(turn: int, status: str = "completed") -> Response:
    return Response(
        id="r",
        status=status,
        output=(),
        usage=Usage(),
        keepwarm={"turn": turn},
        ttft_s=None,
        duration_s=0.0,
        raw={},
    )


def talk(session: Scripted, *lines: str, resumed: bool = False) -> tuple[int, list[str]]:
    out = io.StringIO()
    screen = Screen(out, colour=False, columns=80)
    said = Conversation(cast(Session, session), screen, {}, resumed=resumed)
    return said.take(iter(lines)), out.getvalue().splitlines()


def test_each_line_is_answered_and_the_end_says_how_to_go_on() -> None:
    assert talk(Scripted("one", "two"), "a", "", "b") == (
        *(0, ["one", "two", "go on with: keepwarm chat --resume chat-1"]),
    )


def test_a_failure_is_a_line_and_the_conversation_goes_on() -> None:
    lost = ConnectionLost("gone", started=False)
    status, lines = talk(Scripted(lost, "two"), "a", "b")
    assert (status, lines[:3]) == (0, ["beg", "error: gone", "two"])
    status, lines = talk(Scripted(lost), "a")
    assert (status, lines) == (1, ["beg", "error: gone"])


def test_ctrl_c_ends_the_turn_alone() -> None:
    status, lines = talk(Scripted(KeyboardInterrupt(), "two"), "a", "b")
    assert (status, lines[:3]) == (0, ["beg", "note: the turn was cancelled", "two"])


@pytest.mark.parametrize(("turn", "told"), [(1, True), (5, False)])
def test_a_session_to_go_on_with_that_is_not_there_is_told(turn: int, told: bool) -> None:
    _, lines = talk(Scripted("one", turn=turn), "a", resumed=True)
    assert ("note: the server did not know this session; it begins here" in lines) is told
    assert not any("did not know" in line for line in talk(Scripted("one"), "a")[1])


def test_what_it_took_is_shown() -> None:
    session = Scripted()
    session.stats = SessionStats(
        turns=2, usage=Usage(input_tokens=100, cached_tokens=25, output_tokens=7), cost=0.5
    )
    told = "2 turns, 100 input tokens (25% cached), 7 output tokens, $0.500000"
    assert usage(cast(Session, session)) == told
    assert talk(session, "/usage")[1][0] == told


def test_help_lists_what_can_be_typed_and_nothing_goes_to_the_model() -> None:
    status, lines = talk(Scripted(), "/help", "  /HELP me".lower())
    assert status == 0
    for command in COMMANDS:
        assert sum(line.startswith(command) for line in lines) == 2


@pytest.mark.parametrize("line", ["/hepl", "/clear now", "/model gpt", "/USAGE"])
def test_a_command_that_there_is_not_is_told_and_does_not_go_to_the_model(line: str) -> None:
    status, lines = talk(Scripted(), line)
    (told,) = lines
    assert status == 1
    assert told.startswith(f"error: there is no command {line.split(maxsplit=1)[0]}, /help lists")


@pytest.mark.parametrize("end", ["/quit", "/exit"])
def test_the_conversation_can_be_ended_by_a_word(end: str) -> None:
    assert talk(Scripted(), end, "never asked") == (0, [])


class Heard(Scripted):
    """One that tells what it was asked."""

    def stream(self, text: str, **options: Any) -> Iterator[object]:
        self.script.append(text)
        return super().stream(text, **options)


@pytest.mark.parametrize(
    ("line", "heard"),
    [
        ("//hepl", "/hepl"),
        ("/etc/passwd says", "/etc/passwd says"),
        ("/ is a slash", "/ is a slash"),
        ("what is /tmp", "what is /tmp"),
        ("/1 of 3", "/1 of 3"),
    ],
)
def test_a_line_with_a_slash_that_is_no_command_goes_to_the_model(line: str, heard: str) -> None:
    assert talk(Heard(), line)[1][0] == heard
