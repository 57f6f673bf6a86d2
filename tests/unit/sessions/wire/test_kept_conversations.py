"""Conversations where they are kept, and an error for a journal that cannot be asked."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessions.durable.conversations import (
    MOST_CHANGES,
    Conversation,
    moved,
    read_of,
    with_added,
)
from sessions.journal.conversations import columns, decode
from sessions.journal.errors import JournalDamaged, JournalUnavailable
from sessions.wire.kept_conversations import KeptConversations
from tests.support.entries import entry
from tests.support.fake_engine import play
from tests.support.http_bench import HttpBench
from tools_api.errors import ApiError
from tools_api.item_reading import parse_items
from tools_api.limits import Limits

PATH = "/v1/conversations"
ONE = Conversation(id="conv_1", created_s=1)


@pytest.mark.parametrize("journal", [False, True], ids=["memory", "journal"])
def test_it_is_kept_in_one_place_and_changed_from_its_version(
    tmp_path: Path, journal: bool
) -> None:
    async def scenario(bench: HttpBench) -> None:
        tenant = bench.service.store.tenant("t")
        kept = KeptConversations(bench.desk)
        assert await kept.get(tenant, "conv_1") is None
        assert await kept.put(tenant, ONE, version=None)
        assert not await kept.put(tenant, ONE, version=None)
        assert await kept.get(tenant, "conv_1") == ONE
        assert await kept.head(tenant, ONE) is None
        assert (tenant.conversations.num_bytes == 0) is journal
        assert await kept.delete(tenant, "conv_1")
        assert not await kept.delete(tenant, "conv_1")
        await bench.close()

    play(lambda: HttpBench(path=tmp_path / "j" if journal else None), scenario)


def test_a_change_whose_answer_did_not_come_is_made_once(tmp_path: Path) -> None:
    async def scenario(bench: HttpBench) -> None:
        assert bench.desk is not None
        journal, tenant = bench.journal, bench.service.store.tenant("t")
        assert journal is not None
        put, kept, lost = journal.put_conversation, KeptConversations(bench.desk), [True]

        def written(*given: Any, **options: Any) -> bool:
            done = put(*given, **options)
            lost.append(done)
            if len(lost) % 2 == 0:
                raise JournalUnavailable("the connection ended behind the commit")
            return done

        journal.put_conversation = written  # type: ignore[method-assign]
        assert await kept.put(tenant, ONE, version=None)
        added = with_added(ONE, parse_items([{"role": "user", "content": "a"}]), Limits())
        assert await kept.put(tenant, added, version=ONE.version)
        assert lost == [True, True, False, True, False]
        assert await kept.get(tenant, ONE.id) == added
        other = ONE.changed(metadata={"by": "another"})
        assert not await kept.put(tenant, other, version=ONE.version)
        await bench.close()

    play(lambda: HttpBench(path=tmp_path / "j"), scenario)


class Losing:
    """Has the answer to the first call of a journal's method lost, behind its commit, and
    something happen before it is called again."""

    def __init__(self, journal: Any, method: str, between: Callable[[], object]) -> None:
        self._call, self._between = getattr(journal, method), between
        self.calls = 0
        setattr(journal, method, self)

    def __call__(self, *given: Any, **options: Any) -> bool:
        done: bool = self._call(*given, **options)
        self.calls += 1
        if self.calls == 1:
            self._between()
            raise JournalUnavailable("the connection ended behind the commit")
        return done


def changed_elsewhere(journal: Any, id_: str, times: int) -> None:
    """As by another server."""
    for number in range(times):
        found = journal.conversation("acme", id_)
        other = found.changed({"n": str(number)}).marked(f"other {number}")
        assert journal.put_conversation("acme", other, version=found.version)


@pytest.mark.samples(2)
@pytest.mark.parametrize("times", [1, 7])
@pytest.mark.parametrize("change", ["add", "take out", "metadata"])
def test_it_is_made_once_whoever_else_changed_the_conversation_meanwhile(
    tmp_path: Path, change: str, times: int
) -> None:
    async def scenario(bench: HttpBench) -> None:
        journal: Any = bench.journal
        item = {"type": "message", "role": "user", "content": "a"}
        _, made = await bench.ask("POST", PATH, {"items": [item | {"id": "msg_a"}]})
        one = f"{PATH}/{made['id']}"
        put = journal.put_conversation

        def between() -> None:
            losing, journal.put_conversation = journal.put_conversation, put
            changed_elsewhere(journal, made["id"], times)
            journal.put_conversation = losing

        losing = Losing(journal, "put_conversation", between)
        if change == "add":
            status, _ = await bench.ask("POST", f"{one}/items", {"items": [item | {"id": "b"}]})
        elif change == "take out":
            status, _ = await bench.ask("DELETE", f"{one}/items/msg_a")
        else:
            status, _ = await bench.ask("POST", one, {"metadata": {"n": "mine"}})
        assert (status, losing.calls) == (200, 2)
        found = journal.conversation("acme", made["id"])
        wanted = {"add": ["msg_a", "b"], "take out": [], "metadata": ["msg_a"]}[change]
        assert [each.id for each in found.items] == wanted
        assert found.metadata == {"n": str(times - 1)}, "who came later has the last word"
        await bench.close()

    play(lambda: HttpBench(path=tmp_path / "j"), scenario)


def test_what_is_deleted_was_there_though_the_answer_did_not_come(tmp_path: Path) -> None:
    async def scenario(bench: HttpBench) -> None:
        _, made = await bench.ask("POST", PATH, {})
        losing = Losing(bench.journal, "delete_conversation", lambda: None)
        status, told = await bench.ask("DELETE", f"{PATH}/{made['id']}")
        assert (status, told.get("deleted"), losing.calls) == (200, True, 2)
        status, _ = await bench.ask("DELETE", f"{PATH}/{made['id']}")
        assert status == 404
        losing.calls = 0
        status, _ = await bench.ask("DELETE", f"{PATH}/{made['id']}0")
        assert (status, losing.calls) == (404, 2), "it never was"
        await bench.close()

    play(lambda: HttpBench(path=tmp_path / "j"), scenario)


def test_the_mark_of_a_change_outlives_many_others_and_a_turn() -> None:
    changed = ONE.marked("mine")
    for number in range(MOST_CHANGES - 1):
        changed = changed.changed({}).marked(str(number))
    after = moved(changed, read_of(changed), "resp_1", entry(None, "said"))
    assert after is not None
    assert decode(columns("t", after, 1)).changes == after.changes
    assert "mine" in after.changes
    assert len(after.marked("more").changes) == MOST_CHANGES


def test_what_was_said_in_it_and_is_forgotten_is_not_found() -> None:
    async def scenario(bench: HttpBench) -> None:
        tenant = bench.service.store.tenant("t")
        kept = KeptConversations(None)
        stands = Conversation(id="conv_1", created_s=1, head_id="resp_gone")
        with pytest.raises(ApiError) as caught:
            await kept.head(tenant, stands)
        assert (caught.value.status, caught.value.code) == (404, "conversation_not_found")

    play(HttpBench, scenario)


class Broken:
    """A journal that cannot be asked."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def on_journal(self, tenant: str, work: Callable[[Any], Any]) -> Any:
        raise self.error

    async def find(self, tenant: str, response_id: str) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"), [(JournalUnavailable("away"), 503), (JournalDamaged("torn"), 500)]
)
def test_a_journal_that_cannot_be_asked_is_said(error: Exception, status: int) -> None:
    async def scenario(bench: HttpBench) -> None:
        broken: Any = Broken(error)
        tenant = bench.service.store.tenant("t")
        kept = KeptConversations(broken)
        stands = Conversation(id="conv_1", created_s=1, head_id="resp_1")
        asked = (
            kept.get(tenant, "conv_1"),
            kept.put(tenant, ONE, version=None),
            kept.delete(tenant, "conv_1"),
            kept.head(tenant, stands),
        )
        told = await asyncio.gather(*asked, return_exceptions=True)
        assert [getattr(each, "status", None) for each in told] == [status] * 4

    play(HttpBench, scenario)
