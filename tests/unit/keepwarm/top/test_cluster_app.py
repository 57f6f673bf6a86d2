"""``keepwarm top --cluster``: what is read, what stands in a row, what is on the screen."""

import asyncio
import gc
from typing import Any

import orjson
import pytest
from textual.widgets import DataTable, Static

from keepwarm.top.app import Top
from keepwarm.top.cluster_app import COLUMNS, ClusterTop, cells, totals
from keepwarm.top.command import top
from keepwarm.top.feed import ClusterSnapshot, Feed, FeedError, read_cluster

ROW = {
    "server": "h:1:a", "address": "10.0.0.1:80", "state": "ready", "slot": 2, "sockets": 12,
    "sessions": 9, "kv": 0.455, "hit_ratio": 0.75, "running": 3, "waiting": 1, "version": "0.1",
}  # fmt: skip
BODY = orjson.dumps({"cluster": "prod", "servers": [ROW, ROW | {"hit_ratio": None, "slot": 0}]})


def test_a_server_is_read_with_its_types_and_shown_by_column() -> None:
    seen = read_cluster(BODY)
    assert dict(zip(COLUMNS, cells(seen.servers[0]), strict=True)) == {
        "server": "10.0.0.1:80", "state": "ready", "slot": "2", "sockets": "12", "sessions": "9",
        "KV": "46%", "cached": "75%", "turns": "3+1", "version": "0.1",
    }  # fmt: skip
    assert cells(seen.servers[1])[2:7:4] == ("-", "-")
    assert totals("http://x", seen) == (
        "prod at http://x  2 of 2 ready  sockets 24  sessions 18  turns 6, 2 waiting"
    )


@pytest.mark.parametrize("body", [b"", b"[]", b'{"servers": 3}', b'{"sessions": []}'])
def test_another_server_is_told_from_ours(body: bytes) -> None:
    with pytest.raises(FeedError, match="is this a keepwarm server"):
        read_cluster(body)


def test_what_is_missing_or_of_another_type_is_nothing_and_gives_no_orders() -> None:
    odd = {"address": "\x1b[2J", "slot": "x", "kv": [], "hit_ratio": "y", "running": True}
    seen = read_cluster(orjson.dumps({"cluster": None, "servers": [odd, 7]}))
    assert seen.cluster == ""
    assert "\x1b" not in seen.servers[0].address
    assert (seen.servers[0].slot, seen.servers[0].kv, seen.servers[0].running) == (0, 0.0, 0)
    assert totals("http://x", seen) == "http://x"


class Told(Feed):
    """Says what it is told to."""

    def __init__(self, *says: ClusterSnapshot | FeedError) -> None:
        super().__init__("http://127.0.0.1:1", None)
        self.says = list(says)

    def read_cluster(self) -> ClusterSnapshot:
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(said, FeedError):
            raise said
        return said


def test_rows_stay_on_the_screen_while_nobody_answers() -> None:
    async def run() -> None:
        app = ClusterTop(Told(read_cluster(BODY), FeedError("refused")), every_s=0.05)
        async with app.run_test(size=(100, 24)) as pilot:

            def text(name: str) -> str:
                return str(app.query_one(f"#{name}", Static).content)

            async with asyncio.timeout(20):
                while "refused" not in text("state"):
                    await pilot.pause()
            table: DataTable[Any] = app.query_one(DataTable)
            assert table.row_count == 2
            assert "2 of 2 ready" in text("totals")
            await pilot.press("q")

    asyncio.run(run())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [ClusterTop, Top])
def test_a_look_that_the_end_comes_before_leaves_nothing(kind: type[ClusterTop | Top]) -> None:
    async def run() -> None:
        app = kind(Told(FeedError("refused")), every_s=60.0)
        async with app.run_test(size=(100, 24)):
            await app.workers.wait_for_complete()
            app.look()
            app.workers.cancel_all()  # before the event loop comes to it

    asyncio.run(run())
    gc.collect()  # a coroutine that was never awaited is a warning


@pytest.mark.parametrize("before", [(), ("slash", "x")])
@pytest.mark.parametrize("kind", [ClusterTop, Top])
def test_ctrl_c_ends_it_as_q_does(kind: type[ClusterTop | Top], before: tuple[str, ...]) -> None:
    async def run() -> None:
        app = kind(Told(FeedError("refused")), every_s=60.0)
        async with app.run_test(size=(100, 24)) as pilot:
            await pilot.press(*before, "ctrl+c")
            await pilot.pause()
            assert not app.is_running

    asyncio.run(run())


def test_the_option_chooses_it() -> None:
    assert isinstance(top(["--cluster", "--url", "http://h:1"], {}), ClusterTop)
