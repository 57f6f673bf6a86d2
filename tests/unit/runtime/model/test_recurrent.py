"""What descriptions of recurrent mixers refuse, and what they add up to."""

import math

import pytest

from runtime.model.recurrent import GatedDelta, Mamba2, ShortConv


def delta(**changes: int) -> GatedDelta:
    sizes = {"key_heads": 2, "value_heads": 4, "key_dim": 6, "value_dim": 5, "taps": 4}
    return GatedDelta(**{**sizes, **changes})


def mamba(**changes: float) -> Mamba2:
    sizes = {"heads": 4, "head_dim": 3, "groups": 2, "state_dim": 5, "taps": 4}
    return Mamba2(**{**sizes, **changes})  # type: ignore[arg-type]


def test_convolutions_are_over_a_few_tokens() -> None:
    with pytest.raises(ValueError, match="a convolution of 0 channels, at least 1"):
        ShortConv(channels=0, taps=3)
    for make in (lambda taps: ShortConv(channels=4, taps=taps), lambda taps: delta(taps=taps)):
        for taps in (1, 17):
            with pytest.raises(ValueError, match=f"a convolution over {taps} tokens, 2 to 16"):
                make(taps)
    with pytest.raises(ValueError, match="a convolution over 17 tokens, 2 to 16"):
        mamba(taps=17)


def test_heads_are_in_equal_groups() -> None:
    with pytest.raises(ValueError, match="key_dim is 0, at least 1"):
        delta(key_dim=0)
    with pytest.raises(ValueError, match="4 heads of values are not a multiple of 3 of keys"):
        delta(key_heads=3)
    with pytest.raises(ValueError, match="4 heads are not in 3 equal groups"):
        mamba(groups=3)
    with pytest.raises(ValueError, match="state_dim is 0, at least 1"):
        mamba(state_dim=0)


@pytest.mark.parametrize(("least", "most"), [(-1.0, math.inf), (2.0, 1.0)])
def test_steps_are_within_something(least: float, most: float) -> None:
    with pytest.raises(ValueError, match=f"steps within {least} and {most}"):
        mamba(least_step=least, most_step=most)


def test_weights_add_up() -> None:
    assert ShortConv(channels=4, taps=3, bias=True).num_parameters(4) == 16 * 4 + 12 + 20
    assert delta().channels == 2 * 12 + 20
    assert delta().num_parameters(7) == 7 * (44 + 8 + 40) + 44 * 4 + 8 + 5
    maps = 7 * (12 + 32 + 4) + 12 * 7
    assert mamba().num_parameters(7) == maps + 32 * 5 + 3 * 4 + 12
