"""A stand-in of vLLM's server, for rehearsals: its routes, and what a model of wide margins says.

    python -m benchmarks.loop_stand_in --model FOLDER --host H --port P [options of vLLM]

Runs no model: behind each token comes the one that ``loop_model.successors`` names. No figure
that it makes counts. ``--dies-after N`` and ``--wrong-after N`` have it end, or leave out what it
should say and say something else, at the N-th answer.
"""

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.loop_model import successors


class StandIn:
    """What it says."""

    def __init__(
        self,
        vocab_size: int,
        *,
        dies_after: int | None = None,
        wrong_after: int | None = None,
        ends: Callable[[], None] = lambda: os._exit(9),
    ) -> None:
        """``ends`` is called where it is to die."""
        self._follows = successors(vocab_size)
        self._ends = ends
        self._dies_after = dies_after
        self._wrong_after = wrong_after
        self._answers = 0
        self._lock = threading.Lock()
        self.prompt_tokens = self.steps = 0

    def answer(self, prompt: Sequence[int], count: int) -> list[int]:
        """The next ``count`` tokens; or ends."""
        with self._lock:
            self._answers += 1
            self.prompt_tokens += len(prompt)
            self.steps += count
            number = self._answers
        if self._dies_after is not None and number > self._dies_after:
            self._ends()
        said, last = [], prompt[-1]
        for _ in range(count):
            last = self._follows[last]
            said.append(last)
        wrong = self._wrong_after is not None and number > self._wrong_after
        return said[::-1] if wrong else said


def handler_of(says: StandIn) -> type[BaseHTTPRequestHandler]:
    """The routes that ``loop_peers`` asks."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._begin("text/plain")
            if self.path == "/metrics":
                self.wfile.write(f"vllm:prefix_cache_queries_total {says.prompt_tokens}\n".encode())
                self.wfile.write(b"vllm:prefix_cache_hits_total 0\n")
                self.wfile.write(f"vllm:iteration_tokens_total_count {says.steps}\n".encode())

        def do_POST(self) -> None:
            asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = says.answer(asked["prompt"], asked["max_tokens"])
            self._begin("text/event-stream")
            for token in said:
                line = json.dumps({"choices": [{"token_ids": [token]}]})
                self.wfile.write(f"data: {line}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def _begin(self, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


class StandInServer(ThreadingHTTPServer):
    """Answers many at a time."""

    daemon_threads = True
    request_queue_size = 128


def main(words: Sequence[str] | None = None) -> int:
    """Serve until ended."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--model", type=Path, required=True)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--dies-after", type=int)
    options.add_argument("--wrong-after", type=int)
    given, _ = options.parse_known_args(words)  # the rest is for vLLM
    fields = json.loads((given.model / "config.json").read_text())
    says = StandIn(fields["vocab_size"], dies_after=given.dies_after, wrong_after=given.wrong_after)
    with StandInServer((given.host, given.port), handler_of(says)) as server:
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
