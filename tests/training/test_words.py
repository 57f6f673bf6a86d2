"""Words of the default model's training: the split is by letters, and nothing repeats."""

import random

import pytest

from examples.train_agent_model.words import BEGINNINGS, ENGLISH, WordSupply, is_held_out


@pytest.mark.parametrize("held_out", [True, False])
def test_words_come_from_one_side_of_the_split_and_do_not_repeat(held_out: bool) -> None:
    supply = WordSupply(random.Random(1), held_out=held_out)
    drawn = [supply.word() for _ in range(500)]
    assert {is_held_out(word) for word in drawn} == {held_out}
    assert len(set(drawn)) == len(drawn)


def test_the_split_ignores_case() -> None:
    assert all(is_held_out(word) == is_held_out(word.capitalize()) for word in ENGLISH)


def test_about_a_fifth_of_the_english_words_is_held_out() -> None:
    share = sum(map(is_held_out, ENGLISH)) / len(ENGLISH)
    assert 0.15 < share < 0.25


def test_a_restart_allows_words_again() -> None:
    supply = WordSupply(random.Random(1), held_out=True, english_share=1.0)
    first = {supply.word() for _ in range(80)}
    supply.restart()
    assert first & {supply.word() for _ in range(80)}


@pytest.mark.parametrize("held_out", [True, False])
def test_some_words_of_training_begin_as_tools_names_do(held_out: bool) -> None:
    supply = WordSupply(random.Random(1), held_out=held_out)
    drawn = [supply.word() for _ in range(3000)]
    share = sum(word.startswith(tuple(BEGINNINGS)) for word in drawn) / len(drawn)
    assert share < 0.015 if held_out else 0.015 < share < 0.05
