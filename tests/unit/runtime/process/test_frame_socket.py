"""Frames from a socket, whole or not at all."""

import socket
import threading

import pytest

from runtime.process import frames
from runtime.process.frame_socket import receive_exactly, receive_frame
from runtime.process.frames import FrameError, decode_object, encode_object


def test_a_frame_comes_whole_however_it_was_cut_up() -> None:
    ours, theirs = socket.socketpair()
    frame = encode_object({"name": "x" * 100_000})

    def send() -> None:
        for at in range(0, len(frame), 777):
            theirs.sendall(frame[at : at + 777])
        theirs.close()

    sending = threading.Thread(target=send)
    sending.start()
    with ours:
        assert decode_object(*receive_frame(ours)) == {"name": "x" * 100_000}
        with pytest.raises(EOFError):
            receive_exactly(ours, 1)
    sending.join()


def test_a_frame_that_ends_early_is_the_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(encode_object({"a": 1})[:-2])
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            receive_frame(ours)


def test_what_is_no_frame_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(FrameError):
            receive_frame(ours)
    with pytest.raises(FrameError):
        decode_object(b"3", b"")
    assert frames.PREFIX.size == 12
