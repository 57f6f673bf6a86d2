"""``/cluster.json`` has the servers of the cluster by slot, and nothing where there is none."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from sessions.journal.errors import JournalUnavailable
from sessions.journal.members import Member, MemberState, Presence
from sessions.pages.cluster_page import ClusterPage
from tests.support.exchange import make_call
from tools_api.errors import ApiError


class FakeOwner:
    """The journal's side."""

    def __init__(self, *slots: int) -> None:
        self.slots, self.away = slots, False

    def members(self, cluster: str) -> tuple[list[Member], int]:
        assert cluster == "prod"
        if self.away:
            raise JournalUnavailable("away")
        return [self.member(slot) for slot in self.slots], 5000

    def member(self, slot: int) -> Member:
        said = Presence(
            cluster="prod", address=f"10.0.0.{slot}:80", identity="m", state=MemberState.READY
        )
        return Member(owner=f"o{slot}", heartbeat_ms=5000, presence=said, slot=slot)


async def beside(tenant: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return work()


async def shown(page: ClusterPage) -> Any:
    return orjson.loads((await page.show(make_call(target="/cluster.json"))).body)


async def test_servers_stand_by_slot_and_those_without_one_last() -> None:
    found = await shown(ClusterPage("prod", FakeOwner(3, 0, 1), beside))  # type: ignore[arg-type]
    assert found["cluster"] == "prod"
    assert [each["slot"] for each in found["servers"]] == [1, 3, 0]
    assert found["servers"][0]["state"] == "ready"


async def test_without_a_cluster_there_are_none_and_nothing_is_asked() -> None:
    owner = FakeOwner(1)
    owner.away = True
    assert await shown(ClusterPage(None, owner, beside)) == {"cluster": None, "servers": []}  # type: ignore[arg-type]
    assert (await shown(ClusterPage("prod", None, beside)))["servers"] == []


async def test_a_database_that_is_away_is_503() -> None:
    owner = FakeOwner(1)
    owner.away = True
    with pytest.raises(ApiError, match="cannot be read just now") as told:
        await shown(ClusterPage("prod", owner, beside))  # type: ignore[arg-type]
    assert told.value.status == 503
