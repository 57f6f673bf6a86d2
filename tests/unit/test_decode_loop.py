"""Running decodes have their token in every step."""

from tests.support.scheduler_bench import Bench, tokens_of


def test_running_decodes_come_before_prefill_and_never_miss_a_step() -> None:
    bench = Bench(max_batch_tokens=16, prefill_tokens_beside_decodes=5)
    short = bench.add(3, limit=20)
    bench.step()
    bench.add(40, limit=1)
    for _ in range(8):
        tokens = tokens_of(bench.step())
        assert tokens == {"r1": 1, "r2": 5}
    assert short.num_emitted == 9
