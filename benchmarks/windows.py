"""A model with windows, served: what its rows behind windows are worth when they are given back.

    python -m benchmarks.windows --json

``random:gemma3-100m`` (ten of twelve layers see 512 tokens) over real sockets, with one size of
memory for keys and values, once as it is by default and once with ``--window-share 100``, which
keeps all rows. Eight sessions take turns until each has a transcript of 6,000 tokens; all together
are more than all rows have room for. ``recomputed_tokens`` are those that an earlier turn had run
through the model and a later one ran again; ``seconds`` is the wall clock of all turns. Servers are
started one after the other, the order changes from round to round.
"""

import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.hybrid import ran, say, serving, text
from benchmarks.report import Bar, parser, report
from keepwarm import Client

MODEL = "random:gemma3-100m"
SESSIONS, TURNS, NEW_TOKENS = 8, 10, 600
KV_MIB = 400
"""Memory for keys and values: for 34,000 tokens where all rows are kept, of 48,000."""
WAYS = {"given_back": (), "all_kept": ("--window-share", "100")}
BARS = {"recomputed_over_all_kept": ("<=", 0.2), "seconds_over_all_kept": ("<=", 0.8)}


def played(way: str, seed: int) -> dict[str, Any]:
    """All turns on a server of its own: what was run again, and how long it took."""

    def play(client: Client, number: int) -> int:
        rng, lost = np.random.default_rng(1000 * seed + number), 0
        session, last = client.session(name=f"s{number}"), None
        for _ in range(TURNS):
            response = say(session, text(rng, NEW_TOKENS))
            if last is not None:
                lost += max(0, ran(last) - response.usage.cached_tokens)
            last = response
        return lost

    options = ("--kv-cache-mib", str(KV_MIB), "--max-running", str(SESSIONS), *WAYS[way])
    with serving(MODEL, *options) as client, ThreadPoolExecutor(SESSIONS) as threads:
        say(client.session(), text(np.random.default_rng(seed), NEW_TOKENS))
        started = time.perf_counter()
        lost = sum(threads.map(lambda number: play(client, number), range(SESSIONS)))
        taken = time.perf_counter() - started
    return {"recomputed": lost, "seconds": taken}


def measure(rounds: int) -> dict[str, Any]:
    """Medians over rounds, by way."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in list(WAYS)[:: -1 if number % 2 else 1]:
            print(f"round {number + 1} of {rounds}, {way}", file=sys.stderr)
            found[way].append(played(way, number))
    figures: dict[str, Any] = {}
    for way, rows in found.items():
        figures[f"{way}_recomputed_tokens"] = statistics.median(row["recomputed"] for row in rows)
        figures[f"{way}_seconds"] = round(statistics.median(row["seconds"] for row in rows), 2)
    return figures


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=3)
    arguments = options.parse_args()
    figures = measure(arguments.rounds)
    values = {
        "recomputed_over_all_kept": figures["given_back_recomputed_tokens"]
        / max(1, figures["all_kept_recomputed_tokens"]),
        "seconds_over_all_kept": figures["given_back_seconds"] / figures["all_kept_seconds"],
    }
    bars = [Bar(name=name, value=values[name], op=op, bar=bar) for name, (op, bar) in BARS.items()]  # type: ignore[arg-type]
    return report("windows", figures, bars, as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
