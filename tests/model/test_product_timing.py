"""What is timed, what is not, and how long that may take; the clock is made up."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import runtime.model.product_timing as timing
from runtime.model.config import Experts, Gated, ModelConfig, Router
from runtime.model.layers import Linear, PlainLinear, WeightBits, make_linear
from runtime.model.presets import random_model_config
from runtime.model.product_choice import RULES, Layout, ProductChoice
from runtime.model.product_timing import layer_shapes, linear_weights, measured_choice, product_in
from tests.support.model_shapes import changed

CPU = torch.device("cpu")
TINY = random_model_config("qwen3-tiny")
LARGE = changed(TINY, hidden_size=256, mlp={"size": 512})
SMALL_RULES = replace(RULES, least_bytes=0, seconds=1e6)


class Machine:
    """A clock that every product of a layout moves on by a time of its own."""

    def __init__(self, per_row: dict[Layout, float], fixed: dict[Layout, float]) -> None:
        self.now = 0.0
        self.products = 0
        self._per_row = per_row
        self._fixed = fixed
        self.jitter: Iterator[float] = iter(lambda: 1.0, None)

    def clock(self) -> float:
        return self.now

    def product_in(self, layout: Layout, weight: Tensor, bits: WeightBits) -> Linear:
        machine = self

        class Timed(PlainLinear):
            def __call__(self, x: Tensor) -> Tensor:
                seconds = machine._fixed[layout] + machine._per_row[layout] * x.shape[0]
                seconds *= weight.numel() / 16384
                machine.now += seconds * next(machine.jitter)
                machine.products += 1
                return super().__call__(x)

        return Timed(weight, None)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Tiles are best up to 9 rows, packed weights from there on; widened ones from 79 on."""
    made = Machine(
        {"tiles": 0.1, "widened": 0.0, "packed": 0.0, "plain": 0.1},
        {"tiles": 0.1, "widened": 8.0, "packed": 1.0, "plain": 1.0},
    )
    monkeypatch.setattr(timing, "product_in", made.product_in)
    monkeypatch.setattr(timing, "_SET_BYTES", 1 << 16)
    monkeypatch.setattr(timing, "_CACHED_BYTES", 1 << 18)
    monkeypatch.setattr(timing, "fits_tiles", lambda _: True)
    monkeypatch.setattr(timing, "packs", lambda _: True)
    return made


def chosen(
    machine: Machine,
    config: ModelConfig = LARGE,
    bits: WeightBits = 16,
    free_bytes: int = 1 << 30,
    dtype: torch.dtype = torch.bfloat16,
    folder: Path | None = None,
    **rules: float,
) -> ProductChoice | None:
    return measured_choice(
        config,
        dtype,
        CPU,
        bits,
        free_bytes=free_bytes,
        clock=machine.clock,
        rules=replace(SMALL_RULES, **rules),  # type: ignore[arg-type]
        folder=None if folder is None else str(folder),
    )


def test_a_choice_is_kept_for_later_starts(machine: Machine, tmp_path: Path) -> None:
    """So that they answer the same to the last bit, however busy the machine is then."""
    choice = chosen(machine, folder=tmp_path)
    assert choice is not None
    taken = machine.products
    assert chosen(machine, folder=tmp_path, seconds=0.0) == choice
    assert machine.products == taken
    chosen(machine, folder=tmp_path, bits=8)
    assert machine.products > taken, "another model has a file of its own"


def test_what_could_not_be_told_is_not_kept(machine: Machine, tmp_path: Path) -> None:
    assert chosen(machine, folder=tmp_path, seconds=0.0) is None
    assert not list(tmp_path.iterdir())


def test_a_kept_choice_that_has_no_memory_any_more_is_made_anew(
    machine: Machine, tmp_path: Path
) -> None:
    both = chosen(machine, folder=tmp_path)
    assert both is not None
    assert both.many == "packed"
    tight = chosen(machine, folder=tmp_path, free_bytes=4 * linear_weights(LARGE))
    assert tight == ProductChoice(few="packed")


@pytest.mark.parametrize(
    "content",
    [
        *(None, [], {"few": "tiles"}, {"few": "x", "many": None, "from_rows": 0}),
        {"few": "tiles", "many": "packed", "from_rows": "9"},
        {"few": "tiles", "many": "packed", "from_rows": 1},
        {"few": [], "many": None, "from_rows": 0},
    ],
)
def test_a_kept_choice_that_is_none_is_made_anew(
    content: object, machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    choice = chosen(machine, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {"content": content}))
    caplog.clear()
    assert chosen(machine, folder=tmp_path) == choice
    assert "found out anew" in caplog.text


def test_times_of_the_machine_make_the_choice(machine: Machine) -> None:
    choice = chosen(machine)
    assert choice is not None
    assert (choice.few, choice.many) == ("tiles", "packed")
    assert 9 <= choice.from_rows <= 10


@pytest.mark.parametrize("bits", [8, 4])
def test_fewer_bits_keep_their_tiles_for_few_rows(machine: Machine, bits: WeightBits) -> None:
    roomy = chosen(machine, bits=bits)
    assert roomy is not None
    assert (roomy.few, roomy.many) == ("tiles", "packed")
    tight = chosen(machine, bits=bits, free_bytes=4 * linear_weights(LARGE))
    assert tight is not None
    assert (tight.few, tight.many) == ("tiles", "widened")


def test_a_second_copy_takes_no_more_than_its_share_of_what_is_free(machine: Machine) -> None:
    weights = 2 * linear_weights(LARGE)
    both = chosen(machine, free_bytes=9 * weights)
    assert both is not None
    assert both.many == "packed"
    assert chosen(machine, free_bytes=9 * weights - 8) == ProductChoice(few="packed")


@pytest.mark.parametrize(
    ("bits", "dtype", "least_bytes"),
    [
        (16, torch.float32, 0),
        (16, torch.float64, 0),
        ("fp8", torch.bfloat16, 0),
        (16, torch.bfloat16, 2 * linear_weights(LARGE) + 1),
    ],
)
def test_what_is_not_worth_it_is_not_timed(
    machine: Machine, bits: WeightBits, dtype: torch.dtype, least_bytes: int
) -> None:
    assert chosen(machine, bits=bits, dtype=dtype, least_bytes=least_bytes) is None
    assert machine.products == 0


def test_models_as_they_are_shipped_and_tested_are_not_timed(machine: Machine) -> None:
    assert 2 * linear_weights(TINY) < RULES.least_bytes
    choice = measured_choice(
        TINY, torch.bfloat16, CPU, 16, free_bytes=1 << 40, clock=machine.clock, rules=RULES
    )
    assert (choice, machine.products) == (None, 0)


@pytest.mark.parametrize("seconds", [0.0, 1.0, 10.0])
def test_no_more_time_is_taken_than_allowed_but_for_a_product(
    machine: Machine, seconds: float
) -> None:
    assert chosen(machine, seconds=seconds) is None
    assert machine.now <= seconds + 4 * 3 * 2.7


def test_a_machine_too_busy_to_tell_gets_the_first_layout(machine: Machine) -> None:
    machine.jitter = iter(1.5**power for power in range(1000))
    assert chosen(machine) is None


def test_one_disturbed_round_changes_nothing(machine: Machine) -> None:
    quiet = chosen(machine)
    machine.jitter = iter(lambda: 9.0 if machine.products % 300 == 0 else 1.0, None)
    assert chosen(machine) == quiet


def test_shapes_are_those_of_a_layer_and_of_one_expert() -> None:
    assert layer_shapes(LARGE) == [(128, 256), (256, 64), (1024, 256), (256, 512)]
    experts = Experts(
        router=Router(num_experts=4, per_token=2, normalise=True), each=Gated(size=32)
    )
    layers = LARGE.layers[0], replace(LARGE.layers[1], feed_forward=experts)
    assert layer_shapes(replace(LARGE, layers=layers))[2:] == [(64, 256), (256, 32)]


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("layout", ["tiles", "widened", "packed", "plain"])
def test_what_is_timed_is_what_a_model_gets(layout: Layout, bits: WeightBits) -> None:
    weight = torch.randn(64, 64).to(torch.bfloat16)
    wanted: WeightBits = 16
    choice = ProductChoice(few="tiles", many="widened", from_rows=2)
    if layout != "widened":
        choice = ProductChoice(few=layout)
    if layout in {"tiles", "widened"}:
        wanted = bits
    model = make_linear(weight.clone(), None, wanted, choice)
    timed = product_in(layout, weight.clone(), bits)
    assert type(timed) is type(model)
    assert timed.num_bytes == model.num_bytes
    x = torch.randn(5, 64).to(torch.bfloat16)
    assert torch.equal(timed(x), model(x))
