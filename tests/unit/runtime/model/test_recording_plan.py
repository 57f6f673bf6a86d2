"""Recordings of large chunks take a bounded part of a GPU's memory."""

import pytest

from runtime.model.presets import PRESETS
from runtime.model.recording_plan import RECORDED_BYTES, recorded_chunks, recording_bytes
from runtime.model.step_buckets import large_chunks


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("most", [0, 1 << 20, 300 << 20, RECORDED_BYTES])
def test_what_is_recorded_fits_and_one_more_would_not(name: str, most: int) -> None:
    model, every = PRESETS[name], large_chunks(64, 2048)
    found = recorded_chunks(model, itemsize=2, max_sequences=64, max_tokens=2048, most=most)
    assert found == every[: len(found)]
    if found:
        assert recording_bytes(model, found, itemsize=2) <= most
    if len(found) < len(every):
        assert recording_bytes(model, every[: len(found) + 1], itemsize=2) > most


def test_all_large_chunks_of_the_8b_shape_fit() -> None:
    model, every = PRESETS["qwen3-8b"], large_chunks(256, 2048)
    assert recorded_chunks(model, itemsize=2, max_sequences=256, max_tokens=2048) == every
    values = 2112 * (2 * (4096 + 1024) + 3 * 12288 + 4 * 4096) * 2
    logits = 14 * (8 + 64) * 151936 * 4
    assert recording_bytes(model, every, itemsize=2) == values + logits
    assert recording_bytes(model, [], itemsize=2) == 0
