"""Where layers lie in the pool, together and apart by whether they have a window."""

from dataclasses import replace

from runtime.model.kv_layout import kv_layout
from runtime.model.kv_shape import KVShape
from tests.unit.runtime.model.test_kv_shape import NARROW, WIDE, with_mixers

NEAR = replace(NARROW, window=8)


def test_layers_with_a_window_are_apart_where_they_are_asked_to() -> None:
    mixers = (NARROW, NEAR, WIDE, NEAR, replace(NEAR, shares=3))
    together, apart = kv_layout(mixers), kv_layout(mixers, apart=True)
    assert together.places == ((0, 0), (0, 1), (1, 0), (0, 2), (0, 2))
    assert not any(together.windowed)
    assert apart.places == ((0, 0), (1, 0), (2, 0), (1, 1), (1, 1))
    assert apart.windowed == (False, True, False, True, True)
    shape = KVShape(rows=2, heads=2, size=6)
    kinds = [(group.shape, group.layers, group.windowed) for group in apart.groups]
    assert kinds[:2] == [(shape, 1, False), (shape, 2, True)]


def test_rows_are_given_back_where_some_layers_see_all_and_none_keeps_a_state() -> None:
    assert with_mixers(NARROW, NEAR, replace(NARROW, window=20)).window == 20
    assert with_mixers(NARROW, WIDE).window is None
    assert with_mixers(NEAR, NEAR).window is None
