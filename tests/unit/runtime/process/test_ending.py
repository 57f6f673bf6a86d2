"""Whichever thread ends an engine's process, the reason is one line of the log."""

import threading

import pytest

from runtime.process.ending import LastWords


def test_of_several_threads_one_says_why(caplog: pytest.LogCaptureFixture) -> None:
    words, together = LastWords(), threading.Barrier(4)

    def end(rank: int) -> None:
        together.wait()
        words.say(f"rank {rank} was killed")

    threads = [threading.Thread(target=end, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (said,) = caplog.messages
    assert said.startswith("engine ends, to be replaced: rank ")
