"""The shapes of recurrent layers: what is refused, what their states and weights take."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.model.config import Attention, Gated, Layer, ModelConfig
from runtime.model.kv_shape import KVShape
from runtime.model.latent import Latent
from runtime.model.recurrent import (
    MOST_TAPS,
    GatedDelta,
    KimiDelta,
    Mamba2,
    OfMatrices,
    Recurrent,
    ShortConv,
)

CONV = ShortConv(channels=6, taps=3)
DELTA = GatedDelta(key_heads=2, value_heads=4, key_dim=8, value_dim=6, taps=4)
KIMI = KimiDelta(heads=3, head_dim=8, taps=4)
MAMBA = Mamba2(heads=4, head_dim=6, groups=2, state_dim=8, taps=4)
LATENT = Latent(heads=2, rank=6, plain_dim=4, rotary_dim=2, value_dim=3, rope=None)


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        *(
            (spec, {"taps": taps}, f"over {taps} tokens, 2 to 16 are served")
            for spec in (CONV, DELTA, KIMI, MAMBA)
            for taps in (1, MOST_TAPS + 1)
        ),
        (CONV, {"channels": 0}, "of 0 channels"),
        (DELTA, {"value_heads": 3}, "3 heads of values are not a multiple of 2 of keys"),
        (DELTA, {"key_dim": 0}, "key_dim is 0, at least 1"),
        (KIMI, {"heads": 0}, "heads is 0, at least 1"),
        (KIMI, {"head_dim": 0}, "head_dim is 0, at least 1"),
        (DELTA, {"most_beta": 2.5}, "betas up to 2.5: above 0, at most 2 is needed"),
        (KIMI, {"lowest": 0.0}, "logarithms of decays from 0.0 up, below 0 is needed"),
        (MAMBA, {"groups": 3}, "4 heads are not in 3 equal groups"),
        (MAMBA, {"least_step": 3.0, "most_step": 2.0}, "steps within"),
    ],
)
def test_what_cannot_be_built_is_refused(
    spec: Recurrent, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(spec, **changes)


@pytest.mark.parametrize(
    ("spec", "by_channel", "matrix"),
    [(DELTA, False, (4, 8, 6)), (KIMI, True, (3, 8, 8)), (MAMBA, False, (4, 8, 6))],
)
def test_matrices_are_of_keys_and_values(
    spec: OfMatrices, by_channel: bool, matrix: tuple[int, int, int]
) -> None:
    assert spec.by_channel == by_channel
    assert (spec.value_heads, spec.key_dim, spec.value_dim) == matrix
    assert spec.value_heads % spec.key_heads == 0


def test_parameters_add_up() -> None:
    conv = ShortConv(channels=4, taps=3, bias=True)
    assert conv.num_parameters(4) == 16 * 4 + 12 + 20
    delta = replace(DELTA, key_dim=6, value_dim=5)
    assert delta.channels == 2 * 12 + 20
    assert delta.num_parameters(7) == 7 * (44 + 8 + 40) + 44 * 4 + 8 + 5
    mamba = replace(MAMBA, head_dim=3, state_dim=5)
    maps = 7 * (12 + 32 + 4) + 12 * 7
    assert mamba.num_parameters(7) == maps + 32 * 5 + 3 * 4 + 12


def test_kimis_parameters_add_up() -> None:
    size, hidden = 3 * 8, 10
    maps = 4 * hidden * size + hidden * 3  # queries, keys, values, the output; betas
    gates = 2 * (hidden * 8 + 8 * size)
    assert KIMI.channels == 3 * size
    assert KIMI.num_parameters(hidden) == maps + gates + 3 * size * 4 + (3 + size + 8)


def test_recurrent_layers_stand_beside_latents_and_are_of_one_kind() -> None:
    def model(*mixers: Any) -> ModelConfig:
        return ModelConfig(
            model_type="x",
            vocab_size=9,
            hidden_size=10,
            layers=tuple(Layer(mixer=mixer, feed_forward=Gated(size=8)) for mixer in mixers),
            max_context_tokens=64,
        )

    config = model(KIMI, LATENT, KIMI)
    assert (config.recurrent, config.attention) == ((KIMI, KIMI), (LATENT,))
    (group,) = config.kv_groups
    assert group.shape == KVShape(rows=1, heads=1, size=8)
    with pytest.raises(ValueError, match="layers whose states differ"):
        model(KIMI, LATENT, DELTA)
    with pytest.raises(ValueError, match="without a layer of attention"):
        model(KIMI)
    with pytest.raises(ValueError, match="differ in what they are"):
        model(KIMI, LATENT, Attention(heads=2, kv_heads=1, head_dim=8))


def test_rates_of_bound_decays_have_one_axis() -> None:
    assert KIMI.rates_shape == (1, 1, 3, 1)
    assert replace(KIMI, lowest=-5.0).rates_shape == (3,)
    assert replace(KIMI, two_steps=False).rates_shape == (3,)


def test_decays_in_one_step_have_one_matrix_and_gates_another() -> None:
    between = 2 * (10 * 8 + 8 * 24)
    direct = replace(KIMI, two_steps=False)
    assert direct.num_parameters(10) == KIMI.num_parameters(10) - between + 2 * 10 * 24
