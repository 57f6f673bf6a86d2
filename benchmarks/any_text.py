"""Does a text take time in proportion to its length, whatever it is made of?

Runs of one kind of character are what regular expressions and merges may be slow at. A run of each
kind is tokenised by the shipped model's tokenizer and by one of 32k tokens that cuts as Llama 3
does; then a server is asked with it as a tool's output, once as it is (it does not fit) and once
with ``truncation: auto``. Time per byte of a run of a million characters is divided by that of a
hundred thousand, the median of ``ROUNDS`` each, taken in turn.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.bpe import train_tokenizer
from benchmarks.report import Bar, DataMissing, parser, report, report_missing
from keepwarm.demo.child_server import child_server
from runtime.tokenizer import Tokenizer
from tools_api.chat_format import Segment

KINDS = {
    "letters": "a",
    "digits": "7",
    "spaces": " ",
    "tabs": "\t",
    "line breaks": "\n",
    "dashes": "-",
    "brackets": "{}[]();,.",
    "box drawing": "─",
    "ideographs": "字",
    "combining marks": "\u0301",
    "emoji": "😀",
    "NUL": "\0",
    "half pairs": "\ud83d",
    "words": "the price of desk ",
}
"""By name, what a run of the kind repeats."""
LENGTHS = (100_000, 1_000_000)
"""Characters of the short runs and of the long ones."""
ROUNDS = 3
BARS = ("encode_growth", "refuse_growth", "cut_growth")
SEED = 0
_SHIPPED = Path(__file__).parents[1] / "runtime" / "assets" / "default_model"

Growth = dict[str, float]
"""By kind, how many times as long the long run takes per byte."""


def run_of(kind: str, length: int) -> str:
    """A run of so many characters."""
    sign = KINDS[kind]
    return (sign * (length // len(sign) + 1))[:length]


def growth(work: Callable[[str], None]) -> Growth:
    """How the time of ``work`` per byte grows with a run, by kind."""
    found: Growth = {}
    for kind in KINDS:
        runs = [run_of(kind, length) for length in LENGTHS]
        taken: list[list[float]] = [[] for _ in runs]
        for _ in range(ROUNDS):
            for text, seconds in zip(runs, taken, strict=True):
                began = time.perf_counter()
                work(text)
                seconds.append(time.perf_counter() - began)
        short, long = (
            statistics.median(seconds) / len(text)
            for text, seconds in zip(runs, taken, strict=True)
        )
        found[kind] = long / short
    return found


def encoding(tokenizer: Tokenizer) -> Growth:
    """Time to tokenise a run."""

    def encode(text: str) -> None:
        tokenizer.encode([Segment(text)])

    return growth(encode)


def answering(url: str, truncation: str, status: int) -> Growth:
    """Time until a server's answer to a run, which has to have a status."""
    address = urlsplit(url)
    connection = HTTPConnection(str(address.hostname), address.port, timeout=120)

    def ask(text: str) -> None:
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": text}
        asked = {"role": "user", "content": "hi"}
        body = {"model": "default", "input": [asked, call, output], "max_output_tokens": 1}
        sent = json.dumps(body | {"truncation": truncation})
        connection.request("POST", "/v1/responses", sent, {"content-type": "application/json"})
        answer = connection.getresponse()
        told = answer.read()
        if answer.status != status:
            raise RuntimeError(f"status {answer.status}, not {status}: {told[:200]!r}")

    try:
        return growth(ask)
    finally:
        connection.close()


def measure(data: Path) -> dict[str, Any]:
    """All figures.

    Raises:
        DataMissing: what the second tokenizer is made of is not there.
    """
    with tempfile.TemporaryDirectory() as folder:
        trained = train_tokenizer(data, Path(folder), seed=SEED)
        found = {
            "encode_shipped": encoding(Tokenizer.load(_SHIPPED)),
            "encode_trained": encoding(trained),
        }
        log = Path(folder) / "server.log"
        with child_server(["--max-context-tokens", "512", "--journal", ":memory:"], log=log) as up:
            found["refuse"] = answering(up.url, "disabled", 400)
            found["cut"] = answering(up.url, "auto", 200)
    return found | {
        "encode_growth": max(*found["encode_shipped"].values(), *found["encode_trained"].values()),
        "refuse_growth": max(found["refuse"].values()),
        "cut_growth": max(found["cut"].values()),
    }


def bars(figures: dict[str, Any]) -> list[Bar]:
    return [Bar(name=name, value=figures.get(name), op="<=", bar=2.0) for name in BARS]


def main() -> int:
    options = parser(__doc__).parse_args()
    try:
        figures = measure(options.data)
    except DataMissing as error:
        return report_missing("any_text", error, bars({}), as_json=options.json)
    return report("any_text", figures, bars(figures), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
