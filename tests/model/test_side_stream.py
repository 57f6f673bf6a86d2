"""What runs beside other launches comes after those before it, and before what follows the join."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from kernels import side_stream
from kernels.side_stream import beside, joined

CUDA = torch.device("cuda", 0)


class Stream:
    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self._said = name, said

    def wait_stream(self, other: "Stream") -> None:
        self._said.append(f"{self.name} waits for {other.name}")


class Cuda:
    """As much of ``torch.cuda`` as streams need."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.made = 0
        self._current = Stream("main", self.said)

    def Stream(self, device: torch.device) -> Stream:
        self.made += 1
        return Stream("side", self.said)

    def current_stream(self, device: torch.device) -> Stream:
        return self._current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before

    def launch(self, name: str) -> None:
        self.said.append(f"{name} on {self._current.name}")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    fake: Any = Cuda()
    monkeypatch.setattr(side_stream, "_cuda", fake)
    side_stream.stream_beside.cache_clear()
    yield fake
    side_stream.stream_beside.cache_clear()


def test_what_is_beside_waits_for_what_was_before_and_the_join_for_it(cuda: Cuda) -> None:
    for _ in range(2):
        cuda.launch("before")
        with beside(CUDA):
            cuda.launch("prefix")
        cuda.launch("own")
        joined(CUDA)
    assert cuda.said == 2 * [
        "before on main",
        "side waits for main",
        "prefix on side",
        "own on main",
        "main waits for side",
    ]
    assert cuda.made == 1


def test_without_a_gpu_there_is_one_order(cuda: Cuda) -> None:
    with beside(torch.device("cpu")):
        cuda.launch("prefix")
    joined(torch.device("cpu"))
    assert cuda.said == ["prefix on main"]
    assert cuda.made == 0
