"""The network as a transport: every way in which nobody answers is one kind of error."""

import pytest

from keepwarm import ConnectionLost, Retries
from tests.unit.tools_api.sdk.test_sdk_transcript import serving
from tools_api.sdk.connection import Connection, Endpoint
from tools_api.sdk.failures import Refused
from tools_api.sdk.transport import WebTransport


@pytest.mark.parametrize("body", [None, b"{}"])
async def test_nobody_there_is_an_os_error(body: bytes | None) -> None:
    with pytest.raises(OSError):
        await WebTransport().ask("http://127.0.0.1:1/v1/x", {}, body, timeout_s=1)


async def test_an_answer_is_given_whatever_its_status() -> None:
    with serving(lambda path, query: (418, b"tea")) as (url, asked):
        found = await WebTransport().ask(f"{url}/x?a=b", {"Authorization": "k"}, None, timeout_s=5)
    assert found == (418, b"tea")
    assert asked == ["/v1/x?a=b", "k"]


@pytest.mark.parametrize("body", [b"<html>", b"{", b""])
async def test_an_answer_without_json_is_a_lost_connection(body: bytes) -> None:
    with serving(lambda path, query: (200, body)) as (url, _):
        with pytest.raises(ConnectionLost, match="answered with no JSON"):
            await Connection(Endpoint(url), Retries()).ask("/x")


@pytest.mark.parametrize(("status", "asked_times"), [(503, 4), (429, 4), (404, 1), (500, 1)])
async def test_what_may_be_said_twice_is_asked_again_while_nobody_has_time(
    status: int, asked_times: int
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    told = b'{"error": {"message": "no", "code": null, "keepwarm": {"retry_after_ms": 2500}}}'
    with serving(lambda path, query: (status, told)) as (url, asked):
        connection = Connection(Endpoint(url), Retries(tries=3), sleep=sleep)
        with pytest.raises(Refused) as caught:
            await connection.ask_patiently("/x")
    assert (caught.value.status, caught.value.retry_after_s) == (status, 2.5)
    assert len(asked[::2]) == asked_times
    assert waits == [2.5] * (asked_times - 1)
