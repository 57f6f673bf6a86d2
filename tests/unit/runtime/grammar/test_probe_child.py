"""A child that checks grammars: its start, its frames, and what it says of who interfered."""

import asyncio
from pathlib import Path
from unittest.mock import Mock

import pytest

from runtime.grammar.probe_child import (
    ProbeChild,
    ProbeError,
    ProbeLimits,
    _read,
    start_process,
)
from runtime.grammar.probe_process import LENGTH


def test_a_tokenizer_that_cannot_be_read_is_reported_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ProbeError, match=r"tokenizer.json: file not found"):
            await start_process([str(tmp_path), "1000000"])
        child = ProbeChild([str(tmp_path), "1000000"], ProbeLimits())
        with pytest.raises(ProbeError, match=r"tokenizer.json: file not found"):
            await child.start()

    asyncio.run(main())


def test_an_answer_that_is_too_long_is_not_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.grammar.probe_child._MAX_FRAME_BYTES", 4)

    async def scenario() -> None:
        said = asyncio.StreamReader()
        said.feed_data(LENGTH.pack(5) + b"null ")
        with pytest.raises(asyncio.IncompleteReadError):
            await _read(Mock(stdout=said))

    asyncio.run(scenario())
