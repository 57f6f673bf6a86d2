"""A transcript reads back as it was sent: over restarts, forks and rewinds, whoever reads it.

A server in this process, over real sockets and a journal in a file, with an engine that says what
the test has drawn; the author's side is the SDK. ``KEEPWARM_TRANSCRIPT_TURNS=500`` plays so many
turns (CI: 80), ``KEEPWARM_TRANSCRIPT_SEED`` is the first seed.
"""

import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from keepwarm import AsyncClient, AsyncSession, FunctionCallOutput, Response
from sessions.journal.sqlite import SqliteJournal
from tests.support.any_texts import any_text
from tests.support.running_server import RunningServer
from tests.support.sessions_rig import END, call, tool
from tests.support.speaking_engine import SpeakingEngine, always
from tools_api.item_reading import parse_items
from tools_api.items import Item
from tools_api.sdk.options import wire_items

TURNS = int(os.environ.get("KEEPWARM_TRANSCRIPT_TURNS", "80"))
SEED = int(os.environ.get("KEEPWARM_TRANSCRIPT_SEED", "1"))
TOOLS = [tool("find", query={"type": "string"}), tool("note", text={"type": "string"})]
MOST_BYTES = 60


class Author:
    """Plays drawn turns of a session, and knows what was said in each of its transcripts."""

    def __init__(self, seed: int, engine: SpeakingEngine) -> None:
        self._draw = random.Random(seed)
        self.engine = engine
        self.said: dict[str, list[dict[str, Any]]] = {}
        """By the response up to which it goes: all that was sent and answered."""

    async def play(self, session: AsyncSession, turns: int, *, head: str | None = None) -> str:
        """So many turns behind ``head``; the response at which the session then stands."""
        for _ in range(turns):
            head = await self._turn(session, head)
        assert head is not None
        return head

    async def rewound(self, session: AsyncSession, turns: int, *, anew: bool) -> str:
        """Take so many turns back and play another one. The calls that were answered behind it
        are answered as before, or ``anew``."""
        old = self.said[session.head or ""]
        session.rewind(turns=turns)
        while not self._outputs(self.said[session.head or ""]):
            session.rewind()
        return await self._turn(session, session.head, None if anew else old)

    async def _turn(
        self, session: AsyncSession, head: str | None, old: list[dict[str, Any]] | None = None
    ) -> str:
        """``old``: a transcript whose outputs the session still has."""
        before = [] if head is None else self.said[head]
        outputs, new = self._outputs(before), wire_items(self._input())
        mixed = self._draw.sample(outputs, len(outputs))  # a server puts them in their calls' order
        self.engine.script = always(*self._speech())
        given = [*mixed, *new] if old is None else new
        response = await session.respond(given, tools=TOOLS, max_output_tokens=2000)
        self.engine.scripted.forget_past()
        if old is not None:
            outputs = old[len(before) : len(before) + len(outputs)]
        sent = map(as_sent, parse_items([*outputs, *new]))
        self.said[response.id] = [*before, *sent, *answered(response)]
        return response.id

    def _outputs(self, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Of the calls of the turn before, in their order."""
        known = {item["call_id"] for item in before if item["type"] == "function_call_output"}
        calls = [item["call_id"] for item in before if item["type"] == "function_call"]
        answers = [
            FunctionCallOutput(call_id=call_id, output=self._text())
            for call_id in calls
            if call_id not in known
        ]
        return wire_items(answers)

    def _input(self) -> Any:
        if self._draw.random() < 0.5:
            return self._text()
        parts = [{"type": "input_text", "text": self._text()} for _ in range(2)]
        several = [
            {"role": "developer", "content": self._text()},
            {"role": "user", "content": parts},
        ]
        return several[self._draw.randrange(2) :]

    def _speech(self) -> list[str]:
        pieces = []
        if self._draw.random() < 0.3:
            pieces.append(f"<think>\n{self._word()}\n</think>\n\n")
        if self._draw.random() < 0.7:
            pieces.append(self._word())
        for name, argument in (("find", "query"), ("note", "text")):
            if self._draw.random() < 0.4:
                given = json.dumps({argument: self._word()}, ensure_ascii=self._draw.random() < 0.5)
                pieces += ["\n", call(name, given)]
        return [*(pieces or ["."]), END]

    def _text(self) -> str:
        """Any text that UTF-8 can write."""
        text = any_text(self._draw, MOST_BYTES)
        return text.encode("utf-8", "replace").decode()

    def _word(self) -> str:
        """What a model writes, and no tag."""
        return self._draw.choice(("Desk.", "Größe 字 😀", 'a "quoted" \\ line\nand more', "7"))


def as_sent(item: Item) -> dict[str, Any]:
    """An item without what the server adds."""
    return {name: value for name, value in item.to_wire().items() if name not in ("id", "status")}


def answered(response: Response) -> list[dict[str, Any]]:
    """What a turn gave; each item has the id that the client was told."""
    assert response.status == "completed"
    return [item.to_wire() for item in response.output]


async def check(author: Author, session: AsyncSession, head: str) -> list[str | None]:
    """What is read is what was said, item by item; the ids of all of it."""
    read = [item async for item in session.items()]
    said = author.said[head]
    assert len(read) == len(said)
    for item, expected in zip(read, said, strict=True):
        got = item.to_wire()
        assert got == expected or as_sent(item) == expected
    ids = [item.id for item in read]
    assert None not in ids
    assert len(set(ids)) == len(ids)
    return ids


@asynccontextmanager
async def life(folder: Path) -> AsyncIterator[tuple[SpeakingEngine, AsyncClient]]:
    """A server over the journal, until it stops, and a client that knows nothing yet."""
    engine = SpeakingEngine()
    kept = SqliteJournal(folder / "journal", fingerprint=b"f")
    server = RunningServer(engine, real=True, max_context_tokens=1_000_000, journal=kept)
    async with server, AsyncClient(f"http://127.0.0.1:{server.port}/v1") as client:
        yield engine, client


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
async def test_a_transcript_reads_back_as_it_was_sent(seed: int, tmp_path: Path) -> None:
    async with life(tmp_path) as (engine, client):
        author = Author(seed, engine)
        whole = client.session(name="whole")
        end = await author.play(whole, TURNS)
        ids = await check(author, whole, end)
        calls = sum(item["type"] == "function_call" for item in author.said[end])
        assert calls > TURNS // 4
        branch = whole.fork(name="branch")
        side = await author.rewound(branch, TURNS // 3, anew=True)
        side = await author.play(branch, 6, head=side)
        again = await author.rewound(whole, 5, anew=False)
        again = await author.play(whole, 8, head=again)
        for session, head in ((whole, again), (branch, side), (client.session(head=end), end)):
            await check(author, session, head)
        assert len({end, side, again}) == 3
    async with life(tmp_path) as (author.engine, client):
        heads = {"whole": again, "branch": side}
        for name, head in heads.items():
            await check(author, client.session(name=name), head)
            heads[name] = await author.play(client.session(name=name), 3, head=head)
    async with life(tmp_path) as (author.engine, client):
        for name, head in heads.items():
            await check(author, client.session(name=name), head)
        assert await check(author, client.session(head=end), end) == ids
