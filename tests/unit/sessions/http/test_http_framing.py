"""HTTP/1.1 as bytes: exact bounds on heads, one request at a time, chunks, the switch."""

import random
from http import HTTPStatus

import h11
import pytest
from websockets.datastructures import Headers
from websockets.http11 import Response as WebSocketResponse

from sessions.http.framing import Event, HttpFraming
from sessions.http.message import MAX_HEAD_BYTES, HttpError, HttpResponse

GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n"
)
OK = HttpResponse(status=HTTPStatus.OK, content_type="text/plain", body=b"abc")


def head_of(size: int) -> bytes:
    start, end = b"GET / HTTP/1.1\r\nHost: h\r\nX: ", b"\r\n\r\n"
    return start + b"x" * (size - len(start) - len(end)) + end


def read(framing: HttpFraming) -> tuple[str, bytes]:
    """The next request, whole: its target and body."""
    head = framing.next_event()
    assert isinstance(head, h11.Request), head
    body = b""
    while not isinstance(event := framing.next_event(), h11.EndOfMessage):
        assert isinstance(event, h11.Data)
        body += event.data
    return head.target.decode(), body


def fed(*pieces: bytes) -> HttpFraming:
    framing = HttpFraming()
    for piece in pieces:
        framing.receive(piece)
    return framing


def lines(answer: bytes) -> list[str]:
    return answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")


def test_a_pipeline_is_read_one_request_at_a_time() -> None:
    framing = fed(GET + POST + CHUNKED + GET)
    found = [read(framing)]
    for _ in range(3):
        assert framing.next_event() is None, "the next request came before the answer"
        framing.answer(OK, last=False)
        assert framing.next_request()
        found.append(read(framing))
    assert found == [("/a", b""), ("/b", b"hello"), ("/c", b"abcdefg"), ("/a", b"")]


@pytest.mark.parametrize("seed", range(20))
def test_how_bytes_are_cut_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    whole = CHUNKED + POST + GET
    framing, events = HttpFraming(), list[Event]()
    while whole or len(events) < 3:
        size = rng.choice([1, 2, 7, 40])
        framing.receive(whole[:size])
        whole = whole[size:]
        while (event := framing.next_event()) is not None:
            events.append(event)
            if isinstance(event, h11.EndOfMessage):
                framing.answer(OK, last=False)
                assert framing.next_request()
    targets = [event.target for event in events if isinstance(event, h11.Request)]
    data = b"".join(event.data for event in events if isinstance(event, h11.Data))
    assert targets == [b"/c", b"/b", b"/a"]
    assert data == b"abcdefghello"
    assert framing.between_requests


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_one_empty_line_before_a_request_is_passed_over(size: int) -> None:
    whole = b"\r\n" + POST + b"\r\n" + GET + CHUNKED + b"\r\n"
    framing, found = HttpFraming(), list[Event]()
    for start in range(0, len(whole), size):
        framing.receive(whole[start : start + size])
        while (event := framing.next_event()) is not None:
            found.append(event)
            if isinstance(event, h11.EndOfMessage):
                framing.answer(OK, last=False)
                assert framing.next_request()
    assert [event.target for event in found if isinstance(event, h11.Request)] == [
        *(b"/b", b"/a", b"/c")
    ]
    assert framing.between_requests, "nothing of a request has come"
    framing.receive_eof()
    assert isinstance(framing.next_event(), h11.ConnectionClosed)


@pytest.mark.parametrize("lines", [b"\r\n\r\n", b"\n", b"\r", b"\r\r\n", b" \r\n"])
@pytest.mark.parametrize("first", [True, False])
def test_more_than_that_is_no_request(lines: bytes, first: bool) -> None:
    framing = fed(lines + GET if first else GET + lines + GET)
    if not first:
        read(framing)
        framing.answer(OK, last=False)
        assert framing.next_request()
    with pytest.raises(HttpError) as caught:
        framing.next_event()
    assert caught.value.status == 400


def test_half_an_empty_line_waits_for_the_rest_and_is_none_when_the_client_ends() -> None:
    framing = fed(b"\r")
    assert framing.next_event() is None
    assert not framing.between_requests
    framing.receive_eof()
    with pytest.raises(HttpError):
        framing.next_event()
    framing = fed(b"\r", b"\n")
    assert framing.between_requests
    framing.receive(b"\r")
    with pytest.raises(HttpError):
        framing.next_event()


@pytest.mark.parametrize("behind", [b"", POST])
@pytest.mark.parametrize("cut", [MAX_HEAD_BYTES, 1000, 17])
def test_a_head_of_the_allowed_size_is_read_and_a_larger_one_refused(
    cut: int, behind: bytes
) -> None:
    for size in (MAX_HEAD_BYTES, MAX_HEAD_BYTES + 1):
        framing = HttpFraming()
        if behind:  # a head that came with the end of another request
            framing.receive(behind + head_of(size))
            assert read(framing) == ("/b", b"hello")
            framing.answer(OK, last=False)
            assert framing.next_request()
        else:
            whole = head_of(size)
            for start in range(0, size, cut):
                framing.receive(whole[start : start + cut])
        if size == MAX_HEAD_BYTES:
            assert isinstance(framing.next_event(), h11.Request)
        else:
            with pytest.raises(HttpError) as caught:
                framing.next_event()
            assert caught.value.status == 431


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nbad\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 20_000, 431),
    ],
)
def test_what_is_no_http_is_refused_and_not_repeated(data: bytes, status: int) -> None:
    framing = fed(data)
    with pytest.raises(HttpError) as caught:
        read(framing)
    assert caught.value.status == status
    assert len(caught.value.message) < 200
    assert framing.may_answer
    answer = framing.answer(OK, last=True)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert framing.is_over


@pytest.mark.parametrize("half", [GET[:10], POST[:-1], CHUNKED[:-6]])
def test_half_a_request_is_an_error_when_the_client_ends(half: bytes) -> None:
    framing = fed(half)
    while framing.next_event() is not None:
        pass
    framing.receive_eof()
    with pytest.raises(HttpError) as caught:
        framing.next_event()
    assert caught.value.status == 400


def test_the_end_between_requests_is_no_error() -> None:
    framing = fed(GET)
    read(framing)
    framing.answer(OK, last=False)
    assert framing.next_request()
    framing.receive_eof()
    assert isinstance(framing.next_event(), h11.ConnectionClosed)


def test_it_knows_whether_a_request_has_begun() -> None:
    framing = fed()
    assert framing.between_requests
    framing.receive(b"G")
    assert not framing.between_requests
    assert framing.next_event() is None
    assert not framing.between_requests


def test_a_whole_answer_has_its_length_and_goes_on_or_is_the_last() -> None:
    for last in (False, True):
        framing = fed(GET)
        read(framing)
        answer = framing.answer(OK, last=last)
        assert lines(answer)[0] == "HTTP/1.1 200 OK"
        assert "Content-Length: 3" in lines(answer)
        assert ("Connection: close" in lines(answer)) is last
        assert answer.endswith(b"\r\n\r\nabc")
        assert framing.is_over is last
        assert framing.next_request() is not last


def test_a_client_that_wants_the_end_gets_it() -> None:
    framing = fed(GET.replace(b"Host", b"Connection: close\r\nHost"))
    read(framing)
    assert "Connection: close" in lines(framing.answer(OK, last=False))
    assert framing.is_over


def test_an_answer_to_head_has_the_length_but_not_the_body() -> None:
    framing = fed(GET.replace(b"GET", b"HEAD"))
    read(framing)
    answer = framing.answer(OK, last=False)
    assert "Content-Length: 3" in lines(answer)
    assert answer.endswith(b"\r\n\r\n")
    assert framing.next_request()


def test_an_answer_in_pieces_is_what_a_client_puts_together() -> None:
    framing = fed(GET + GET)
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/a", headers=[("Host", "h")]))
    client.send(h11.EndOfMessage())
    read(framing)
    sent = framing.stream_head("text/event-stream", last=False)
    sent += framing.piece(b"data: 1\n\n") + framing.piece(b"x" * 1000) + framing.end()
    client.receive_data(sent)
    head = client.next_event()
    assert isinstance(head, h11.Response)
    assert (b"content-type", b"text/event-stream") in head.headers
    body = b""
    while isinstance(event := client.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert body == b"data: 1\n\n" + b"x" * 1000
    assert framing.next_request()


def test_a_client_that_waits_is_told_to_go_on() -> None:
    framing = fed(POST.replace(b"Host", b"Expect: 100-continue\r\nHost")[:-5])
    assert isinstance(framing.next_event(), h11.Request)
    assert framing.client_waits
    assert framing.proceed() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert not framing.client_waits
    assert framing.may_answer


def test_what_comes_behind_a_handshake_is_handed_over() -> None:
    framing = fed(GET.replace(b"Host", b"Connection: Upgrade\r\nUpgrade: websocket\r\nHost"))
    framing.receive(b"\x81\x00" + bytes(MAX_HEAD_BYTES * 2))
    read(framing)
    assert framing.next_event() is None
    headers = Headers({"Upgrade": "websocket", "Connection": "Upgrade"})
    answer, rest = framing.switch(WebSocketResponse(101, "Switching Protocols", headers))
    assert lines(answer)[0] == "HTTP/1.1 101 Switching Protocols"
    assert rest == b"\x81\x00" + bytes(MAX_HEAD_BYTES * 2)
