"""Emitted tokens to parsed pieces: decoding, stop strings, calls, log-probabilities.

One reader reads one turn. Tokens go through one by one, so that each is attributed to
reasoning or to text exactly, however many a step brought.

Always true: ``tokens`` is what the engine emitted, untouched; text that a stop string
trims, or that is still incomplete UTF-8, is missing from the pieces only.
"""

from collections.abc import Iterable, Sequence

from runtime.messages import TokenArray, TokenLogprob
from runtime.tokenizer import IncrementalDecoder, Tokenizer
from sessions.turns.response_events import Piece
from sessions.turns.text_logprobs import TextLogprobs
from tools_api.call_parser import CallParser, ParsedEvent, ParsedText
from tools_api.chat_format import ChatFormat, Segment
from tools_api.events import Event
from tools_api.reasoning_spans import ReasoningSpan, reasoning_span
from tools_api.responses import logprob
from tools_api.tools import FunctionTool


class OutputReader:
    """Reads one turn's output as it comes."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        chat_format: ChatFormat,
        thinking: bool,
        calls: bool,
        stops: Sequence[str],
        plain: frozenset[str] = frozenset(),
        reasons_first: bool = False,
        tools: Sequence[FunctionTool] = (),
    ) -> None:
        """``calls``, ``plain``, ``reasons_first`` and ``tools`` as for ``CallParser``."""
        self._tokenizer = tokenizer
        self._decoder = IncrementalDecoder(tokenizer)
        self._stops = StopStrings(stops)
        self._parser = CallParser(
            chat_format,
            thinking,
            calls=calls,
            plain=plain,
            reasons_first=reasons_first,
            tools=tools,
        )
        self._span = reasoning_span(chat_format, thinking=thinking, reasons_first=reasons_first)
        self._logprobs: TextLogprobs | None = None
        """Log-probabilities of the text; None: the request asks for none."""
        self.tokens: list[int] = []
        self.num_reasoning = 0
        """Tokens of reasoning, those that close it included."""

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.stop

    def read(
        self,
        new_tokens: Sequence[int] | TokenArray,
        logprobs: Sequence[TokenLogprob] = (),
        *,
        stopped: bool = False,
    ) -> list[Piece]:
        """Take the tokens of one step.

        Args:
            logprobs: of those of ``new_tokens`` that have one, in the same order.
            stopped: the last of them completes a stop string.
        """
        pieces: list[Piece] = []
        known = iter(logprobs)
        upcoming = next(known, None)
        last = len(new_tokens) - 1
        for place, token in enumerate(map(int, new_tokens)):
            self.tokens.append(token)
            special = self._tokenizer.special_text(token)
            segments = self._decoder.push((token,))
            found = None
            if upcoming is not None and upcoming.token == token:
                found, upcoming = upcoming, next(known, None)
            self._note(found, segments, special=special is not None)
            self.num_reasoning += self._span.counts(special)
            self._span = self._behind(self._span, token, special)
            parsed = self._parser.push(self._trimmed(segments, stopped and place == last))
            pieces += self._attributed(parsed, special=special is not None)
        return pieces

    def _note(
        self, found: TokenLogprob | None, segments: Sequence[Segment], *, special: bool
    ) -> None:
        """A token has come; a marker is no text, but may end some that was held back."""
        if self._logprobs is None:
            if found is None:
                return
            self._logprobs = TextLogprobs()
        text = "".join(segment.text for segment in segments if not segment.special)
        if special:
            self._logprobs.complete(text)
        else:
            self._logprobs.add(None if found is None else self._wire_logprob(found), text)

    @property
    def inside_call(self) -> bool:
        """As ``CallParser.inside_call``."""
        return self._parser.inside_call

    def opens(self, token: int) -> bool:
        """Whether a token would end a text and open something else."""
        special = self._tokenizer.special_text(token)
        return special is not None and self._parser.opens(special)

    def before_reasoning(self, tokens: Iterable[int], most: int) -> int:
        """How many of the next tokens come before reasoning would be more than ``most`` tokens
        in all."""
        count, span, place = self.num_reasoning, self._span, 0
        for token in map(int, tokens):
            special = self._tokenizer.special_text(token)
            counts = span.counts(special)
            if counts and count >= most:
                break
            count += counts
            span = self._behind(span, token, special)
            place += 1
        return place

    def finish(self) -> list[Piece]:
        """The text that was held back; the turn has ended."""
        rest = self._decoder.finish()
        if self._logprobs is not None:
            self._logprobs.complete("".join(segment.text for segment in rest))
        segments = self._trimmed(rest, stopped=False)
        held = self._stops.flush()
        if held:
            segments.append(Segment(held))
        parsed = [*self._parser.push(segments), *self._parser.finish()]
        return self._attributed(parsed, special=False)

    def _trimmed(self, segments: list[Segment], stopped: bool) -> list[Segment]:
        """Without what belongs to a stop string, and what is held back for one; special tokens
        still pass."""
        if not self._stops.any:
            return segments
        out: list[Segment] = []
        for segment in segments:
            if segment.special:
                out += [Segment(self._stops.flush()), segment]
            elif stopped:
                out.append(Segment(self._stops.end(segment.text)))
            else:
                out.append(Segment(self._stops.push(segment.text)))
        return [segment for segment in out if segment.text]

    def _behind(self, span: ReasoningSpan, token: int, special: str | None) -> ReasoningSpan:
        """The place in the text behind a token."""
        text = ""
        if span.reads_text and special is None:
            text = self._tokenizer.token_bytes(token).decode("utf-8", "replace")
        return span.behind(special, text)

    def _attributed(self, parsed: list[ParsedEvent], *, special: bool) -> list[Piece]:
        """Give log-probabilities to the text that their tokens became."""
        if self._logprobs is None:
            return list(map(Piece, parsed))
        pieces: list[Piece] = []
        for event in parsed:
            if isinstance(event, ParsedText):
                pieces.append(Piece(event, self._logprobs.logprobs_of(event.text)))
            else:
                pieces.append(Piece(event))
                self._logprobs.clear()
        if special:
            self._logprobs.clear()
        return pieces

    def _wire_logprob(self, found: TokenLogprob) -> Event:
        return logprob(
            self._tokenizer.token_bytes(found.token),
            found.logprob,
            [(self._tokenizer.token_bytes(token), value) for token, value in found.top],
        )


class StopStrings:
    """One turn's text up to the stop string that ended it, though it arrives in pieces.

    Where stop strings count, and which token completes one, the engine says (``StopSearch``): a
    call or a strict schema's output may contain them. What stands before it in the same text is
    the client's, the stop string itself is not. Because one may begin in a piece and end in a
    later one, the longest suffix that could still become one is held back. Without stop strings
    text passes as it is.

    Always true: what was let out and what is held back are the text pushed.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stop: str | None = None
        """The stop string that ended the text."""

    @property
    def any(self) -> bool:
        """Whether there are stop strings; without any, text passes as it is."""
        return bool(self._stops)

    def push(self, text: str) -> str:
        """Return what can be let out."""
        if not self._stops:
            return text
        text = self._held + text
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self, text: str) -> str:
        """Return what stands before the stop string that ``text`` completes."""
        text, self._held = self._held + text, ""
        hits = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        ]
        if not hits:
            return text
        # The one that is complete first, as the engine sees them come.
        _, start, self.stop = min(hits)
        return text[:start]

    def flush(self) -> str:
        """Let out what is held back: no stop string can reach over this point."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that begins ``stop``."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
