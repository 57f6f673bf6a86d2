"""Conversations where they are kept, and an error for a journal that cannot be asked."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessions.durable.conversations import Conversation, with_added
from sessions.journal.errors import JournalDamaged, JournalUnavailable
from sessions.wire.kept_conversations import KeptConversations
from tests.support.fake_engine import play
from tests.support.http_bench import HttpBench
from tools_api.errors import ApiError
from tools_api.item_reading import parse_items
from tools_api.limits import Limits

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
