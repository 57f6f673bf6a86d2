"""Sessions of a model whose rows behind windows are given back, over real sockets: what their turns
find again, also when the engine is killed."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from keepwarm import Client, Response
from keepwarm.demo.child_server import ChildServer, child_server
from tests.support.faults import until
from tools_api.sdk.sync_session import Session

BLOCK = 16
INSTRUCTIONS = "You keep the books of a small shop, and say what you do in a few words. " * 6


MODELS = ["gemma3-tiny", pytest.param("deepseek-v4-tiny", marks=pytest.mark.tail)]
OPTIONS = ["--num-blocks", "4000", "--threads", "1"]
OPTIONS += ["--max-running", "2", "--max-batch-tokens", "512"]


@pytest.fixture(scope="module", params=MODELS)
def serving(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ChildServer]:
    """Room for the windows of a few sessions: nine blocks and 35 for a step, one of sixteen."""
    options = ["--model", f"random:{request.param}", *OPTIONS]
    log = tmp_path_factory.mktemp("windows") / "server.log"
    with child_server(options, log=log) as server:
        yield server


def said(session: Session, text: str) -> Response:
    return session.respond(text, instructions=INSTRUCTIONS, max_output_tokens=5, temperature=0)


def recomputed(before: Response, response: Response) -> int:
    """Tokens that an earlier turn has run through the model and this one ran again, but for those
    behind the last whole block."""
    held = before.usage.input_tokens + before.usage.output_tokens - 1
    return max(0, held // BLOCK * BLOCK - response.usage.cached_tokens)


def metrics(server: ChildServer) -> dict[str, float]:
    text = httpx.get(f"{server.url.removesuffix('/v1')}/metrics", timeout=30).text
    found = re.findall(r"^(keepwarm_(?:window|missed|engine_restarts)\S+) (\S+)$", text, re.M)
    return {name: float(value) for name, value in found}


def test_turns_and_forks_of_sessions_recompute_nothing(serving: ChildServer) -> None:
    """The second turn of each, the twentieth, and of forks the first; a new session finds the
    header, whose window is kept though others went on far behind it."""
    with Client(serving.url) as client:
        sessions = [client.session(name=f"s{number}") for number in range(3)]
        last = [said(session, f"begin {number}") for number, session in enumerate(sessions)]
        assert last[2].usage.cached_tokens > 0.8 * len(INSTRUCTIONS), "a header is found"
        for turn in range(20):
            for number, session in enumerate(sessions):
                response = said(session, f"turn {turn}, and some more that is said in it")
                assert recomputed(last[number], response) == 0, (turn, number)
                last[number] = response
            if turn % 10 == 5:
                fork = said(sessions[1].fork(), f"another way {turn}")
                assert recomputed(last[1], fork) == 0, turn
        late = said(client.session(), "whose header was computed long ago")
        assert late.usage.cached_tokens > 0.8 * len(INSTRUCTIONS)
    found = metrics(serving)
    held = found['keepwarm_window_blocks{state="held"}']
    assert 0 < held < held + found['keepwarm_window_blocks{state="evictable"}'] < 400
    assert found["keepwarm_window_blocks_evicted_total"] > 0


def test_where_windows_have_gone_a_turn_is_computed_again_and_says_so(
    serving: ChildServer,
) -> None:
    with Client(serving.url) as client:
        first = client.session(name="first")
        before = said(first, "x" * 300)
        crowd(client)
        missing = metrics(serving)['keepwarm_missed_tokens_total{cause="state_missing"}']
        again = said(first, "and now")
        assert recomputed(before, again) > 0
        more = metrics(serving)['keepwarm_missed_tokens_total{cause="state_missing"}']
        assert more - missing >= recomputed(before, again)
        assert recomputed(again, said(first, "once more")) == 0


def crowd(client: Client) -> None:
    """More sessions than there are windows for on the device."""
    for number in range(120):
        said(client.session(name=f"o{number}"), f"{number} " + "y" * 200)


@pytest.mark.parametrize(
    ("model", "ranks"),
    [("gemma3-tiny", 1), pytest.param("gpt-oss-tiny", 2, marks=pytest.mark.tail)],
)
def test_with_host_memory_it_goes_on_where_its_window_has_gone_down(
    model: str, ranks: int, tmp_path: Path
) -> None:
    options = ["--model", f"random:{model}", *OPTIONS, "--host-kv-mib", "16"]
    options += ["--tensor-parallel", str(ranks)]
    with (
        child_server(options, log=tmp_path / "server.log") as server,
        Client(server.url) as client,
    ):
        first = client.session(name="first")
        before = said(first, "x" * 300)
        crowd(client)
        again = said(first, "and now")
        assert recomputed(before, again) == 0
        assert metrics(server)["keepwarm_window_blocks_evicted_total"] > 0


def test_a_session_goes_on_when_the_engine_is_killed(serving: ChildServer) -> None:
    with Client(serving.url) as client:
        session = client.session(name="kept")
        said(session, "before")
        engine = next(
            child
            for child in psutil.Process(serving.process.pid).children(recursive=True)
            if "runtime.process.engine_process" in child.cmdline()
        )
        engine.send_signal(signal.SIGKILL)
        until(lambda: metrics(serving)["keepwarm_engine_restarts_total"] > 0)
        again = said(session, "behind it")
        assert again.usage.cached_tokens == 0
        assert recomputed(again, said(session, "and on")) == 0
