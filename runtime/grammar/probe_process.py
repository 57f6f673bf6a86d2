"""The process that tries grammars: compiles one, looks for a legal output, walks through it.

Started by ``runtime.grammar.probe_child``, which may kill it at any time. It ends with its pipe,
and by itself where a check needs more memory than it may. Imports no torch.

Always true: what a library prints does not land among the frames.
"""

import argparse
import os
import resource
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from runtime.chat_formats import format_of
from runtime.grammar.compiler import GrammarCompiler
from runtime.grammar.refusal import GrammarRefused
from runtime.grammar.trial import Trial
from runtime.tokenizer import Tokenizer, TokenizerError
from tools_api.grammar import GrammarSpec

LENGTH: Final = struct.Struct("<I")
"""The length in front of each frame, in both directions."""
OUT_OF_MEMORY: Final = 77
"""Exit status of a process whose check needed too much."""


def frame(value: Any) -> bytes:
    """A frame of JSON as both halves send it."""
    body = orjson.dumps(value)
    return LENGTH.pack(len(body)) + body


class _MemoryWatch:
    """Ends the process when a check needs more memory than it may, or when the parent is
    gone. Sleeps between checks."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._parent = os.getppid()
        self._busy = threading.Event()
        self._base = 0
        threading.Thread(target=self._run, daemon=True).start()

    def __enter__(self) -> None:
        self._base = _resident_bytes()
        self._busy.set()

    def __exit__(self, *error: object) -> None:
        self._busy.clear()

    def _run(self) -> None:
        while True:
            self._busy.wait()
            if _resident_bytes() - self._base > self._memory_bytes:
                os._exit(OUT_OF_MEMORY)
            if os.getppid() != self._parent:
                os._exit(1)
            time.sleep(0.005)


def _resident_bytes() -> int:
    """Memory in use; where the system does not say, the most that ever was."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


_RESERVED_BYTES = 128 << 20
"""Memory that the C library maps, and does not use, for the allocations of one more thread."""


def _limit_address_space(memory_bytes: int) -> None:
    """Bound one huge allocation, which the watch could not see in time."""
    try:
        with open("/proc/self/statm", "rb") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return
    limit = mapped + 2 * memory_bytes + _RESERVED_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _verdict(compiler: GrammarCompiler, trial: Trial, spec: GrammarSpec) -> dict[str, Any] | None:
    try:
        trial.of(compiler.compile(spec))
    except GrammarRefused as refused:
        return {
            "message": refused.message,
            "keyword": refused.keyword,
            "path": refused.path,
            "block": refused.block,
        }
    return None


def serve(requests: BinaryIO, answers: BinaryIO, compiler: GrammarCompiler, memory: int) -> None:
    """Answer checks until the pipe is closed."""
    trial, watch = Trial(compiler.tables), _MemoryWatch(memory)
    while len(prefix := requests.read(LENGTH.size)) == LENGTH.size:
        body = requests.read(LENGTH.unpack(prefix)[0])
        with watch:
            answer = _verdict(compiler, trial, GrammarSpec(**orjson.loads(body)))
        answers.write(frame(answer))
        answers.flush()


def main() -> int:
    """Entry point of the child; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m runtime.grammar.probe_process")
    parser.add_argument("folder", type=Path)
    parser.add_argument("memory_bytes", type=int)
    parser.add_argument("--vocab-size", type=int)
    parser.add_argument("--model-type")
    parser.add_argument("--chat-format")
    options = parser.parse_args()
    # Whatever a library prints must not land among the frames.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # An interrupt at the terminal is for the parent alone. A group is enough: to processes of
    # another session Linux gives a share of the CPU of their own, however nice they are.
    os.setpgid(0, 0)
    # A probe ends with its pipe, not by a signal that is meant for the service.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        tokenizer = Tokenizer.load(
            options.folder,
            vocab_size=options.vocab_size,
            model_type=options.model_type,
            format_of=format_of(options.chat_format),
        )
    except TokenizerError as error:
        answers.write(frame({"error": str(error)}))
        answers.flush()
        return 1
    compiler = GrammarCompiler(tokenizer, max_cache_bytes=0)
    _limit_address_space(options.memory_bytes)
    answers.write(frame({"ready": True}))
    answers.flush()
    serve(sys.stdin.buffer, answers, compiler, options.memory_bytes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
