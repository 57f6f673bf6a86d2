"""A request's way through the front end is followed, and grows no longer."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tools.follow import PARTS, RESTART, ROOT, SCENARIOS, Passed, Way, passed, table

# The ratchet: functions, files, and of these in sessions. A change that betters a number writes
# the new one here. (Some functions on the way in are the forms of calls of further chat formats;
# ten there and a file or two in each part are contexts that are recast, the spans of reasoning and
# what hybrids resume from. At the end two files came in when playing, summing up and what is
# computed ahead became modules of their own, and one in each when questions did: then no part of a
# connection holds who keeps it. Conversations, steers, searches in mid-turn and tools that come
# late took a dozen functions and two files on the way in, and four files at the end. Behind a
# restart two are the reading of what a request names and a journal's connections, which became
# modules of their own.)
# Where a turn holds a part of a budget, its first token is noted by the clock that the servers of a
# journal have in common.
REACHED = {
    "plain turn": {"in": (335, 72, 48), "first token": (108, 34, 24), "end": (295, 66, 54)},
    "tool turn": {"in": (455, 82, 50), "first token": (133, 42, 32), "end": (296, 67, 54)},
    "budget": {"in": (353, 73, 49), "first token": (131, 42, 32), "end": (297, 66, 54)},
    "restart": {"in": (466, 88, 62), "first token": (129, 42, 32), "end": (294, 66, 54)},
}
# Functions that pass or do not, by whether pieces of the output come apart or are joined.
BY_PACE = 4


COUNTED = ("functions", "files", "in sessions")


@pytest.fixture(scope="module")
def followed() -> dict[str, dict[str, Any]]:
    """On a busy machine what the server does on its own, now and then, falls into a request: where
    a part is longer than it was it is followed once more, and the shorter way counts."""
    found = followed_once()
    if all(fits(name, part, found) for name in REACHED for part in PARTS):
        return found
    again = followed_once()
    for name, parts in again.items():
        for part in PARTS:
            if parts[part]["functions"] < found[name][part]["functions"]:
                found[name][part] = parts[part]
    return found


def fits(name: str, part: str, followed: dict[str, dict[str, Any]]) -> bool:
    functions, files, in_sessions = REACHED[name][part]
    most = (functions + BY_PACE, files, in_sessions)
    counts = (followed[name][part][what] for what in COUNTED)
    return all(now <= then for now, then in zip(counts, most, strict=True))


def followed_once() -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", "tools.follow", "--json"]
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", REACHED)
def test_a_request_passes_no_more_than_it_did(
    name: str, part: str, followed: dict[str, dict[str, Any]]
) -> None:
    found = followed[name][part]
    assert fits(name, part, followed), tuple(found[what] for what in COUNTED)


def test_the_way_is_the_whole_one(followed: dict[str, dict[str, Any]]) -> None:
    """From the socket to the engine's door, through the hub, and back to the socket."""
    assert set(followed) == set(REACHED) == {*SCENARIOS, RESTART}
    for parts in followed.values():
        for part, place in zip(PARTS, ("websocket_peer", "websocket_peer", "hub"), strict=True):
            assert any(f"sessions/wire/{place}.py" in name for name in parts[part]["names"])
        assert "sessions/wire/hub.py Hub._flush" in parts["in"]["names"]
        assert "sessions/wire/websocket_peer.py WebSocketPeer.deliver" in parts["end"]["names"]
    read = [name for name in followed[RESTART]["in"]["names"] if "sessions/journal/" in name]
    assert len(read) > 20, "the session comes from the journal"


def way_of(*functions: Any) -> Way:
    way = Way()
    for function in functions:
        calls = way.parts["in"]
        calls[function.__code__] = calls.get(function.__code__, 0) + 1
    return way


def test_what_is_not_called_each_time_is_none_of_the_request() -> None:
    ways = [way_of(passed, table, table), way_of(passed, passed, table)]
    assert passed(ways, "in") == Passed(
        calls=2, functions=frozenset({("tools/follow.py", "passed"), ("tools/follow.py", "table")})
    )
    assert passed([*ways, way_of(table)], "in").functions == {("tools/follow.py", "table")}


def test_the_table_has_a_row_for_each_request() -> None:
    found = {part: passed([way_of(passed)], part) for part in PARTS}
    head, names, row = table({"plain turn": found})
    assert head.split() == ["in", "first", "token", "end"]
    assert len(names.split()) == 9
    assert row.split() == ["plain", "turn", "1", "1", *["0"] * 7]
