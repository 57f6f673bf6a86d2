"""Sampling: the law of each filter, and that rows are independent."""

import numpy as np
import pytest
import torch

from kernels.masked_sampling import NO_TOKEN
from runtime.messages import SamplingParams
from runtime.model.sampler import Drawing, SampleRow, sample

VOCAB = 100


def pack(allowed: list[int]) -> np.ndarray:
    words = np.zeros(-(-VOCAB // 32), dtype=np.uint32)
    for token in allowed:
        words[token // 32] |= np.uint32(1) << np.uint32(token % 32)
    return words.view(np.int32)


def draws(logits: torch.Tensor, params: SamplingParams, count: int) -> list[int]:
    rows = [SampleRow(params=params, position=position) for position in range(count)]
    return sample(logits.expand(count, -1), rows).tokens.tolist()


def test_temperature_zero_takes_the_likeliest_allowed_token() -> None:
    logits = torch.arange(VOCAB, dtype=torch.float32)[None]
    greedy = SamplingParams(temperature=0)
    free = SampleRow(params=greedy, position=0)
    masked = SampleRow(params=greedy, position=0, mask=pack([3, 41, 7]))
    assert sample(logits.expand(2, -1), [free, masked]).tokens.tolist() == [99, 41]


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.full((VOCAB,), -torch.inf, dtype=torch.float64)
    logits[[5, 50, 95]] = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log()
    logits = logits.clamp(min=-1e4)
    tokens = draws(logits, SamplingParams(seed=3), 4000)
    shares = [tokens.count(token) / 4000 for token in (5, 50, 95)]
    assert shares == pytest.approx([0.7, 0.2, 0.1], abs=0.03)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(top_k=2), {97, 98}),
        (SamplingParams(top_p=0.7), {97, 98}),
        (SamplingParams(top_p=0.1), {98}),
        (SamplingParams(min_p=0.3), {96, 97, 98}),
        (SamplingParams(top_k=3, top_p=0.9), {96, 97, 98}),
        (SamplingParams(top_k=3, min_p=0.6), {97, 98}),
    ],
)
def test_filters_keep_exactly_the_tokens_they_name(
    params: SamplingParams, expected: set[int]
) -> None:
    logits = torch.full((VOCAB,), -30.0)
    logits[[95, 96, 97, 98]] = torch.tensor([0.08, 0.18, 0.32, 0.42]).log()
    assert set(draws(logits, params, 400)) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(5))
def test_a_row_draws_the_same_token_alone_and_in_company(seed: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(12, VOCAB)) * 3).to(dtype)
    rows = [
        SampleRow(
            params=SamplingParams(
                temperature=float(rng.choice([0, 0.5, 1.3])),
                top_k=int(rng.choice([0, 5])),
                top_p=float(rng.choice([1, 0.8])),
                min_p=float(rng.choice([0, 0.05])),
                seed=int(rng.integers(1 << 62)),
                repetition_penalty=float(rng.choice([1, 1.2])),
            ),
            position=int(rng.integers(10000)),
            emitted=rng.integers(0, VOCAB, 9, dtype=np.int32),
            mask=pack(rng.choice(VOCAB, 40).tolist()) if rng.random() < 0.5 else None,
        )
        for _ in range(12)
    ]
    together = sample(logits, rows).tokens
    alone = [int(sample(logits[i : i + 1], [row]).tokens[0]) for i, row in enumerate(rows)]
    assert together.tolist() == alone


def test_penalties_count_what_was_emitted() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [1, 2, 3]] = torch.tensor([2.0, 1.5, 1.0])
    emitted = np.array([1, 1, 2], dtype=np.int32)

    def best(**penalties: float) -> int:
        params = SamplingParams(temperature=0, **penalties)
        row = SampleRow(params=params, position=0, emitted=emitted)
        return int(sample(logits, [row]).tokens[0])

    assert best() == 1
    assert best(frequency_penalty=0.4) == 1
    assert best(frequency_penalty=0.55) == 3
    assert best(presence_penalty=0.9) == 1
    assert best(presence_penalty=1.1) == 3
    assert best(repetition_penalty=1.9) == 1
    assert best(repetition_penalty=2.1) == 3


def test_rows_that_are_not_finite_are_reported_and_the_others_live() -> None:
    logits = torch.zeros(3, VOCAB)
    logits[:, 4] = 1
    logits[0, 9] = torch.nan
    logits[1, 9] = torch.inf
    row = SampleRow(params=SamplingParams(temperature=0), position=0)
    sampled = sample(logits, [row, row, row])
    assert sampled.finite.tolist() == [False, False, True]
    assert sampled.tokens.tolist() == [NO_TOKEN, NO_TOKEN, 4]


def test_a_mask_that_allows_nothing_gives_no_token() -> None:
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature)
        row = SampleRow(params=params, position=0, mask=pack([]))
        assert sample(torch.zeros(1, VOCAB), [row]).tokens.tolist() == [NO_TOKEN]


@pytest.mark.parametrize("mask", [None, [5, 7, 40]])
def test_logprobs_are_the_models_own_among_what_the_mask_allows(mask: list[int] | None) -> None:
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(1, VOCAB)))
    params = SamplingParams(temperature=0.3, frequency_penalty=0.5, top_logprobs=2)
    emitted = np.array([5, 5, 7], dtype=np.int32)
    packed = None if mask is None else pack(mask)
    row = SampleRow(params=params, position=0, mask=packed, emitted=emitted)
    (logprob,) = sample(logits, [row]).logprobs
    assert logprob is not None
    choices = list(range(VOCAB)) if mask is None else mask
    expected = dict(zip(choices, logits[0, choices].log_softmax(-1).tolist(), strict=True))
    assert logprob.logprob == pytest.approx(expected[logprob.token])
    best = sorted(expected, key=expected.__getitem__, reverse=True)[:2]
    assert logprob.top == tuple((token, pytest.approx(expected[token])) for token in best)


def test_the_only_token_a_mask_allows_is_certain() -> None:
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(1, VOCAB)))
    params = SamplingParams(temperature=1, top_logprobs=3)
    row = SampleRow(params=params, position=0, mask=pack([5]))
    (logprob,) = sample(logits, [row]).logprobs
    assert logprob is not None
    assert (logprob.token, logprob.logprob, logprob.top) == (5, 0.0, ((5, 0.0),))


def test_log_probabilities_are_taken_before_the_logits_go() -> None:
    """The next step writes over them: a GPU's recorded steps have one place for all logits."""
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(3, VOCAB)))
    params = SamplingParams(temperature=0.7, top_logprobs=2)
    rows = [
        SampleRow(params=params, position=0),
        SampleRow(params=SamplingParams(), position=0),
        SampleRow(params=params, position=1, mask=pack([3, 4])),
    ]
    expected = sample(logits.clone(), rows)
    drawing = Drawing(logits, rows)
    logits.fill_(torch.nan)
    assert drawing.result().logprobs == expected.logprobs
    assert drawing.result().tokens.tolist() == expected.tokens.tolist()
    assert [entry is None for entry in expected.logprobs] == [False, True, False]
