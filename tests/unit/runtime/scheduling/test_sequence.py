"""Token buffer and the arithmetic of a sequence."""

import numpy as np
import pytest

from runtime.scheduling.sequence import Sequence, TokenBuffer
from tests.support.requests import make_request


def _sequence(prompt: int, max_new_tokens: int = 10) -> Sequence:
    request = make_request(prompt, max_new_tokens=max_new_tokens)
    return Sequence(request, TokenBuffer(request.new_tokens), arrival_s=0.0)


@pytest.mark.parametrize("seed", range(5))
def test_the_buffer_agrees_with_a_list_under_random_use(seed: int) -> None:
    rng = np.random.default_rng(seed)
    buffer, expected = TokenBuffer(), list[int]()
    for _ in range(300):
        match rng.integers(3):
            case 0:
                buffer.append(int(token := rng.integers(1000)))
                expected.append(int(token))
            case 1:
                tokens = rng.integers(1000, size=rng.integers(200), dtype=np.int32)
                buffer.extend(tokens)
                expected += tokens.tolist()
            case _:
                length = int(rng.integers(len(expected) + 1))
                buffer.truncate(length)
                del expected[length:]
        assert len(buffer) == len(expected)
        assert buffer.view().tolist() == expected
        assert buffer.view().dtype == np.int32


def test_truncating_beyond_the_end_is_refused() -> None:
    with pytest.raises(ValueError, match="truncate to 3, 2 tokens held"):
        TokenBuffer(np.array([1, 2], dtype=np.int32)).truncate(3)


def test_a_sequence_decodes_only_once_its_prompt_is_computed_again() -> None:
    sequence = _sequence(prompt=5)
    assert (sequence.num_pending, sequence.remaining, sequence.decoding) == (5, 10, False)
    sequence.num_computed = 5
    sequence.buffer.append(7)
    assert (sequence.num_pending, sequence.num_emitted, sequence.remaining) == (1, 1, 9)
    assert sequence.decoding
    sequence.num_computed = 0  # preempted
    assert not sequence.decoding
    sequence.final_length = 6
    assert sequence.flush_target == 5


def test_a_sequence_stays_small() -> None:
    assert len(Sequence.__slots__) <= 22
