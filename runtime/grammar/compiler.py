"""Grammars compiled once and remembered: text and vocabulary in, a matcher to copy out.

llguidance compiles; this module owns what is around it: one compilation however many ask,
a memory bounded in bytes, the vocabulary as the library must see it, and a first look (mask
and a short ending) that finds grammars which only fail later. The library's part runs beside
other threads; the look is Python, and so work in pieces for whoever must not be held up.

Knows the vocabulary's bytes. Knows no sequences (``runtime.grammar.state``) and no processes
(``runtime.grammar.probe``, which tries hostile grammars elsewhere first).

Always true: a CompiledGrammar is not known to be unsatisfiable, and is never changed by who
walks it.
"""

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import llguidance

from runtime.grammar.closing import THOROUGH, ClosingSearch, Work, complete
from runtime.grammar.closing_tables import ClosingTables
from runtime.grammar.exact_rules import Exact, with_exact_numbers
from runtime.grammar.refusal import GrammarRefused, refusal
from runtime.grammar.schema_parts import circles
from runtime.grammar.schemas import Path, all_blocks, json_blocks, subschemas
from runtime.grammar.short_values import short_value
from runtime.tokenizer import Tokenizer
from tools_api.exact_json import written
from tools_api.grammar import GrammarSpec, resolve_specials
from tools_api.schema_dialect import MAX_COUNTED_CHARS

MAX_CLOSING_TOKENS = 8192
"""Longer endings are not looked for: a turn without a known one runs until its limit."""

_MAX_FORCED_TEXTS = 4096
_VALUE_KEYS = frozenset({"items", "additionalItems", "additionalProperties"})
_VALUE_HOLDERS = frozenset({("properties",), ("patternProperties",), ("prefixItems",), ("items",)})
_EMPTY = "Unsatisfiable schema"

# An automaton state takes 1 to 2 kB; the library's default would allow 500 MB a grammar. The
# fuel bounds what one mask or one look for forced tokens may cost, some 3 ms; 425 schemas from
# practice do with half of it, and a fifth of the library's default is too little for some.
_LIMITS = llguidance.LLParserLimits(
    max_lexer_states=30_000,
    step_lexer_fuel=100_000,
    max_items_in_row=16_000,
    verbose_errors=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledGrammar:
    """A grammar ready to be walked. Shared by all sequences that use it; never changed."""

    spec: GrammarSpec
    pristine: llguidance.LLMatcher
    """At the start; copied, never fed."""
    build: Callable[[], llguidance.LLMatcher]
    """Makes another ``pristine``, that shares nothing with this one."""
    after_id: int | None
    trigger_id: int | None
    closing: tuple[int, ...] | None
    """A short legal output from where the grammar binds, end-of-turn included; None if the search
    found none, which proves nothing."""
    least_tokens: int
    """No legal output is shorter."""
    search: ClosingSearch
    size_bytes: int
    """Estimate, for the cache's bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedGrammar:
    """The library's compiled form of a grammar; nobody knows yet whether it can be satisfied."""

    spec: GrammarSpec
    matcher: llguidance.LLMatcher
    build: Callable[[], llguidance.LLMatcher]
    after_id: int | None
    trigger_id: int | None


class GrammarCompiler:
    """Compiles and remembers grammars. Safe to call from several threads."""

    def __init__(self, tokenizer: Tokenizer, *, max_cache_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = _vocabulary(tokenizer)
        self.tables = ClosingTables(tokenizer)
        """The tables that searches and walks use of the vocabulary."""
        self._max_cache_bytes = max_cache_bytes
        self._lock = threading.Lock()
        self._cache: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._cache_bytes = 0
        self._running: dict[GrammarSpec, Future[CompiledGrammar]] = {}

    @property
    def num_bytes(self) -> int:
        """Memory of the grammars that are remembered, roughly."""
        return self._cache_bytes

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """The compiled grammar; waits if another thread is compiling the same one.

        Raises:
            GrammarRefused: the grammar cannot be enforced, or nothing can satisfy it.
        """
        with self._lock:
            if spec in self._cache:
                self._cache.move_to_end(spec)
                return self._cache[spec]
            running = self._running.get(spec)
            mine: Future[CompiledGrammar] = Future()
            if running is None:
                self._running[spec] = mine
        if running is not None:
            return running.result()
        try:
            compiled = complete(self.finishing(self.parse(spec)))
        except BaseException as error:
            mine.set_exception(error)
            with self._lock:
                del self._running[spec]
            raise
        mine.set_result(compiled)
        with self._lock:
            del self._running[spec]
        return compiled

    def cached(self, spec: GrammarSpec) -> CompiledGrammar | None:
        """The compiled grammar if it is remembered."""
        with self._lock:
            if spec in self._cache:
                self._cache.move_to_end(spec)
            return self._cache.get(spec)

    def forget(self, compiled: CompiledGrammar) -> None:
        """Compile it anew when it is wanted next. A matcher that ran out of fuel leaves the
        automaton, which all matchers of a grammar share, unfit for others."""
        with self._lock:
            if self._cache.get(compiled.spec) is compiled:
                del self._cache[compiled.spec]
                self._cache_bytes -= compiled.size_bytes

    def _remember(self, compiled: CompiledGrammar) -> None:
        if compiled.spec in self._cache:
            return
        self._cache[compiled.spec] = compiled
        self._cache_bytes += compiled.size_bytes
        while self._cache_bytes > self._max_cache_bytes:
            _, oldest = self._cache.popitem(last=False)
            self._cache_bytes -= oldest.size_bytes

    def parse(self, spec: GrammarSpec) -> ParsedGrammar:
        """The library's part of a compilation: long, but other threads run meanwhile.

        Raises:
            GrammarRefused: the grammar cannot be enforced.
        """
        after_id = self._phase_token(spec.after)
        trigger_id = self._phase_token(spec.trigger)
        try:
            lark = resolve_specials(spec.lark, self._tokenizer.special_id)
        except LookupError as error:
            raise GrammarRefused(f"the model has no special token {error.args[0]!r}") from error
        _refuse_long_strings(lark)
        lark, circle = _without_circles(lark)
        exact = with_exact_numbers(lark)
        if exact is None:
            build = self.builder(lark)
            matcher = build()
            if matcher.is_error():
                raise circle or refusal(matcher.get_error(), spec.lark)
        else:
            build, matcher = self._exactly(lark, exact)
        first = matcher.deep_copy()
        first.compute_bitmask()
        if first.is_error():  # some grammars fail only here
            raise refusal(first.get_error(), spec.lark)
        return ParsedGrammar(
            spec=spec, matcher=matcher, build=build, after_id=after_id, trigger_id=trigger_id
        )

    def builder(self, lark: str) -> Callable[[], llguidance.LLMatcher]:
        """Makes matchers of a grammar in llguidance's own language, which is checked with the first
        of them."""
        return partial(llguidance.LLMatcher, self._vocabulary, lark, log_level=0, limits=_LIMITS)

    def _exactly(
        self, lark: str, exact: Exact
    ) -> tuple[Callable[[], llguidance.LLMatcher], llguidance.LLMatcher]:
        """A matcher of rules that keep all numbers, and what makes another one.

        Raises:
            GrammarRefused: the grammar cannot be enforced.
        """
        loose = self.builder(exact.loosened)()
        if loose.is_error():
            raise refusal(loose.get_error(), lark)
        build = self.builder(exact.lark)
        matcher = build()
        if matcher.is_error() and _EMPTY in matcher.get_error():
            # The library refuses a whole grammar for one block, though it may be left out.
            exact = with_exact_numbers(lark, self._is_empty) or exact
            build = self.builder(exact.lark)
            matcher = build()
        if matcher.is_error():
            message = refusal(matcher.get_error(), exact.lark).message
            raise GrammarRefused(message, block=exact.block)
        return build, matcher

    def _is_empty(self, block: str) -> bool:
        """Whether the library says that nothing satisfies a ``%json`` directive."""
        matcher = self.builder(f"start: value\nvalue: {block}\n")()
        return matcher.is_error() and _EMPTY in matcher.get_error()

    def finishing(self, parsed: ParsedGrammar) -> Work[CompiledGrammar]:
        """The rest of a compilation, in pieces; remembers the result.

        Raises:
            GrammarRefused: it is known that no finite value satisfies one of its schemas, or
                the library gave up on it.
        """
        spec, matcher = parsed.spec, parsed.matcher
        values = yield from _short_values(spec.lark)
        search = ClosingSearch(self.tables)
        yield from search.preparing(spec.lark, values)
        closing = yield from search.finding(matcher, limit=MAX_CLOSING_TOKENS, effort=THOROUGH)
        if closing is None:
            _refuse_broken(matcher, spec)
        compiled = CompiledGrammar(
            spec=spec,
            pristine=matcher,
            build=parsed.build,
            after_id=parsed.after_id,
            trigger_id=parsed.trigger_id,
            closing=closing,
            least_tokens=_least_tokens(matcher),
            search=search,
            size_bytes=200_000 + 100 * len(spec.lark),
        )
        with self._lock:
            self._remember(compiled)
        return compiled

    def _phase_token(self, name: str | None) -> int | None:
        if name is None:
            return None
        token = self._tokenizer.special_id(name)
        if token is None:
            raise GrammarRefused(f"the model has no special token {name!r}")
        return token


class _Vocabulary:
    """The tokenizer as the library wants to see it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = tokenizer.end_of_turn_id
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.specials.values())
        self._tokenizer = tokenizer
        self._encoded = lru_cache(_MAX_FORCED_TEXTS)(self._encode)

    def __call__(self, text: bytes) -> list[int]:
        """Called for every text that a grammar forces, mostly the same few."""
        return list(self._encoded(text))

    def _encode(self, text: bytes) -> tuple[int, ...]:
        return tuple(self._tokenizer.spell(text.decode()))


def _vocabulary(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    """The library's own reading of tokenizer.json takes ``<tool_call>`` inside a constant for
    the special token, and then no token fits. Through our encoder text stays text."""
    wrapper = llguidance.TokenizerWrapper(_Vocabulary(tokenizer))
    return llguidance.LLTokenizer(
        wrapper,
        n_vocab=tokenizer.vocab_size,
        eos_token=[tokenizer.end_of_turn_id],
        slices=llguidance.LLTokenizer.json_slices(),
    )


def _short_values(lark: str) -> Work[list[str]]:
    """Short values of a grammar's schemas, as far as some can be told.

    Raises:
        GrammarRefused: a schema has none that ends.
    """
    texts: list[str] = []
    for block, (_, schema) in enumerate(json_blocks(lark)):
        known = yield from short_value(schema)
        if known.endless:
            message = "no value satisfies it: what it requires requires itself without end"
            raise GrammarRefused(message, block=block)
        if known.text is not None:
            texts.append(known.text)
    return texts


def _refuse_long_strings(lark: str) -> None:
    """Refuse schemas with a string that has to be so long that the library would run out of states
    when it is written.

    Raises:
        GrammarRefused: naming its ``minLength``.
    """
    for block, (_, schema) in enumerate(json_blocks(lark)):
        for path, node in subschemas(schema):
            least = node.get("minLength")
            if isinstance(least, int) and least > MAX_COUNTED_CHARS:
                raise GrammarRefused(
                    f"a string of more than {MAX_COUNTED_CHARS} characters cannot be enforced",
                    keyword="minLength",
                    path=(*path, "minLength"),
                    block=block,
                )


def _is_value(path: Path) -> bool:
    """Whether what stands there is a value of its own, and no part of what is said of one."""
    return not path or path[-1] in _VALUE_KEYS or path[-2:-1] in _VALUE_HOLDERS


def _without_circles(lark: str) -> tuple[str, GrammarRefused | None]:
    """The grammar without values that refer to nothing but themselves: the library lets an output
    begin one, and then lets nothing follow. Nothing finite shows that a value satisfies one, so
    none does; what need not hold one is still legal.

    Returns:
        The grammar, and how to refuse it if nothing is left; None if it had no circle.

    Raises:
        GrammarRefused: a whole schema is a circle.
    """
    if '"$ref"' not in lark:
        return lark, None
    parts, end, first = list[str](), 0, None
    for block in all_blocks(lark):
        schema = block.schema
        found = circles(schema) if isinstance(schema, dict) else {}
        places = [
            (path, found[id(node)])
            for path, node in (subschemas(schema) if found else ())
            if id(node) in found and _is_value(path)
        ]
        for path, keyword in places:
            message = "it refers to nothing but itself"
            refused = GrammarRefused(message, keyword, (*path, keyword), block.number)
            if not path:
                raise refused
            first = first or refused
        if places:
            text = written(_closed(schema, [path for path, _ in places]), ensure_ascii=True)
            parts += [lark[end : block.start], "%json ", text]
            end = block.end
    return "".join([*parts, lark[end:]]), first


def _closed(schema: Any, paths: Iterable[Path]) -> Any:
    """A copy in which nothing satisfies what stands at those paths."""
    schema = copy.deepcopy(schema)
    for path in paths:
        holder = schema
        for step in path[:-1]:
            holder = holder[step]
            if holder is False:  # inside one that is closed already
                break
        else:
            holder[path[-1]] = False
    return schema


def _least_tokens(matcher: llguidance.LLMatcher) -> int:
    """The tokens that all legal outputs begin with, and those that must at least follow."""
    ahead, forced = matcher.deep_copy(), 0
    while forced < MAX_CLOSING_TOKENS and not ahead.is_accepting():
        run = ahead.compute_ff_tokens()
        if not run:
            return forced + 2  # one more, and the end-of-turn
        forced += len(run)
        ahead.consume_tokens(run)
    return forced + 1


def _refuse_broken(matcher: llguidance.LLMatcher, spec: GrammarSpec) -> None:
    """Refuse a grammar whose automaton ran out of fuel in the search: no turn could use it."""
    again = matcher.deep_copy()
    again.compute_bitmask()
    if again.is_error():
        raise refusal(again.get_error(), spec.lark)
