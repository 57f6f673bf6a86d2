"""Grammars on their way: parsed on another thread, then finished beside the steps.

They are parsed for each tenant in turn, so that who wants many waits behind its own. One
compilation serves all requests that want the same grammar; it is given up when none of them is
left, and not begun if it has not been. Knows the compiler, and the sequences that wait with their
tenants. Knows no queue and no answer: what became of a grammar is for ``open_requests`` to act on.

Always true: a sequence that waits here is handed out by ``take_ready`` once, or withdrawn.
"""

from collections import deque
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from threading import Lock

from runtime.engine.background import BackgroundTasks, Pieces
from runtime.grammar.closing import Work
from runtime.grammar.compiler import CompiledGrammar, GrammarCompiler, ParsedGrammar
from runtime.scheduling.sequence import Sequence
from tools_api.grammar import GrammarSpec

Outcome = CompiledGrammar | Exception
"""The grammar, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compilation:
    """One grammar on its way: a background task from the moment when it is parsed."""

    spec: GrammarSpec
    parsing: Future[ParsedGrammar]
    pieces: Pieces[Outcome]
    owner: "Compilations"
    waiting: list[Sequence] = field(default_factory=list)
    """Sequences that wait for the grammar."""

    @property
    def is_void(self) -> bool:
        return not self.waiting

    def holds(self, sequence: Sequence) -> bool:
        return False  # none of them is admitted

    def conclude(self) -> None:
        self.owner.finished(self)


class Compilations:
    """The grammars that requests of one engine wait for."""

    def __init__(
        self, compiler: GrammarCompiler, workers: Executor, background: BackgroundTasks
    ) -> None:
        self._compiler = compiler
        self._workers = workers
        self.background = background
        self._parsing: dict[GrammarSpec, Compilation] = {}
        self._finishing: dict[GrammarSpec, Compilation] = {}
        self._ready: list[tuple[Sequence, Outcome]] = []
        self._lock = Lock()
        """The lock on what is to be parsed: the workers take from it."""
        self._to_parse: dict[str, deque[Compilation]] = {}
        """By tenant, the one that has waited longest for its turn first."""

    @property
    def num_bytes(self) -> int:
        """Memory of the grammars that are remembered, roughly."""
        return self._compiler.num_bytes

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for their grammar, or for being taken."""
        compilations = (*self._parsing.values(), *self._finishing.values())
        return len(self._ready) + sum(len(c.waiting) for c in compilations)

    @property
    def num_unparsed(self) -> int:
        """Grammars that wait for a worker, those included that nobody wants any more."""
        with self._lock:
            return sum(map(len, self._to_parse.values()))

    def want(self, sequence: Sequence, spec: GrammarSpec) -> None:
        """Have a grammar compiled for a sequence, unless it is remembered."""
        compiled = self._compiler.cached(spec)
        if compiled is not None:
            self._ready.append((sequence, compiled))
            return
        compilation = self._parsing.get(spec) or self._finishing.get(spec)
        if compilation is None:
            parsing = Future[ParsedGrammar]()
            pieces = Pieces(self._finish_of(parsing))
            compilation = Compilation(spec=spec, parsing=parsing, pieces=pieces, owner=self)
            self._parsing[spec] = compilation
        tenant = sequence.request.tenant
        wanted_already = any(other.request.tenant == tenant for other in compilation.waiting)
        compilation.waiting.append(sequence)
        if spec in self._parsing and not wanted_already:
            with self._lock:
                self._to_parse.setdefault(tenant, deque()).append(compilation)
            self._workers.submit(self._parse_one)

    def _parse_one(self) -> None:
        """Parse what is next, if anything is. On a worker's thread."""
        compilation = self._take_next()
        if compilation is None:
            return
        try:
            compilation.parsing.set_result(self._compiler.parse(compilation.spec))
        except BaseException as error:  # as executors do: whoever polls is to see it
            compilation.parsing.set_exception(error)

    def _take_next(self) -> Compilation | None:
        """The first grammar that nobody parses and somebody wants, of the tenant whose turn it
        is."""
        with self._lock:
            while self._to_parse:
                tenant = next(iter(self._to_parse))
                queue = self._to_parse[tenant]
                compilation = queue.popleft()
                parsing = compilation.parsing
                begun = parsing.running() or parsing.done()
                is_next = not begun and parsing.set_running_or_notify_cancel()
                if is_next or not queue:
                    del self._to_parse[tenant]
                if is_next:
                    if queue:
                        self._to_parse[tenant] = queue
                    return compilation
            return None

    def withdraw(self, sequence: Sequence) -> None:
        """A sequence does not want its grammar any more. If none does, it is not finished, nor
        parsed if that has not begun."""
        self._ready = [entry for entry in self._ready if entry[0] is not sequence]
        for stage in (self._parsing, self._finishing):
            for spec, compilation in list(stage.items()):
                if sequence in compilation.waiting:
                    compilation.waiting.remove(sequence)
                    if compilation.is_void:
                        compilation.parsing.cancel()
                        del stage[spec]

    def poll(self) -> None:
        """Go on with what has been parsed, as far as the step's share of time reaches."""
        for spec, compilation in list(self._parsing.items()):
            if compilation.parsing.done():
                del self._parsing[spec]
                self._finishing[spec] = compilation
                if self.background.finished_at_once(compilation):
                    self.finished(compilation)

    def finished(self, compilation: Compilation) -> None:
        """A compilation has come to its end: its sequences can be taken."""
        del self._finishing[compilation.spec]
        outcome = compilation.pieces.result
        self._ready += [(sequence, outcome) for sequence in compilation.waiting]

    def take_ready(self) -> list[tuple[Sequence, Outcome]]:
        """Sequences whose grammar is there or refused, oldest first; each is handed out once."""
        ready, self._ready = self._ready, []
        return ready

    def forget(self, compiled: CompiledGrammar) -> None:
        """Compile a grammar anew when it is wanted next."""
        self._compiler.forget(compiled)

    def _finish_of(self, parsing: Future[ParsedGrammar]) -> Work[Outcome]:
        try:
            return (yield from self._compiler.finishing(parsing.result()))
        except Exception as error:
            return error
