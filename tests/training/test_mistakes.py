"""What the default model's mistakes are called, and that all of them are counted."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.train_agent_model.mistakes import (
    Place,
    Turn,
    forced_scores,
    forced_turns,
    load_model,
    main,
    place_in_call,
)
from examples.train_agent_model.model import AgentModel, shape_of
from tests.support.training import MODEL, shipped_encoder

CALL = (
    '<tool_call>\n{"name": "get_cost", "arguments": {"item": "Fo_1 b", "count": 7.5}}\n</tool_call>'
)
TWO = f"{CALL}\n{CALL}<|im_end|>"


@pytest.mark.parametrize(
    ("after", "place"),
    [
        ("<tool_call>", Place.AROUND),
        ('{"name": "', Place.NAME_BEGIN),
        ("get_", Place.NAME_REST),
        ("get_cost", Place.NAME_REST),
        ('"arguments": ', Place.PARAMETER),
        ('"arguments": {"', Place.PARAMETER),
        ('{"it', Place.PARAMETER),
        ('{"item', Place.PARAMETER),
        ('"item": ', Place.VALUE_BEGIN),
        ('"item": "', Place.VALUE_BEGIN),
        ('"item": "Fo', Place.VALUE),
        ("Fo_1 ", Place.VALUE),
        ("Fo_1 b", Place.VALUE),
        ('b"', Place.AFTER_VALUE),
        ('b",', Place.PARAMETER),
        ('b", ', Place.PARAMETER),
        ('b", "cou', Place.PARAMETER),
        ('"count": ', Place.VALUE_BEGIN),
        ('"count": 7', Place.VALUE),
        ("7.5}}", Place.AROUND),
        ("</tool_call>", Place.AROUND),
    ],
)
def test_a_mistake_is_named_by_what_should_have_come(after: str, place: Place) -> None:
    for turn in (CALL, TWO):
        for start in [i for i in range(len(turn)) if turn.startswith(after, i)]:
            assert place_in_call(turn[: start + len(after)]) is place


def test_a_turn_goes_wrong_at_its_first_wrong_token() -> None:
    def turn(wrong_at: int | None, *, is_call: bool) -> Turn:
        return Turn(is_call=is_call, wanted=CALL, wrong_at=wrong_at, said="")

    assert turn(None, is_call=True).place is None
    assert turn(0, is_call=True).place is turn(0, is_call=False).place is Place.CALL_OR_ANSWER
    assert turn(5, is_call=False).place is Place.ANSWER
    assert turn(len('<tool_call>\n{"name": "'), is_call=True).place is Place.NAME_BEGIN


def test_every_turn_of_a_session_is_looked_at_and_an_untrained_model_has_none_right() -> None:
    encoder = shipped_encoder()
    model = AgentModel(shape_of(MODEL), seed=0)
    turns = list(forced_turns(model, encoder, 3))
    assert len(turns) >= 12
    assert {turn.is_call for turn in turns} == {True, False}
    assert all(turn.wanted.endswith("<|im_end|>") for turn in turns)
    assert all(turn.wrong_at is not None for turn in turns)
    assert all(
        not turn.wanted[turn.wrong_at :].startswith(turn.said)
        for turn in turns
        if turn.wrong_at is not None and turn.said
    )
    assert forced_scores(model, encoder, 3) == {"call": 0.0, "answer": 0.0}


def test_the_sessions_and_how_their_tools_answer_can_be_chosen() -> None:
    encoder = shipped_encoder()
    model = AgentModel(shape_of(MODEL), seed=0)

    def wanted(**options: Any) -> list[str]:
        return [turn.wanted for turn in forced_turns(model, encoder, 2, **options)]

    assert wanted() == wanted(seed="forced", plain_share=0.0) != wanted(seed=900)
    assert wanted(plain_share=1.0) == wanted(plain_share=1.0) != wanted()


def test_the_shipped_model_has_nearly_all_right_and_a_mistake_made_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder, model = shipped_encoder(), load_model(MODEL)
    before = [turn.wrong_at for turn in forced_turns(model, encoder, 6)]
    assert sum(at is not None for at in before) <= 2
    with torch.no_grad():
        model.model.embed_tokens.weight[encoder.call_id] *= -1
    turns = list(forced_turns(model, encoder, 6))
    assert all(turn.place is Place.CALL_OR_ANSWER for turn in turns if turn.is_call)
    monkeypatch.setattr(sys, "argv", ["mistakes", "--model", str(Path(MODEL)), "--sessions", "2"])
    main()
    assert '"wrong": ' in capsys.readouterr().out
