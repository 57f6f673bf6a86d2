"""The rotary part of a ``config.json``, in both of its spellings.

``rope_parameters`` is the new one, ``rope_theta`` beside ``rope_scaling`` the old one. Families
with two kinds of layers have an object for each within the former.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.model.config_fields import MOST_SIZE, Fields
from runtime.model.rope_config import RopeConfig


def read_rope(
    fields: Fields, *, theta: float = 10000.0, rotated: int | None = None
) -> tuple[RopeConfig, int]:
    """Positions, and how many of them: the context.

    Args:
        fields: of the whole model.
        theta: the family's default.
        rotated: dimensions of a head, for families that may rotate a part of it; None: a part is
            refused.
    """
    rope, own_theta = rope_object(fields), fields.number("rope_theta", theta)
    if rotated is None:
        for place in (fields, rope):
            if place.number("partial_rotary_factor", 1.0) != 1:
                raise place.error("partial_rotary_factor", "set", "whole heads to be rotated")
    return rope_of(fields, rope, theta=own_theta, rotated=rotated)


def read_growing_rope(fields: Fields, *, rotated: int | None = None) -> tuple[RopeConfig, int]:
    """Likewise, of Mistral's, whose queries may grow with their position."""
    rope, context = read_rope(fields, rotated=rotated)
    spelled = rope_object(fields)
    beta = spelled.number("llama_4_scaling_beta", 0.0)
    if beta:
        original = spelled.size("original_max_position_embeddings")
        rope = replace(rope, query_beta=beta, original_max_position=original)
    return rope, context


def rope_object(fields: Fields) -> Fields:
    """The object that says how positions are rotated; an empty one where there is none."""
    name = "rope_parameters" if fields.get("rope_parameters") is not None else "rope_scaling"
    return fields.within(name) or Fields(fields.path, {}, prefix=f"{name}.")


def rope_of(
    fields: Fields, rope: Fields, *, theta: float, rotated: int | None = None
) -> tuple[RopeConfig, int]:
    """Rotary positions as one object of a configuration has them."""
    theta = rope.number("rope_theta", theta)
    kind = rope.get("rope_type", rope.get("type", "default"))
    stated = fields.size("max_position_embeddings")
    if kind == "default":
        return RopeConfig(theta=theta, rotated=rotated), stated
    if kind not in ("linear", "llama3", "yarn"):
        raise rope.error("rope_type", kind, "default, linear, llama3 or yarn")
    factor = rope.number("factor")
    original = rope.size(
        "original_max_position_embeddings",
        fields.size("original_max_position_embeddings", stated),
    )
    if kind == "llama3":
        return _llama3(rope, theta, factor, original, rotated), stated
    context = _stretched(rope, factor, original)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=factor, rotated=rotated), context
    return _yarn(rope, theta, factor, original, rotated), context


def rope_of_kind(
    fields: Fields, kind: str, defaults: Mapping[str, Any], head_dim: int
) -> RopeConfig:
    """Positions of layers of one kind, where each has an object within ``rope_parameters``; that
    may say that a part of a head is rotated in proportion to the whole.

    Args:
        defaults: the family's object, where there is none for any kind.
        head_dim: dimensions of a head in these layers.
    """
    given = fields.within("rope_parameters")
    rope: Fields | None = Fields(fields.path, defaults, prefix=f"rope_parameters.{kind}.")
    if given is not None:
        rope = given.within(kind)
    if rope is None:
        raise fields.error("rope_parameters", fields.get("rope_parameters"), f"one with {kind}")
    share = rope.number("partial_rotary_factor", 1.0)
    theta = defaults["rope_theta"]
    if rope.get("rope_type", "default") != "proportional":
        if share != 1:
            raise rope.error("partial_rotary_factor", share, "one of a proportional rope_type")
        return rope_of(fields, rope, theta=theta)[0]
    rotated = 2 * int(share * head_dim // 2)
    if share > 1 or not rotated:
        raise rope.error("partial_rotary_factor", share, f"a part of {head_dim} dimensions")
    return RopeConfig(
        theta=rope.number("rope_theta", theta),
        kind="proportional",
        rotated=rotated,
        factor=rope.number("factor", 1.0),
    )


def _stretched(rope: Fields, factor: float, original: int) -> int:
    """The context of linear and yarn: the factor times the length before. Folders in which users
    wrote the scaling themselves, as model cards tell them to, still state that length as
    ``max_position_embeddings``; those that came with it may state the whole there, and then
    ``original_max_position_embeddings`` beside it. llama3 folders always state the whole."""
    if factor * original >= MOST_SIZE:
        raise rope.error("factor", factor, f"one that stretches {original} tokens to fewer")
    return int(factor * original)


def _llama3(
    rope: Fields, theta: float, factor: float, original: int, rotated: int | None
) -> RopeConfig:
    return RopeConfig(
        theta=theta,
        kind="llama3",
        rotated=rotated,
        factor=factor,
        original_max_position=original,
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
    )


def _yarn(
    rope: Fields, theta: float, factor: float, original: int, rotated: int | None
) -> RopeConfig:
    return RopeConfig(
        theta=theta,
        kind="yarn",
        rotated=rotated,
        factor=factor,
        original_max_position=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=_yarn_attention_factor(rope, factor),
        truncate=rope.flag("truncate", True),
    )


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.get("attention_factor") is not None:
        return rope.number("attention_factor")
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return temperature(rope.number("mscale")) / temperature(rope.number("mscale_all_dim"))
    return temperature(1.0)


def longrope_of(
    fields: Fields, rope: Fields, *, theta: float, rotated: int, serves: int | None
) -> tuple[RopeConfig, int]:
    """Positions of longrope (Ding et al. 2024, arXiv:2402.13753) and the context. A model of it has
    two sets of factors, for contexts up to the original one and for longer ones. One set holds for
    all that a server computes: with the other a transcript's keys would be others, and none of its
    cache could be used.

    Args:
        serves: the longest context that is served; None: the model's.
    """
    stated = fields.size("max_position_embeddings")
    original = rope.size(
        "original_max_position_embeddings",
        fields.size("original_max_position_embeddings", 4096),
    )
    long = stated if serves is None else min(stated, serves)
    sets = {name: rope.numbers(name) for name in ("short_factor", "long_factor")}
    for name, factors in sets.items():
        if len(factors) != rotated // 2:
            raise rope.error(name, f"{len(factors)} numbers", f"{rotated // 2}, one for each pair")
    factor = rope.number("factor", stated / original)
    tempered = 1.0
    if factor > 1 and original > 1:
        tempered = math.sqrt(1 + math.log(factor) / math.log(original))
    chosen = "long_factor" if long > original else "short_factor"
    rope_config = RopeConfig(
        theta=rope.number("rope_theta", theta),
        kind="longrope",
        rotated=rotated,
        factors=sets[chosen],
        attention_factor=rope.number("attention_factor", tempered),
        original_max_position=original,
    )
    return rope_config, stated if long > original else original
