"""Experts: which are taken, with which weights, and that tokens stay apart."""

import zlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.codes import CodeKind, Codes
from runtime.model.config import Experts, Gated, Plain
from runtime.model.feed_forward import (
    ExpertMlp,
    FeedForward,
    GatedMlp,
    GroupedExpertMlp,
    load_feed_forward,
    waits_for_the_host,
)
from runtime.model.layers import MapLoader, WeightBits
from runtime.model.presets import PRESETS, random_model_config
from runtime.model.random_weights import RandomWeights
from tests.support.coded import KINDS as CODE_KINDS
from tests.support.coded import random_codes
from tests.support.reference import ReferenceModel

CPU = torch.device("cpu")
PRESET = random_model_config("qwen3-moe-tiny")
HIDDEN = PRESET.hidden_size


def made(
    spec: Experts | Gated, dtype: torch.dtype = torch.float64, bits: WeightBits = 16
) -> FeedForward:
    loader = MapLoader(source=RandomWeights(0, dtype, CPU), bits=bits)
    return load_feed_forward(spec, "model.layers.1", HIDDEN, loader)


def experts(**changes: Any) -> Experts:
    found = PRESET.layers[1].feed_forward
    assert isinstance(found, Experts)
    return replace(found, router=replace(found.router, **changes))


def each_by_hand(x: Tensor, spec: Experts) -> Tensor:
    """Every expert on every token, then all but the taken ones thrown away."""
    source, router = RandomWeights(0, torch.float64, CPU), spec.router
    prefix, size = "model.layers.1.mlp", spec.each.size
    likely = (x @ source.tensor(f"{prefix}.gate.weight", (router.num_experts, HIDDEN)).T).softmax(1)
    rows = []
    for row, shares in zip(x, likely, strict=True):
        best = sorted(range(router.num_experts), key=lambda index: -float(shares[index]))
        taken = best[: router.per_token]
        total = sum(float(shares[index]) for index in taken) if router.normalise else 1.0
        mixed = torch.zeros(HIDDEN, dtype=torch.float64)
        for index in taken:
            gate, up, down = (
                source.tensor(f"{prefix}.experts.{index}.{part}_proj.weight", shape)
                for part, shape in (
                    ("gate", (size, HIDDEN)),
                    ("up", (size, HIDDEN)),
                    ("down", (HIDDEN, size)),
                )
            )
            a, b = gate @ row, up @ row
            mixed += float(shares[index]) / total * (down @ (a / (1 + (-a).exp()) * b))
        rows.append(mixed)
    return torch.stack(rows)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("per_token", [1, 3, 8])
def test_a_token_gets_the_weighted_sum_of_its_likeliest_experts(
    normalise: bool, per_token: int
) -> None:
    config = experts(normalise=normalise, per_token=per_token)
    x = torch.randn(9, HIDDEN, dtype=torch.float64)
    assert torch.allclose(made(config)(x), each_by_hand(x, config), rtol=0, atol=1e-12)


@pytest.mark.parametrize("tokens", [0, 1, 2, 50])
def test_a_token_does_not_notice_which_others_meet_it_at_an_expert(tokens: int) -> None:
    mlp = made(experts())
    x = torch.randn(tokens, HIDDEN, dtype=torch.float64)
    alone = [mlp(row[None]) for row in x]
    together = mlp(x)
    assert together.shape == x.shape
    assert torch.allclose(together, torch.cat([together[:0], *alone]), rtol=0, atol=1e-13)


def test_a_nan_stays_with_its_token() -> None:
    mlp = made(experts())
    x = torch.randn(5, HIDDEN, dtype=torch.float64)
    expected = mlp(x)
    x[2] = torch.nan
    output = mlp(x)
    others = [0, 1, 3, 4]
    assert output[2].isnan().all()
    assert torch.allclose(output[others], expected[others], rtol=0, atol=1e-13)


@pytest.mark.parametrize(("bits", "bound"), [(8, 0.02), (4, 0.2)])
def test_quantised_experts_stay_near(bits: WeightBits, bound: float) -> None:
    x = torch.randn(40, HIDDEN)
    plain = made(experts(), torch.float32)(x)
    quantised = made(experts(), torch.float32, bits)(x)
    assert 0 < (quantised - plain).norm() / plain.norm() < bound


def test_a_step_reads_the_router_and_the_experts_of_one_token() -> None:
    spec = experts()
    read = spec.router.num_experts + 3 * spec.router.per_token * spec.each.size
    assert made(spec).step_bytes == 8 * HIDDEN * read
    assert made(Gated(size=100)).step_bytes == 8 * HIDDEN * 3 * 100
    shared = replace(spec, shared=Gated(size=20))
    assert made(shared).step_bytes == made(spec).step_bytes + made(Gated(size=20)).step_bytes


def test_a_shared_expert_is_added_by_a_weight_of_its_own() -> None:
    x = torch.randn(9, HIDDEN, dtype=torch.float64)
    source = RandomWeights(0, torch.float64, CPU)
    loader = MapLoader(source=source)
    alone = GatedMlp(Gated(size=20), "model.layers.1.mlp.shared_expert", HIDDEN, loader)(x)
    shared = replace(experts(), shared=Gated(size=20))
    assert torch.allclose(made(shared)(x), made(experts())(x) + alone)
    gate = source.tensor("model.layers.1.mlp.shared_expert_gate.weight", (1, HIDDEN))
    weighed = made(experts())(x) + alone / (1 + (-x @ gate.T).exp())
    assert torch.allclose(made(replace(shared, shared_gate=True))(x), weighed)


KINDS = [
    Gated(size=24),
    Gated(size=24, activation="gelu_tanh", bias=True),
    Gated(size=24, activation="clamped_swiglu", limit=0.5, bias=True),
    Gated(size=24, activation="clamped_silu", limit=0.5),
    Gated(size=24, activation="clamped_after_silu", limit=0.3),
    Plain(size=24),
    Plain(size=24, bias=True),
]


@pytest.mark.parametrize("each", KINDS)
@pytest.mark.parametrize("own", [None, (2, 6)])
def test_stacked_experts_compute_what_single_ones_do(
    each: Gated | Plain, own: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(experts(), each=each, own=own)
    x = torch.randn(9, HIDDEN, dtype=torch.float64)
    single = made(spec)
    assert isinstance(single, ExpertMlp)
    assert waits_for_the_host(single)
    monkeypatch.setattr("runtime.model.feed_forward.multiplies_grouped", lambda _: True)
    stacked = made(replace(spec, shared=Gated(size=20)))
    alone = GatedMlp(
        Gated(size=20),
        "model.layers.1.mlp.shared_expert",
        HIDDEN,
        MapLoader(source=RandomWeights(0, torch.float64, CPU)),
    )
    assert not waits_for_the_host(stacked)
    assert torch.allclose(stacked(x), single(x) + alone(x), rtol=0, atol=1e-12)
    assert made(spec).step_bytes == single.step_bytes


@pytest.mark.parametrize("grouped", [False, True])
def test_experts_apart_stand_beside_an_mlp_between_norms_of_their_own(
    grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the reference has them; the router sees what is not normed. Ranks' parts are summed before
    the norms behind them: with two that have the same, twice as much goes in."""
    monkeypatch.setattr("runtime.model.feed_forward.multiplies_grouped", lambda _: grouped)
    spec = PRESETS["gemma4-moe-tiny"].layers[0].feed_forward
    assert isinstance(spec, Experts)
    assert spec.apart
    x = 3 * torch.randn(30, HIDDEN, dtype=torch.float64)
    feed_forward = made(spec)
    assert waits_for_the_host(feed_forward) != grouped
    reference = ReferenceModel.random("gemma4-moe-tiny")
    expected = reference.feed_forward(
        replace(reference.config.layers[0], feed_forward=spec), "model.layers.1", x
    )
    assert torch.allclose(feed_forward(x), expected, rtol=1e-10, atol=1e-10)
    summed: list[Tensor] = []

    def rank_sum(part: Tensor) -> Tensor:
        summed.append(part)
        return 2 * part

    source = RandomWeights(0, torch.float64, CPU)
    loader = MapLoader(source=source, rank_sum=rank_sum)
    twice = load_feed_forward(spec, "model.layers.1", HIDDEN, loader)(x)
    assert len(summed) == 2
    assert torch.allclose(twice, expected, rtol=1e-3, atol=1e-3)  # but for what eps is to less


class CodedSource(RandomWeights):
    """Experts' matrices are in few bits; those of one expert may be of another form."""

    def __init__(self, kind: CodeKind, odd: int | None = None) -> None:
        super().__init__(0, torch.float32, CPU)
        self._kind, self._odd = kind, odd

    def matrix(self, name: str, shape: tuple[int, int]) -> Codes | Tensor:
        if ".experts." not in name:
            return super().matrix(name, shape)
        group = 8 if self._odd is not None and f".experts.{self._odd}." in name else 16
        seed = zlib.crc32(name.encode())
        codes = random_codes(self._kind, *shape, group, zeros=True, seed=seed)
        scales = codes.scales.fill_(121) if self._kind == "e2m1" else codes.scales / 500
        return replace(codes, scales=scales)


@pytest.mark.parametrize("kind", CODE_KINDS)
@pytest.mark.parametrize("each", [Gated(size=24), Plain(size=24)])
def test_experts_in_few_bits_are_stacked_as_they_lie(
    kind: CodeKind, each: Gated | Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(experts(), each=each)
    loader = MapLoader(source=CodedSource(kind))
    single = load_feed_forward(spec, "model.layers.1", HIDDEN, loader)
    monkeypatch.setattr("runtime.model.feed_forward.multiplies_grouped", lambda _: True)
    stacked = load_feed_forward(spec, "model.layers.1", HIDDEN, loader)
    assert isinstance(stacked, GroupedExpertMlp)
    x = torch.randn(9, HIDDEN)
    assert torch.allclose(stacked(x), single(x), rtol=1e-4, atol=1e-4)
    assert stacked.step_bytes == single.step_bytes


def test_experts_of_several_forms_are_not_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.model.feed_forward.multiplies_grouped", lambda _: True)
    loader = MapLoader(source=CodedSource("int8", odd=3))
    assert isinstance(load_feed_forward(experts(), "model.layers.1", HIDDEN, loader), ExpertMlp)


def test_experts_rounded_to_fp8_stay_near(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(40, HIDDEN)
    plain = made(experts(), torch.float32)(x)
    monkeypatch.setattr("runtime.model.feed_forward.multiplies_grouped", lambda _: True)
    rounded = made(experts(), torch.float32, "fp8")
    assert isinstance(rounded, GroupedExpertMlp)
    assert 0 < (rounded(x) - plain).norm() / plain.norm() < 0.05
