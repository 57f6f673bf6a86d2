"""What the engine learns of its own speed."""

import pytest

from runtime.estimates import OutputLengths, StepCosts


def test_costs_approach_a_steady_machine() -> None:
    costs = StepCosts(prefill_token_s=1.0, decode_step_s=1.0)
    for _ in range(200):
        costs.observe(prefill_tokens=0, decode_rows=3, seconds=0.02)
        costs.observe(prefill_tokens=100, decode_rows=3, seconds=0.07)
        costs.observe(prefill_tokens=100, decode_rows=0, seconds=0.05)
    assert costs.decode_step_s == pytest.approx(0.02, rel=0.01)
    assert costs.prefill_token_s == pytest.approx(0.0005, rel=0.01)


def test_a_step_faster_than_the_decode_estimate_never_makes_a_cost_negative() -> None:
    costs = StepCosts(prefill_token_s=1e-3, decode_step_s=1.0)
    for _ in range(100):
        costs.observe(prefill_tokens=10, decode_rows=1, seconds=0.001)
    assert costs.prefill_token_s >= 0


def test_output_lengths_follow_each_session_and_forget_the_oldest() -> None:
    lengths = OutputLengths(initial=300, weight=0.5, capacity=2)
    assert lengths.expected("a") == 300
    lengths.observe("a", output_tokens=100)
    assert lengths.expected("a") == 200
    lengths.observe("b", output_tokens=0)
    lengths.observe("a", output_tokens=200)
    lengths.observe("c", output_tokens=300)
    assert [lengths.expected(name) for name in "abc"] == [200, 300, 300]
