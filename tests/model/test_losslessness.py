"""Speculation changes how many steps a turn takes and nothing else.

Path by path: the same seeds give the same tokens with and without drafts and forced runs, in
float64. In law: on a model with few outputs the engine's outputs fit the exact law, which
is computed here from the logits and the grammar in a few lines of their own; four verifiers
with classic faults do not. KEEPWARM_LAW_SAMPLES sets how many outputs are drawn for that.
"""

import itertools
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch

from runtime.engine.emission import Taken
from runtime.grammar.closing import Work
from runtime.messages import SamplingParams
from runtime.model.batch import StepBatch
from runtime.model.sampler import Sampled
from runtime.scheduling.step_plan import Chunk
from tests.support.engine_driver import END_OF_TURN, EngineDriver
from tests.support.table_model import FixedDrafts, replace_model
from tools_api.grammar import GrammarSpec

Path = tuple[int, ...]
GRAMMARS = (
    None,
    GrammarSpec(lark='start: "yes, " /[a-e]{2}/ " and " ("left" | "right") " of " /[0-9]{1,2}/'),
    GrammarSpec(
        lark='start: %json {"type": "object", "properties": {"kind": {"enum": ["aa", '
        '"ab"]}, "note": {"type": "string", "maxLength": 6}}, "required": ["kind", "note"], '
        '"additionalProperties": false, "x-guidance": {"whitespace_flexible": false}}'
    ),
)


def _mixed_batch(
    temperature: float, drafts: FixedDrafts | None, *, plain: bool = False
) -> tuple[list[list[int]], list[list[int]], int]:
    """Prompts and outputs of eight turns side by side, each free or constrained, and how many
    drafted tokens were accepted."""
    most = 0 if plain else 16
    driver = EngineDriver.load(drafter=drafts, max_draft_tokens=most, draft_tokens_per_step=4096)
    driver.engine.emission.takes_forced_tokens = not plain
    rng = random.Random(5)
    prompts = [[rng.randrange(97, 123) for _ in range(5 + 3 * number)] for number in range(8)]
    names = [
        driver.request(
            prompt,
            max_new_tokens=48,
            sampling=SamplingParams(temperature=temperature, seed=number, top_k=number % 3),
            grammar=GRAMMARS[number % 3],
        )
        for number, prompt in enumerate(prompts)
    ]
    driver.run()
    results = [driver.results[name] for name in names]
    return prompts, [r.tokens for r in results], sum(r.accepted for r in results)


def _guesses(transcripts: Sequence[list[int]], length: int) -> FixedDrafts:
    """Drafts of ``length`` tokens that are right about four times in five."""
    rng = random.Random(length)

    def propose(tokens: list[int]) -> list[int]:
        (truth,) = (t for t in transcripts if t[: len(tokens)] == tokens)
        draft = truth[len(tokens) : len(tokens) + length]
        return [t if rng.random() < 0.8 else rng.randrange(97, 123) for t in draft]

    return FixedDrafts(propose)


@pytest.mark.tail
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.3])
@pytest.mark.samples(2)
def test_every_path_is_that_of_a_run_without_drafts_and_forced_tokens(temperature: float) -> None:
    prompts, plain, _ = _mixed_batch(temperature, None, plain=True)
    transcripts = [prompt + output for prompt, output in zip(prompts, plain, strict=True)]
    for length in (0, 1, 4, 16):
        drafts = _guesses(transcripts, length)
        _, outputs, accepted = _mixed_batch(temperature, drafts)
        assert outputs == plain, length
        proposed = sum(map(len, drafts.proposed))
        assert (0 < accepted < proposed) if length else accepted == proposed == 0
    _, outputs, _ = _mixed_batch(temperature, None)
    assert outputs == plain, "with the engine's own drafter"


def test_forced_tokens_inside_drafts_get_no_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's own drafter, on turns that say the same as others before them: of the tokens
    computed for a draft, forced ones have no row, and what comes out is what a run without
    drafts says, log-probabilities included."""
    sampling = SamplingParams(temperature=0.7, seed=1, top_logprobs=0)
    results, gaps = [], []
    firsts: set[int] = set()
    for most in (0, 16):
        driver = EngineDriver.load(max_draft_tokens=most)
        forward = driver.runner.forward
        gaps.append(0)

        def counted(
            batch: StepBatch, forward: Callable[[StepBatch], torch.Tensor] = forward
        ) -> torch.Tensor:
            gaps[-1] += int((np.diff(batch.logit_rows) - 1).sum())
            if batch.context_lengths[0] == 3:
                firsts.add(len(batch.logit_rows))
            return forward(batch)

        monkeypatch.setattr(driver.runner, "forward", counted)
        turns = [
            driver.turn([97, 98, 99], max_new_tokens=60, grammar=grammar, sampling=sampling)
            for grammar in GRAMMARS[1:] * 3
        ]
        results.append(turns)
    for plain, drafted in zip(*results, strict=True):
        assert plain.tokens == drafted.tokens
        logprobs = [[p.logprob for p in turn.logprobs] for turn in (plain, drafted)]
        assert logprobs[0] == pytest.approx(logprobs[1])
        assert plain.forced == drafted.forced
    assert sum(turn.accepted for turn in results[1]) > 0
    assert gaps[0] == 0
    assert firsts == {0}, "both grammars begin with a forced token"
    assert gaps[1] > 10


# The law

SAMPLES = int(os.environ.get("KEEPWARM_LAW_SAMPLES", "4000"))
LETTERS = [ord(c) for c in "abcdefghijkl"]
CHOICES = ("abc", "efgh", "d", "ijk", "abcd", "kl")
"""What the grammar allows at each place of an output; one of them is forced."""
ENUMERABLE = GrammarSpec(lark="start: " + " ".join(f"/[{letters}]/" for letters in CHOICES))
PROMPT = [ord("a"), ord("b")]
VOCAB = 272
_LOGITS = np.full((len(PROMPT) + len(CHOICES), VOCAB, VOCAB), -30.0)
_LOGITS[:, :, LETTERS] = np.random.default_rng(11).normal(
    0, 1.2, (*_LOGITS.shape[:2], len(LETTERS))
)


def _logits_at(token: int, position: int) -> np.ndarray:
    logits: np.ndarray = _LOGITS[min(position, len(_LOGITS) - 1), token]
    return logits


def _masked(before: int, place: int) -> dict[int, float]:
    """Probabilities of the token at ``place`` of the output behind the token ``before``."""
    allowed = [ord(c) for c in CHOICES[place]]
    weights = np.exp(_LOGITS[len(PROMPT) - 1 + place, before, allowed])
    return dict(zip(allowed, (weights / weights.sum()).tolist(), strict=True))


def _unmasked(before: int, place: int, token: int) -> float:
    weights = np.exp(_LOGITS[len(PROMPT) - 1 + place, before])
    return float(weights[token] / weights.sum())


def _exact_law() -> dict[Path, float]:
    law: dict[Path, float] = {}
    for letters in itertools.product(*CHOICES):
        path = tuple(map(ord, letters))
        before = (PROMPT[-1], *path)
        law[path] = math.prod(_masked(before[n], n)[token] for n, token in enumerate(path))
    assert sum(law.values()) == pytest.approx(1)
    return law


LAW = _exact_law()


def _drafts(tokens: list[int]) -> list[int]:
    """A draft from where an output stands: the first legal letters, sometimes an illegal one.
    A function of the past alone, as the law of verification demands."""
    place = len(tokens) - len(PROMPT)
    draft = [ord(letters[len(tokens) % len(letters)]) for letters in CHOICES[place : place + 2]]
    if tokens[-1] == ord("k"):
        draft[-1:] = [ord("a") + 15]
    return draft


def _outputs(count: int, mutate: Callable[[EngineDriver], None] | None) -> Iterator[Path]:
    driver = EngineDriver.load(
        drafter=FixedDrafts(_drafts), draft_tokens_per_step=4096, num_blocks=2048
    )
    replace_model(driver, _logits_at)
    if mutate is not None:
        mutate(driver)
    for start in range(0, count, 200):
        names = [
            driver.request(
                PROMPT,
                max_new_tokens=20,
                sampling=SamplingParams(temperature=1.0, seed=start + n),
                grammar=ENUMERABLE,
            )
            for n in range(min(200, count - start))
        ]
        driver.run()
        for name in names:
            result = driver.results.pop(name)
            assert result.tokens[-1] == END_OF_TURN
            yield tuple(result.tokens[:-1])


def _p_value(outputs: Sequence[Path]) -> float:
    """Pearson's chi-square against the exact law, cells of less than five put together."""
    seen = Counter(outputs)
    assert seen.keys() <= LAW.keys()
    cells: list[tuple[float, int]] = []
    rest_expected, rest_seen = 0.0, 0
    for path, probability in LAW.items():
        expected = probability * len(outputs)
        if expected >= 5:
            cells.append((expected, seen[path]))
        else:
            rest_expected, rest_seen = rest_expected + expected, rest_seen + seen[path]
    if rest_expected >= 5:
        cells.append((rest_expected, rest_seen))
    statistic = sum((count - expected) ** 2 / expected for expected, count in cells)
    half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


@pytest.mark.tail
def test_outputs_follow_the_exact_law() -> None:
    assert len(LAW) == 288
    assert _p_value(list(_outputs(SAMPLES, None))) > 1e-4


class _Wrong:
    """A verifier with a planted fault: changes what was drawn before the engine looks at it."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._rng = random.Random(3)

    def __call__(self, driver: EngineDriver) -> None:
        emission = driver.engine.emission
        taking = emission.taking

        def wrong(chunk: Chunk, sampled: Sampled, first_row: int) -> Work[Taken]:
            self._falsify(chunk, sampled, first_row)
            return taking(chunk, sampled, first_row)

        emission.taking = wrong  # type: ignore[method-assign]

    def _falsify(self, chunk: Chunk, sampled: Sampled, first_row: int) -> None:
        tokens = chunk.sequence.buffer.view().tolist()
        draft: list[int] = chunk.draft.tokens.tolist()
        for offset, token in enumerate(draft):
            before = [*tokens, *draft][len(tokens) + offset - 1]
            place = self._place(tokens) + offset
            law = _masked(before, place)
            row = first_row + offset
            if token not in law:
                return
            sampled.tokens[row] = self._verdict(token, law, before, place)
            if sampled.tokens[row] != token:
                return
        place = self._place(tokens) + len(draft)
        if self._fault == "greedy bonus" and draft and place < len(CHOICES):
            law = _masked(draft[-1], place)
            sampled.tokens[first_row + len(draft)] = max(law, key=law.__getitem__)

    def _verdict(self, token: int, law: dict[int, float], before: int, place: int) -> int:
        if self._fault == "all that is legal":
            return token
        accepts = law[token]
        if self._fault == "unmasked probability":
            accepts = _unmasked(before, place, token)
        if self._rng.random() < accepts:
            return token
        others = dict(law)
        if self._fault != "no residual" and len(law) > 1:
            del others[token]
        return self._rng.choices(list(others), list(others.values()))[0]

    @staticmethod
    def _place(tokens: list[int]) -> int:
        return len(tokens) - len(PROMPT)


@pytest.mark.tail
def test_a_verifier_by_rejection_passes_the_same_test() -> None:
    """Guards the next test: its verifier is right where no fault is planted."""
    assert _p_value(list(_outputs(1000, _Wrong("none")))) > 1e-4


@pytest.mark.tail
@pytest.mark.parametrize(
    "fault", ["unmasked probability", "all that is legal", "no residual", "greedy bonus"]
)
@pytest.mark.samples(1)
def test_a_wrong_verifier_is_found_out(fault: str) -> None:
    assert _p_value(list(_outputs(1000, _Wrong(fault)))) < 1e-4
