"""Drawn tokens become a turn's tokens: drafts compared, limits kept, forced runs behind."""

import numpy as np
import pytest

from runtime.engine.background import Pieces
from runtime.engine.emission import NOTHING_TAKEN, Emission, Settlement, Taken
from runtime.engine.step_outputs import OutputCollector
from runtime.grammar.closing import Work, complete
from runtime.grammar.state import GrammarState
from runtime.grammar.stop_search import StopSearch
from runtime.messages import (
    ErrorKind,
    FinishReason,
    SamplingParams,
    SequenceOutput,
    TokenLogprob,
)
from runtime.model.sampler import Sampled
from runtime.scheduling.sequence import Sequence, TokenBuffer
from runtime.scheduling.step_plan import Chunk, Decodes
from runtime.tokenizer import Tokenizer
from tests.support.drafts import draft_of
from tests.support.grammars import compiler, encode, small_tokenizer
from tests.support.requests import make_request
from tools_api.grammar import GrammarSpec

PROMPT = [5, 6, 7]
CHOICE = GrammarSpec(lark='start: /[ab]/ " and nothing else"')


class Rig:
    """One turn, and what is drawn for it."""

    def __init__(self, tokenizer: Tokenizer, grammar: GrammarSpec | None = None, **more: object):
        self.tokenizer = tokenizer
        self.outputs = OutputCollector()
        self.emission = Emission(tokenizer=tokenizer, outputs=self.outputs, max_context_tokens=1000)
        limit = more.pop("limit", 40)
        request = make_request(
            PROMPT,
            max_new_tokens=limit,  # type: ignore[arg-type]
            sampling=SamplingParams(**more),  # type: ignore[arg-type]
        )
        self.sequence = Sequence(request, TokenBuffer(request.new_tokens), arrival_s=0.0)
        if stops := request.sampling.stop:
            self.sequence.stop_search = StopSearch(stops, tokenizer, grammar)
        if grammar is not None:
            self.sequence.grammar = GrammarState(compiler(tokenizer).compile(grammar), tokenizer)

    def draw(
        self,
        drawn: list[int],
        draft: list[int],
        *,
        finite: bool = True,
        certain: tuple[int, ...] = (),
    ) -> tuple[Taken, SequenceOutput]:
        wanted = self.sequence.request.sampling.top_logprobs is not None
        sampled = Sampled(
            tokens=np.array(drawn),
            logprobs=tuple(TokenLogprob(token=t, logprob=-0.5) if wanted else None for t in drawn),
            finite=np.full(len(drawn), finite),
        )
        chunk = Chunk(self.sequence, 0, 3, samples=True, draft=draft_of(draft, certain))
        taken = complete(self.emission.taking(chunk, sampled, 0))
        return taken, self.outputs.collect()[0]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize(
    ("draft", "emitted", "accepted"),
    [([], [11], 0), ([11], [11, 12], 1), ([11, 12], [11, 12, 13], 2), ([11, 9], [11, 12], 1)],
)
def test_a_draft_is_taken_as_far_as_it_is_what_was_drawn(
    tokenizer: Tokenizer, draft: list[int], emitted: list[int], accepted: int
) -> None:
    taken, output = Rig(tokenizer).draw([11, 12, 13], draft)
    assert output.new_tokens.tolist() == emitted
    assert taken.accepted == output.accepted == accepted
    assert (output.drafted, output.forwards) == (len(draft), 1)


PLAIN: list[tuple[dict[str, object], int, bool]] = [
    ({}, 11, True),
    ({"limit": 3}, 11, True),
    ({"limit": 2}, 11, False),
    ({"stop": ("x",)}, 11, False),
    ({"top_logprobs": 1}, 11, False),
    ({}, -1, False),
]


def _decodes(rigs: list[Rig]) -> Decodes:
    lengths = np.array([len(rig.sequence.buffer) for rig in rigs])
    turns = tuple([rig.sequence for rig in rigs])
    return Decodes(turns, np.arange(len(rigs)), lengths - 1, lengths)


@pytest.mark.parametrize(("request_", "drawn", "plain"), PLAIN)
def test_only_turns_that_nothing_else_has_a_say_in_are_taken_together(
    tokenizer: Tokenizer, request_: dict[str, object], drawn: int, plain: bool
) -> None:
    rig = Rig(tokenizer, None, **request_)
    rig.sequence.buffer.append(9)
    sampled = Sampled(
        tokens=np.array([drawn], dtype=np.int32),
        logprobs=(None,),
        finite=np.array([drawn >= 0]),
    )
    assert rig.emission.take_plain(_decodes([rig]), sampled) == ([0] if plain else [])
    outputs = rig.outputs.collect()
    assert [output.new_tokens.tolist() for output in outputs] == ([[drawn]] if plain else [])
    assert all(output.forwards == 1 for output in outputs)


def test_neither_an_end_nor_a_grammar_nor_the_last_place_is_taken_together(
    tokenizer: Tokenizer,
) -> None:
    ends, bound, full = Rig(tokenizer), Rig(tokenizer, CHOICE), Rig(tokenizer)
    full.sequence.buffer.extend(np.zeros(996, dtype=np.int32))
    rigs = [ends, bound, full]
    sampled = Sampled(
        tokens=np.array([tokenizer.end_of_turn_id, 11, 11], dtype=np.int32),
        logprobs=(None, None, None),
        finite=np.ones(3, dtype=np.bool_),
    )
    for place, rig in enumerate(rigs):
        alone = Sampled(
            tokens=sampled.tokens[place : place + 1], logprobs=(None,), finite=sampled.finite[:1]
        )
        assert not rig.emission.take_plain(_decodes([rig]), alone)
    assert not ends.emission.take_plain(_decodes(rigs), sampled)


def test_what_the_grammar_forces_behind_a_drawn_token_comes_with_it(tokenizer: Tokenizer) -> None:
    rig = Rig(tokenizer, CHOICE, top_logprobs=0)
    (token,) = encode(tokenizer, "b")
    taken, output = rig.draw([token], [])
    assert taken.finish is FinishReason.STOP
    expected = [*encode(tokenizer, "b and nothing else"), tokenizer.end_of_turn_id]
    assert output.new_tokens.tolist() == expected
    assert output.forced == len(expected) - 1
    assert [p.token for p in output.logprobs] == expected
    assert {p.logprob for p in output.logprobs[1:]} == {0.0}


def test_an_output_that_begins_forced_has_drafted_nothing(tokenizer: Tokenizer) -> None:
    rig = Rig(tokenizer, GrammarSpec(lark='start: "nothing else"'))
    _, output = rig.draw([], [], certain=(0,))
    assert (output.drafted, output.accepted) == (0, 0)
    assert output.forced == len(output.new_tokens) > 0


def test_what_a_draft_knows_to_be_forced_needs_no_row(tokenizer: Tokenizer) -> None:
    spec = GrammarSpec(lark='start: /[ab]/ "-" /[cd]/ "!"')
    whole = encode(tokenizer, "a") + encode(tokenizer, "-") + encode(tokenizer, "d")
    for drawn_last, accepted in (("d", 3), ("c", 2)):
        rig = Rig(tokenizer, spec, top_logprobs=0)
        drawn = [whole[0], *encode(tokenizer, drawn_last), *encode(tokenizer, "!")]
        taken, output = rig.draw(drawn, whole, certain=(1,))
        assert taken.accepted == accepted
        expected = encode(tokenizer, "a-" + drawn_last + "!")
        assert output.new_tokens.tolist() == [*expected, tokenizer.end_of_turn_id]
        assert (output.drafted, output.accepted) == (2, accepted - 1)
        assert output.forced == 3, "one of the draft, and what comes behind it"
        assert [p.logprob for p in output.logprobs] == [-0.5, 0.0, -0.5, 0.0, 0.0]


def test_a_draft_that_is_wrong_about_what_is_forced_leaves_a_token_to_compute(
    tokenizer: Tokenizer,
) -> None:
    rig = Rig(tokenizer, GrammarSpec(lark="start: /[ab][cd][ef]/"))
    draft = encode(tokenizer, "a") + encode(tokenizer, "c")
    taken, output = rig.draw([draft[0], *encode(tokenizer, "e")], draft, certain=(1,))
    assert (taken.accepted, taken.finish) == (0, None)
    assert output.new_tokens.tolist() == draft[:1]


def test_a_measurement_may_have_forced_tokens_drawn(tokenizer: Tokenizer) -> None:
    rig = Rig(tokenizer, CHOICE)
    rig.emission.takes_forced_tokens = False
    taken, output = rig.draw(encode(tokenizer, "b"), [])
    assert (taken.finish, len(output.new_tokens), output.forced) == (None, 1, 0)


def test_limits_and_ends_cut_inside_a_draft(tokenizer: Tokenizer) -> None:
    drawn = [11, 12, 13, 14]
    taken, output = Rig(tokenizer, limit=2).draw(drawn, drawn[:3])
    assert (taken.finish, output.new_tokens.tolist()) == (FinishReason.LENGTH, [11, 12])
    ended = [11, tokenizer.end_of_turn_id, 13, 14]
    taken, output = Rig(tokenizer).draw(ended, ended[:3])
    assert (taken.finish, output.new_tokens.tolist()) == (FinishReason.STOP, ended[:2])
    rig = Rig(tokenizer)
    rig.emission = Emission(tokenizer=tokenizer, outputs=rig.outputs, max_context_tokens=5)
    taken, output = rig.draw(drawn, drawn[:3])
    assert (taken.finish, output.new_tokens.tolist()) == (FinishReason.CONTEXT, [11, 12])


def test_a_stop_string_may_lie_across_tokens(tokenizer: Tokenizer) -> None:
    drawn = [t for letter in "abcd" for t in encode(tokenizer, letter)]
    taken, output = Rig(tokenizer, stop=("bc",)).draw(drawn, drawn[:3])
    assert (taken.finish, output.new_tokens.tolist()) == (FinishReason.STOP_STRING, drawn[:3])


def test_rows_that_yield_no_token_end_the_turn(tokenizer: Tokenizer) -> None:
    taken, output = Rig(tokenizer).draw([11], [], finite=False)
    assert (taken.error, len(output.new_tokens)) == (ErrorKind.NOT_FINITE, 0)
    taken, _ = Rig(tokenizer).draw([-1], [])
    assert taken.error is ErrorKind.GRAMMAR


def test_the_limit_puts_the_legal_end_in_the_place_of_what_was_drawn(tokenizer: Tokenizer) -> None:
    spec = GrammarSpec(lark='start: /[ab]{1,30}/ "."')
    rig = Rig(tokenizer, spec, limit=3, top_logprobs=0)
    drawn = encode(tokenizer, "a")
    rig.draw(drawn, [])
    taken, output = rig.draw(drawn, [])
    assert taken.finish is FinishReason.STOP
    assert output.new_tokens.tolist() == [*encode(tokenizer, "."), tokenizer.end_of_turn_id]
    assert [p.token for p in output.logprobs] == output.new_tokens.tolist()


def test_a_settlement_is_void_once_its_turn_ended_or_gave_way(tokenizer: Tokenizer) -> None:
    def work() -> Work[Taken]:
        yield
        return NOTHING_TAKEN

    turn, other = Rig(tokenizer).sequence, Rig(tokenizer).sequence

    def settlement_of(preemptions: int) -> Settlement:
        return Settlement(
            sequence=turn,
            num_drafted=0,
            pieces=Pieces(work()),
            preemptions=preemptions,
            settled=lambda _: None,
        )

    settlement = settlement_of(0)
    assert settlement.holds(turn)
    assert not settlement.holds(other)
    assert not settlement.is_void
    turn.preemptions += 1
    assert settlement.is_void
    again = settlement_of(1)
    assert not again.is_void
    turn.finish = FinishReason.CANCELLED
    assert again.is_void
