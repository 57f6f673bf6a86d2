"""Many decoding turns at once are what they would be one by one."""

import random

import numpy as np
import pytest

from runtime.scheduling.decode_rows import TAIL
from runtime.scheduling.decoders import Decoders
from runtime.scheduling.sequence import Sequence, TokenBuffer
from tests.support.requests import make_request

BLOCK = 4


def _sequence(number: int, prompt: int, tenant: str = "t") -> Sequence:
    request = make_request(prompt, request_id=f"r{number}", tenant=tenant, max_new_tokens=1 << 20)
    sequence = Sequence(request, TokenBuffer(request.new_tokens), arrival_s=0.0)
    sequence.num_computed = prompt
    sequence.buffer.append(1000 + number)
    sequence.block_limit = 1 << 30
    return sequence


@pytest.mark.parametrize("seed", range(12))
def test_turns_that_speak_together_hold_the_tokens_of_turns_that_speak_alone(seed: int) -> None:
    rng = random.Random(seed)
    decoders = Decoders(BLOCK)
    expected: dict[Sequence, tuple[list[int], int]] = {}
    resting: list[Sequence] = []
    for number in range(400):
        if rng.random() < 0.2:
            sequence = _sequence(number, rng.randint(1, 90))
            resting.append(sequence)
            expected[sequence] = (sequence.buffer.view().tolist(), sequence.num_computed)
        if resting and rng.random() < 0.5:
            decoders.add(resting.pop(rng.randrange(len(resting))))
        if len(decoders) and rng.random() < 0.25:
            sequence = rng.choice(decoders.sequences)
            decoders.discard(sequence)
            if rng.random() < 0.5:
                resting.append(sequence)
            assert (sequence.buffer.view().tolist(), sequence.num_computed) == expected[sequence]
        decoders.tidy()
        apart = {s for s in decoders.sequences if rng.random() < 0.1}
        for sequence in apart:  # a forced run, or a draft that was accepted
            known, computed = expected[sequence]
            more = [rng.randrange(1000) for _ in range(rng.randint(1, 5))]
            for token in more:
                sequence.buffer.append(token)
            sequence.num_computed += 1
            expected[sequence] = (known + more, computed + 1)
        decodes = decoders.decodes(without=apart)
        assert not apart & set(decodes.sequences)
        tokens = np.array([rng.randrange(1000) for _ in decodes.sequences], dtype=np.int32)
        publishing = decoders.decoded(decodes, tokens)
        for sequence, token in zip(decodes.sequences, tokens.tolist(), strict=True):
            known, computed = expected[sequence]
            if len(known) // BLOCK > computed // BLOCK:
                assert sequence in publishing
            expected[sequence] = ([*known, token], len(known))
        for sequence, (known, computed) in expected.items():
            assert (len(sequence.buffer), sequence.num_computed) == (len(known), computed)
            if rng.random() < 0.03:
                assert sequence.buffer.view().tolist() == known
    for sequence, (known, _) in expected.items():
        assert sequence.buffer.view().tolist() == known


def test_a_tail_that_nobody_looks_at_is_stored_before_it_is_full() -> None:
    decoders = Decoders(1 << 20)
    turns = [_sequence(number, prompt=3) for number in range(5)]
    for turn in turns:
        decoders.add(turn)
    for step in range(3 * TAIL):
        decoders.decoded(decoders.decodes(without=set()), np.full(5, step, dtype=np.int32))
    for turn in turns:
        assert turn.buffer.view()[4:].tolist() == list(range(3 * TAIL))


def test_only_turns_with_more_tokens_than_their_blocks_hold_need_some() -> None:
    decoders = Decoders(BLOCK)
    turns = [_sequence(number, prompt=5) for number in range(3)]
    for turn in turns:
        decoders.add(turn)
    turns[1].block_limit = 5
    assert decoders.that_need_blocks() == [turns[1]]
    turns[1].block_limit = 6
    assert not decoders.that_need_blocks()
    turns[2].block_limit = 5
    decoders.discard(turns[2])
    assert not decoders.that_need_blocks()


def test_what_all_hold_and_whose_they_are_follows_who_comes_and_goes() -> None:
    decoders = Decoders(BLOCK)
    turns = [_sequence(n, prompt=4, tenant=tenant) for n, tenant in enumerate("aab")]
    for turn in turns:
        decoders.add(turn)
    assert decoders.by_tenant == {"a": 2, "b": 1}
    assert (decoders.num_tokens, decoders.num_pending) == (15, 3)
    decoders.discard(turns[2])
    decoders.discard(turns[0])
    decoders.discard(turns[0])
    assert decoders.by_tenant == {"a": 1}
    assert (len(decoders), turns[0] in decoders, turns[1] in decoders) == (1, False, True)
    assert (decoders.num_tokens, decoders.num_pending) == (5, 1)


def test_a_block_is_published_once() -> None:
    decoders = Decoders(BLOCK)
    turn = _sequence(0, prompt=4)
    decoders.add(turn)
    published = []
    for _ in range(9):
        decodes = decoders.decodes(without=set())
        published.append(bool(decoders.decoded(decodes, np.zeros(1, dtype=np.int32))))
    assert published == [False, False, False, True, False, False, False, True, False]
