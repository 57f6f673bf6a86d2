"""What ends or changes a turn in the middle of a draft: one case each.

The model is a script (token by position) or a random one; drafts are planted. Each turn must
come out as it does without drafts, with the same finish, and leave nothing behind.
"""

from collections.abc import Callable, Sequence

import pytest

from runtime.messages import ErrorKind, FinishReason, SamplingParams
from tests.support.engine_driver import END_OF_TURN, EngineDriver, Result
from tests.support.table_model import FixedDrafts, replace_model, scripted
from tools_api.grammar import GrammarSpec

PROMPT = [ord(c) for c in "Say it. "]
CALL, END_OF_CALL = 259, 260
CALLS = GrammarSpec(
    lark='start: call ("\\n" special_0 call)*\n'
    'call: "\\n" %json {"type": "object", "properties": {"name": {"enum": ["left", "right"]}, '
    '"arguments": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": '
    '["n"], "additionalProperties": false}}, "required": ["name", "arguments"], '
    '"additionalProperties": false, "x-guidance": {"whitespace_flexible": false}} '
    '"\\n" special_1\nspecial_0: <tool_call>\nspecial_1: </tool_call>',
    trigger="<tool_call>",
)


def tokens_of(text: str) -> list[int]:
    """Bytes, with ``<`` for the call tag, ``>`` for its end and ``$`` for the turn's."""
    special = {"<": CALL, ">": END_OF_CALL, "$": END_OF_TURN}
    return [special.get(c, ord(c)) for c in text]


class Stage:
    """An engine whose model wants to say ``script``, and whose drafts are planted."""

    def __init__(self, script: Sequence[int], draft: Callable[[list[int]], list[int]]) -> None:
        self.drafts = FixedDrafts(lambda tokens: draft(tokens[len(PROMPT) :]))
        self.driver = EngineDriver.load(drafter=self.drafts)
        vocab = self.driver.tokenizer.vocab_size
        replace_model(self.driver, scripted([*PROMPT, *script], vocab))

    def turn(self, **options: object) -> Result:
        result = self.driver.turn(PROMPT, banned_tokens=(), **options)
        self.driver.engine.check()
        return result


def ahead(script: Sequence[int], length: int) -> Callable[[list[int]], list[int]]:
    """Drafts of what the script says next, and of more than it says."""
    return lambda said: [*script[len(said) : len(said) + length], 1, 2, 3][:length]


def test_an_end_of_turn_inside_a_draft_ends_the_turn() -> None:
    script = tokens_of("abcdef$")
    stage = Stage(script, ahead(script, 9))
    result = stage.turn(max_new_tokens=50)
    assert (result.tokens, result.finish) == (script, FinishReason.STOP)
    assert stage.drafts.proposed == [[*script[1:], 1, 2, 3]], "it went beyond the end"
    assert (result.drafted, result.accepted) == (9, 6)
    assert stage.drafts.verdicts == [(7, 6)]


def test_a_stop_string_inside_a_draft_ends_the_turn_at_its_token() -> None:
    script = tokens_of("one STOP two$")
    stage = Stage(script, ahead(script, 12))
    sampling = SamplingParams(temperature=0, stop=("STOP",))
    result = stage.turn(max_new_tokens=50, sampling=sampling)
    assert (result.tokens, result.finish) == (tokens_of("one STOP"), FinishReason.STOP_STRING)
    assert result.accepted == 7


@pytest.mark.parametrize("limit", range(2, 8))
def test_the_token_limit_inside_a_draft_ends_the_turn(limit: int) -> None:
    script = tokens_of("abcdefghijkl")
    stage = Stage(script, ahead(script, 6))
    result = stage.turn(max_new_tokens=limit)
    assert (result.tokens, result.finish) == (script[:limit], FinishReason.LENGTH)
    following = stage.driver.turn(
        [7], session="s1", base="s1", offset=len(PROMPT) + limit, max_new_tokens=0
    )
    assert following.finish is FinishReason.PREFILLED


def test_the_call_tag_inside_a_draft_binds_the_grammar_behind_it() -> None:
    script = tokens_of('ok <\n{"name":"right","arguments":{"n":12}}\n>$')
    wrong = tokens_of("ok <right")

    def draft(said: list[int]) -> list[int]:
        return wrong[len(said) :] if len(said) < 4 else ahead(script, 5)(said)

    stage = Stage(script, draft)
    result = stage.turn(max_new_tokens=100, grammar=CALLS)
    assert (result.tokens, result.finish) == (script, FinishReason.STOP)
    assert stage.drafts.verdicts[0][1] == 3, "as far as the tag, and no further"
    assert result.forced > 20


def test_a_whole_draft_is_taken_back_at_the_root_of_the_tree() -> None:
    """One token of prompt, nothing in the cache, every draft wrong: as if there were none."""
    script = tokens_of("abcdefgh$")
    drafts = FixedDrafts(lambda tokens: [5] * 40)
    driver = EngineDriver.load(drafter=drafts, max_draft_tokens=40, draft_tokens_per_step=64)
    replace_model(driver, scripted([9, *script], driver.tokenizer.vocab_size))
    result = driver.turn([9], max_new_tokens=20, banned_tokens=())
    assert (result.tokens, result.accepted) == (script, 0)
    assert result.drafted == 40 * 8, "each needs blocks beyond those of the turn"
    driver.engine.check()
    again = driver.turn([9, *script[:1], *[5] * 40], max_new_tokens=0)
    assert again.start is not None
    assert again.start.cached_tokens == 0, "no block holds a token that was taken back"


def test_an_empty_draft_is_an_ordinary_step() -> None:
    script = tokens_of("abc$")
    stage = Stage(script, lambda said: [])
    result = stage.turn(max_new_tokens=20)
    assert (result.tokens, result.drafted, result.forwards) == (script, 0, 4)
    assert stage.drafts.verdicts == []


@pytest.mark.parametrize("length", [1, 2, 3, 7, 16])
def test_parallel_calls_in_one_draft_come_out_whole(length: int) -> None:
    call = '\n{"name":"%s","arguments":{"n":%d}}\n>'
    script = tokens_of("<" + call % ("left", 1) + "\n<" + call % ("right", 22) + "$")
    stage = Stage(script, ahead(script, length))
    result = stage.turn(max_new_tokens=200, grammar=CALLS)
    assert (result.tokens, result.finish) == (script, FinishReason.STOP)
    assert result.accepted > 0


def test_a_grammar_that_gives_up_inside_a_draft_fails_its_turn_alone() -> None:
    hostile = GrammarSpec(lark='start: %json {"type": "string", "pattern": "^(.{0,60}x){0,60}$"}')
    script = tokens_of('"' + "x" * 100)
    stage = Stage(script, ahead(script, 16))
    failed = stage.turn(max_new_tokens=4000, grammar=hostile)
    assert (failed.finish, failed.error) == (FinishReason.ERROR, ErrorKind.GRAMMAR)
    assert failed.accepted > 0
    assert failed.tokens == script[: len(failed.tokens)]
    again = stage.turn(max_new_tokens=4000, grammar=hostile)
    assert again.tokens[:5] == script[:5], "a later turn finds the grammar unspoilt"
    assert stage.turn(max_new_tokens=5).finish is FinishReason.LENGTH


def test_a_turn_cancelled_between_draft_and_draft_leaves_a_session_that_goes_on() -> None:
    script = tokens_of("abcdefghijklmnopqrstuvwxyz")
    stage = Stage(script, ahead(script, 4))
    driver = stage.driver
    name = driver.request(PROMPT, session="s", max_new_tokens=60, banned_tokens=())
    while len(driver.results[name].tokens) < 8:
        driver.step()
    said = list(driver.results[name].tokens)
    driver.cancel(name)
    driver.run()
    driver.engine.check()
    result = driver.results[name]
    assert (result.tokens, result.finish) == (said, FinishReason.CANCELLED)
    going_on = driver.turn(
        [], session="s", base="s", offset=len(PROMPT) + len(said), max_new_tokens=6
    )
    assert going_on.tokens == script[len(said) : len(said) + 6]
