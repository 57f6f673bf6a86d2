"""Every metric is documented, has its unit in its name, and counts what it says."""

import re
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.messages import StepStats
from sessions.durable.ledger import TurnReport, TurnUsage
from sessions.durable.miss_reasons import Miss, MissReason
from sessions.pages.metrics import Metrics, kv_usage
from tests.support.architecture import ROOT
from tests.support.fake_engine import INFO as BY_HAND

DOCUMENT = ROOT / "docs/metrics.md"
ROW = re.compile(r"\| `(keepwarm_\w+)` \| (\w+) \|([^|]*)\|")
INFO = replace(BY_HAND, model_name="tiny", load_s=0.1)
USAGE = TurnUsage(
    input_tokens=100,
    cached_tokens=75,
    output_tokens=20,
    reasoning_tokens=3,
    forced_tokens=5,
    drafted_tokens=8,
    accepted_tokens=6,
    forwards=10,
)


def report(status: str = "completed", ttft_s: float | None = 0.2) -> TurnReport:
    return TurnReport(
        tenant="t",
        session="s",
        turn=1,
        response_id="resp_1",
        status=status,
        reason=None,
        usage=USAGE,
        cost=2_000_000_000,
        saved=500_000_000,
        queue_s=0.1,
        ttft_s=ttft_s,
        total_s=1.2,
    )


def values(metrics: Metrics) -> dict[str, float]:
    """Sample values by name, labels written behind it."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            labels = "".join(f"{{{name}={value}}}" for name, value in sorted(sample.labels.items()))
            found[sample.name + labels] = sample.value
    return found


def exposed(metrics: Metrics) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Type and labels of every metric, by its exposed name."""
    found = {}
    for family in metrics.registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for s in family.samples for label in s.labels} - {"le"}
        found[name] = (family.type, tuple(sorted(labels)))
    return found


def used() -> Metrics:
    """A server's metrics after everything has happened once."""
    metrics = Metrics()
    metrics.engine_ready(INFO)
    metrics.step_finished(
        StepStats(
            blocks_total=8,
            step_s=0.01,
            transfer_bytes_delta={"device_host": 1},
            transfer_s_delta={"device_host": 0.5},
        )
    )
    metrics.turn_finished(replace(report(), misses=(Miss(reason=MissReason.EVICTED, tokens=25),)))
    metrics.tokens_arrived("a", 1, 0.01)
    metrics.error_sent("a", None)
    metrics.grammar_checked(0.01, refused=True)
    metrics.connection_closed(1008)
    metrics.http_answered(200)
    metrics.watch_spans(lambda: {"sent": 1, "failed": 2, "dropped": 3})
    metrics.memory.watch({}, {"server": lambda: "self"})
    return metrics


def test_document_and_code_list_the_same_metrics_with_type_and_labels() -> None:
    rows = {
        name: (kind, tuple(sorted(re.findall(r"`(\w+)`", labels))))
        for name, kind, labels in ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
    }
    assert rows == exposed(used())


def test_names_carry_base_units() -> None:
    for name in exposed(Metrics()):
        assert not re.search(r"_(ms|milliseconds|us|minutes|percent|mib|kb)(_|$)", name), name


def test_the_text_has_no_creation_times_and_parses() -> None:
    text = used().text().decode()
    assert "_created" not in text
    assert {f.name for f in text_string_to_metric_families(text)} >= {"keepwarm_turns"}


def test_a_finished_turn_counts_its_tokens_and_money() -> None:
    metrics = Metrics()
    metrics.turn_finished(report())
    metrics.turn_finished(report("failed", ttft_s=None))
    found = values(metrics)
    assert found["keepwarm_turns_total{status=completed}"] == 1
    assert found["keepwarm_turns_total{status=failed}"] == 1
    assert found["keepwarm_input_tokens_total"] == 200
    assert found["keepwarm_cached_tokens_total"] == 150
    assert found["keepwarm_output_tokens_total"] == 40
    assert found["keepwarm_reasoning_tokens_total"] == 6
    assert found["keepwarm_spec_forced_tokens_total"] == 10
    assert found["keepwarm_spec_drafted_tokens_total"] == 16
    assert found["keepwarm_spec_accepted_tokens_total"] == 12
    assert found["keepwarm_spec_forwards_total"] == 20
    assert found["keepwarm_spec_tokens_per_forward_sum"] == 4.0
    assert found["keepwarm_cost_dollars_total"] == 4.0
    assert found["keepwarm_saved_dollars_total"] == 1.0
    assert found["keepwarm_turn_time_to_first_token_seconds_count"] == 1
    assert found["keepwarm_turn_time_to_first_token_seconds_sum"] == 0.2
    assert found["keepwarm_turn_queue_seconds_sum"] == pytest.approx(0.2)
    assert found["keepwarm_turn_duration_seconds_sum"] == 2.4
    assert found["keepwarm_turn_cache_hit_ratio_sum"] == 1.5


def test_turns_tell_why_tokens_were_not_cached_and_which_of_them_a_budget_ended() -> None:
    metrics = Metrics()
    evicted = Miss(reason=MissReason.EVICTED, tokens=20)
    new = Miss(reason=MissReason.NEW_INPUT, tokens=5)
    metrics.turn_finished(replace(report(), misses=(evicted, new)))
    metrics.turn_finished(replace(report("failed"), reason="budget_exhausted"))
    metrics.turn_finished(replace(report("incomplete"), reason="budget_exhausted"))
    metrics.turn_finished(replace(report("incomplete"), reason="budget_exhausted"))
    metrics.turn_finished(replace(report("incomplete"), reason="max_output_tokens"))
    found = values(metrics)
    assert found["keepwarm_missed_tokens_total{cause=evicted}"] == 20
    assert found["keepwarm_missed_tokens_total{cause=new_input}"] == 5
    assert found["keepwarm_budget_refusals_total{outcome=refused}"] == 1
    assert found["keepwarm_budget_refusals_total{outcome=cut}"] == 2


def test_budget_refusals_are_counted_from_the_first_scrape_on() -> None:
    assert values(Metrics())["keepwarm_budget_refusals_total{outcome=refused}"] == 0


def test_a_step_sets_gauges_and_adds_deltas() -> None:
    metrics = Metrics()
    stats = StepStats(
        running=3,
        waiting=2,
        blocks_total=10,
        blocks_free=4,
        blocks_evictable=3,
        blocks_protected=2,
        blocks_reserved=1,
        step_s=0.5,
        steps_s=[0.1, 0.4],
        steps_prefill_tokens=[7, 0],
        steps_cost_ratio=[0.5, 3.0],
        token_gap_bound_s=0.12,
        prefill_tokens_delta=7,
        decode_tokens_delta=3,
        preemptions_delta=1,
        block_waits_delta=4,
        evicted_blocks_delta=2,
        mask_s_delta=0.25,
        rank_wait_s_delta=0.125,
        branches=5,
    )
    metrics.step_finished(stats)
    metrics.step_finished(stats)
    found = values(metrics)
    assert found["keepwarm_turns_running"] == 3
    assert found["keepwarm_turns_waiting"] == 2
    assert found["keepwarm_engine_sessions"] == 5
    assert found["keepwarm_kv_usage_ratio"] == 0.3
    blocks = {s: found[f"keepwarm_kv_blocks{{state={s}}}"] for s in ("free", "evictable")}
    assert blocks == {"free": 4, "evictable": 3}
    assert found["keepwarm_prefill_tokens_total"] == 14
    assert found["keepwarm_decode_tokens_total"] == 6
    assert found["keepwarm_preemptions_total"] == 2
    assert found["keepwarm_kv_block_waits_total"] == 8
    assert found["keepwarm_evicted_blocks_total"] == 4
    assert found["keepwarm_grammar_mask_seconds_total"] == 0.5
    assert found["keepwarm_engine_rank_wait_seconds_total"] == 0.25
    assert found["keepwarm_engine_step_seconds_sum"] == pytest.approx(1.0)
    assert found["keepwarm_engine_step_seconds_count"] == 4
    assert found["keepwarm_engine_step_prefill_tokens_count"] == 2
    assert found["keepwarm_engine_step_cost_ratio_bucket{le=0.5}"] == 2
    assert found["keepwarm_token_gap_bound_seconds"] == 0.12


def test_a_dead_engine_runs_nothing_until_it_is_replaced() -> None:
    metrics = Metrics()
    metrics.engine_ready(INFO)
    blocks = {"blocks_free": 5, "blocks_evictable": 1, "blocks_protected": 4, "blocks_reserved": 2}
    metrics.step_finished(StepStats(running=3, waiting=2, branches=3, **blocks))
    metrics.engine_died()
    found = values(metrics)
    assert found["keepwarm_engine_up"] == found["keepwarm_turns_running"] == 0
    gone = ["keepwarm_engine_sessions", *(name for name in found if "keepwarm_kv_blocks" in name)]
    assert [found[name] for name in gone] == [0] * 5
    metrics.engine_restarted()
    metrics.engine_ready(INFO)
    found = values(metrics)
    assert found["keepwarm_engine_up"] == found["keepwarm_engine_restarts_total"] == 1
    assert found["keepwarm_kv_capacity_tokens"] == 4096
    assert found["keepwarm_engine_ranks"] == 1
    assert found["keepwarm_engine_info{device=cpu}{dtype=float32}{model=tiny}"] == 1


def test_errors_without_a_code_are_counted_as_none() -> None:
    metrics = Metrics()
    metrics.error_sent("a", "invalid_json")
    metrics.error_sent("a", None)
    found = values(metrics)
    assert found["keepwarm_errors_total{code=invalid_json}"] == 1
    assert found["keepwarm_errors_total{code=none}"] == 1


def test_two_servers_in_one_process_do_not_share_numbers() -> None:
    first, second = Metrics(), Metrics()
    first.connection_opened()
    first.connection_opened()
    first.connection_gone()
    assert values(first)["keepwarm_connections"] == 1
    assert values(second)["keepwarm_connections"] == 0


def test_an_empty_pool_is_not_in_use() -> None:
    assert kv_usage(StepStats()) == 0.0


def test_tiers_below_the_device_are_told_by_tier_and_path() -> None:
    metrics = Metrics()
    stats = StepStats(
        host_blocks_total=10,
        host_blocks_used=4,
        disk_blocks_total=50,
        disk_blocks_used=7,
        device_hit_tokens_delta=32,
        host_hit_tokens_delta=16,
        damaged_blocks_delta=1,
        transfer_bytes_delta={"host_disk": 4096},
        transfer_s_delta={"host_disk": 0.25},
    )
    metrics.step_finished(stats)
    metrics.step_finished(stats)
    found = values(metrics)
    assert found["keepwarm_kv_tier_blocks{state=used}{tier=host}"] == 4
    assert found["keepwarm_kv_tier_blocks{state=free}{tier=disk}"] == 43
    assert found["keepwarm_kv_hit_tokens_total{tier=device}"] == 64
    assert found["keepwarm_kv_hit_tokens_total{tier=host}"] == 32
    assert found["keepwarm_kv_transfer_bytes_total{path=host_disk}"] == 8192
    assert found["keepwarm_kv_transfer_seconds_total{path=host_disk}"] == 0.5
    assert found["keepwarm_kv_damaged_blocks_total"] == 2


def test_a_turn_whose_session_has_moved_is_spent_at_its_new_server_alone() -> None:
    metrics = Metrics()
    metrics.turn_finished(replace(report("failed"), reason="session_moved"))
    found = values(metrics)
    assert found["keepwarm_turns_total{status=failed}"] == 1
    for name in ("input_tokens", "cached_tokens", "output_tokens", "cost_nanodollars"):
        assert found[f"keepwarm_{name}_total"] == 0


def test_a_journal_that_is_damaged_is_told_from_then_on() -> None:
    metrics, damaged = Metrics(), False
    assert values(metrics)["keepwarm_journal_damaged"] == 0
    metrics.watch_journal(lambda: damaged)
    assert values(metrics)["keepwarm_journal_damaged"] == 0
    damaged = True
    assert values(metrics)["keepwarm_journal_damaged"] == 1


def test_grammars_count_their_checks_and_where_they_failed() -> None:
    metrics = Metrics()
    metrics.grammar_checked(0.2, refused=False)
    metrics.grammar_checked(0.1, refused=True)
    metrics.grammar_gave_up()
    found = values(metrics)
    assert found["keepwarm_grammar_check_seconds_count"] == 2
    assert found["keepwarm_grammar_check_seconds_sum"] == pytest.approx(0.3)
    assert found["keepwarm_grammar_errors_total{stage=compile}"] == 1
    assert found["keepwarm_grammar_errors_total{stage=mask}"] == 1


def test_steps_begun_ahead_are_counted_by_how_they_turned_out() -> None:
    metrics = Metrics()
    names = [
        f"keepwarm_engine_steps_ahead_total{{outcome={outcome}}}"
        for outcome in ("held", "second_pass", "dropped")
    ]
    assert [values(metrics)[name] for name in names] == [0, 0, 0], "before the first step"
    metrics.step_finished(StepStats(step_s=0.01))
    assert [values(metrics)[name] for name in names] == [0, 0, 0], "on a CPU"
    stats = StepStats(ahead_held_delta=5, ahead_second_passes_delta=2, ahead_dropped_delta=1)
    metrics.step_finished(stats)
    metrics.step_finished(stats)
    assert [values(metrics)[name] for name in names] == [10, 4, 2]


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
def test_turns_are_counted_from_the_first_scrape_on(status: str) -> None:
    assert values(Metrics())[f"keepwarm_turns_total{{status={status}}}"] == 0


def test_forward_passes_are_counted_by_whether_they_ran_as_recorded() -> None:
    metrics = Metrics()
    metrics.step_finished(
        StepStats(
            graph_replayed_delta=7,
            graph_eager_delta=2,
            graph_replayed_chunks_delta=4,
            graph_eager_chunks_delta=3,
            graph_failed_delta=1,
        )
    )
    expected = {
        ("decode", "replayed"): 7,
        ("decode", "eager"): 2,
        ("prefill", "replayed"): 4,
        ("prefill", "eager"): 3,
        ("any", "failed"): 1,
    }
    found = {
        name: value for name, value in values(metrics).items() if "engine_forwards_total" in name
    }
    assert len(found) == len(expected)
    for (step, outcome), count in expected.items():
        (name,) = (n for n in found if f"step={step}" in n and f"outcome={outcome}" in n)
        assert found[name] == count
