"""Which share of prompt tokens the prefix cache finds, replaying recorded agent sessions.

Replay rule. N sessions run at a time, in the order of the file; the first N start at time 0,
and whenever one ends (its last request's start plus its recorded service time) the next one
starts. Within a session every request comes at its recorded time, sub-agents included, each
as a branch of its own of the request it continues. A request looks up its prompt, and
prompt and output are cached at once. An append-only request contains its parent's
output. Nothing is shared between sessions. One block stands for 64 tokens, so a "token" of
the cache is here a block id and its block size is 1; a prompt never hits wholly.

The same requests go through ``lru_hits``, a plain LRU list of block ids that knows nothing of
trees; ``lru_table_error`` is the largest difference between the two hit ratios. Plain LRU is
the cache with ``policy="lru"``.
"""

import heapq
import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.report import Bar, DataMissing, data_file, parser, report, report_missing
from radix_cache.block_pool import OutOfBlocks
from radix_cache.cache import PrefixCache
from radix_cache.config import CacheConfig
from radix_cache.edge import TokenArray

TOKENS_PER_BLOCK = 64
SESSIONS_AT_A_TIME = (8, 32)
CAPACITIES_M = (0.5, 1.0, 2.0, 4.0, 8.0)
SESSIONS_FILE = "traces/claude_code.sessions.jsonl"
UNMEASURED = (Bar(name="lru_table_error", value=None, op="<=", bar=0.01),)


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and its output as block ids; the last id of each may stand for a part."""

    time_s: float
    blocks: TokenArray
    """int32: ids of prompt and output together."""
    prompt_tokens: int
    total_tokens: int


def session_requests(row: dict[str, list[list[float]]], first_id: int) -> list[Request]:
    """The requests of one session; new blocks are numbered from ``first_id`` on."""
    requests: list[Request] = []
    latest: dict[int, int] = {}
    for time_s, agent, parent, lcp, prompt, output, *_ in row["req"]:
        shared, kept = int(lcp), np.empty(0, dtype=np.int32)
        if parent >= 0:
            past = requests[int(parent)]
            if latest.get(int(agent)) == parent and lcp >= past.prompt_tokens - 128:
                shared = min(int(prompt), past.total_tokens)
            kept = past.blocks[: shared // TOKENS_PER_BLOCK]
        total = int(prompt + output)
        fresh = max(0, -(-total // TOKENS_PER_BLOCK) - len(kept))
        ids = np.arange(first_id, first_id + fresh, dtype=np.int32)
        first_id += fresh
        latest[int(agent)] = len(requests)
        requests.append(Request(time_s, np.concatenate([kept, ids]), int(prompt), total))
    return requests


def load_sessions(path: Path) -> list[tuple[list[Request], float]]:
    """(requests, seconds from the start to the end of the last one) of each session."""
    sessions = []
    next_id = 0
    with path.open() as lines:
        for line in lines:
            row = json.loads(line)
            requests = session_requests(row, next_id)
            next_id = 1 + max(int(request.blocks[-1]) for request in requests)
            sessions.append((requests, max(r[0] + (r[7] or 0.0) for r in row["req"])))
    return sessions


def replay(sessions: list[tuple[list[Request], float]], at_a_time: int) -> Iterator[Request]:
    """The requests of all sessions in the order of the replay rule."""
    running: list[tuple[float, int, int, float]] = []
    waiting = iter(range(len(sessions)))

    def start(now: float) -> None:
        number = next(waiting, None)
        if number is not None:
            heapq.heappush(running, (now + sessions[number][0][0].time_s, number, 0, now))

    for _ in range(at_a_time):
        start(0.0)
    while running:
        _, number, index, started = heapq.heappop(running)
        requests, duration_s = sessions[number]
        if index == len(requests):
            start(started + duration_s)
            continue
        yield requests[index]
        following = index + 1
        at = duration_s if following == len(requests) else requests[following].time_s
        heapq.heappush(running, (started + at, number, following, started))


def cache_hits(requests: Iterator[Request], capacity_blocks: int) -> float:
    """Hit ratio of the prefix cache."""
    cache = PrefixCache(
        CacheConfig(num_blocks=capacity_blocks, block_size=1, policy="lru"), clock=lambda: 0.0
    )
    hits = total = 0
    for request in requests:
        whole = request.total_tokens // TOKENS_PER_BLOCK
        prompt = request.blocks[: -(-request.prompt_tokens // TOKENS_PER_BLOCK)]
        total += request.prompt_tokens
        sequence = cache.begin(branch_id="turn", tenant="trace", tokens=prompt)
        try:
            cache.allocate(sequence, whole - sequence.num_blocks)
            cache.commit(sequence, request.blocks[:whole])
            hits += sequence.num_cached_tokens * TOKENS_PER_BLOCK
        except OutOfBlocks:
            pass  # larger than the pool: refused, nothing found and nothing kept
        cache.release_branch("turn")
        cache.finish(sequence)
    return hits / total


def lru_hits(requests: Iterator[Request], capacity_blocks: int) -> float:
    """Hit ratio of a list of block ids, least recently used first. A request touches its
    blocks from the last to the first, so that the end of a transcript goes before its start."""
    resident: OrderedDict[int, None] = OrderedDict()
    hits = total = 0
    for request in requests:
        total += request.prompt_tokens
        blocks = request.blocks[: request.total_tokens // TOKENS_PER_BLOCK].tolist()
        if len(blocks) > capacity_blocks:
            continue
        for block in blocks[: (request.prompt_tokens - 1) // TOKENS_PER_BLOCK]:
            if block not in resident:
                break
            hits += TOKENS_PER_BLOCK
        for block in reversed(blocks):
            resident[block] = None
            resident.move_to_end(block)
        while len(resident) > capacity_blocks:
            resident.popitem(last=False)
    return hits / total


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--sessions", default=SESSIONS_FILE, help="file of the data folder")
    arguments = options.parse_args()
    try:
        path = data_file(arguments.data, arguments.sessions)
    except DataMissing as error:
        return report_missing("hit_ratio", error, UNMEASURED, as_json=arguments.json)
    sessions = load_sessions(path)
    figures: dict[str, object] = {"sessions": len(sessions), "file": path.name}
    worst = 0.0
    for at_a_time in SESSIONS_AT_A_TIME:
        for capacity_m in CAPACITIES_M:
            capacity = int(capacity_m * 1e6) // TOKENS_PER_BLOCK
            ours = cache_hits(replay(sessions, at_a_time), capacity)
            plain = lru_hits(replay(sessions, at_a_time), capacity)
            worst = max(worst, abs(ours - plain))
            figures[f"n{at_a_time}_{capacity_m:g}m"] = round(ours, 4)
            figures[f"n{at_a_time}_{capacity_m:g}m_plain"] = round(plain, 4)
    bar = Bar(name="lru_table_error", value=round(worst, 5), op="<=", bar=0.01)
    return report("hit_ratio", figures, [bar], as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
