"""Items as the exact token ids of one model: rendered by its chat format, and tokenised once."""

from collections.abc import Sequence

import numpy as np

from runtime.messages import TokenArray
from runtime.text_encoder import UnsplittableText
from runtime.tokenizer import Tokenizer
from sessions.durable.transcript import Entry, Header, Tail, expanded, header_tools
from tools_api import errors
from tools_api.chat_format import ChatFormat, Segment, TemplateOptions
from tools_api.items import Item, Message
from tools_api.tools import FunctionTool

_MOST_BYTES = 4
"""The most bytes of a character."""
_NO_TOKENS: TokenArray = np.empty(0, dtype=np.int32)


class Renderer:
    """Items to token ids, for one model; may be used by several threads.

    ``header`` and ``input`` raise ApiError for a text that cannot be tokenised.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_format: ChatFormat,
        *,
        max_tokens: int,
    ) -> None:
        """
        Args:
            max_tokens: of the model's context.
        """
        self._tokenizer = tokenizer
        self._format = chat_format
        self._max_tokens = max_tokens
        self._banned: dict[tuple[bool, bool], tuple[int, ...]] = {}

    def banned_tokens(self, *, thinking: bool, calls: bool) -> tuple[int, ...]:
        """Special tokens that mean nothing in an output of this kind, ascending."""
        key = (thinking, calls)
        if key not in self._banned:
            names = self._format.output_specials(thinking=thinking, calls=calls)
            self._banned[key] = tuple(
                sorted(
                    token
                    for name, token in self._tokenizer.specials.items()
                    if name not in names and token not in self._tokenizer.end_of_turn_ids
                )
            )
        return self._banned[key]

    def header(
        self,
        *,
        instructions: str | None,
        opening: Message | None,
        tools: tuple[FunctionTool, ...],
        options: TemplateOptions,
        parent: Entry | None,
    ) -> Header:
        """Render the header, or take the parent's if it was made of the same parts.

        A leading system message takes the place of instructions where there are none;
        where there are both it follows them.

        Raises:
            ApiError: by its length it cannot fit the context; it is not tokenised.
        """
        tools = header_tools(tools)
        if parent is not None:
            header = parent.header
            if (instructions, opening, tools, options) == (
                header.instructions,
                header.opening,
                header.tools,
                header.options,
            ):
                return header
        if instructions is None and opening is not None:
            segments = self._format.header(opening.text, tools, options)
        else:
            segments = self._format.header(instructions, tools, options)
            if opening is not None:
                segments += self._format.items(
                    (opening,), first=True, open_output=False, options=options
                )
        advice = "its instructions and tools alone are too long"
        self._refuse_hopeless(segments, self._max_tokens, advice)
        return Header(
            instructions=instructions,
            opening=opening,
            tools=tools,
            options=options,
            ids=self._encode(segments),
        )

    def _refuse_hopeless(self, segments: Sequence[Segment], most: int, *advice: str) -> None:
        text = _text(segments)
        if len(text) * _MOST_BYTES <= most:
            return  # the bound on its tokens is never above its bytes
        least = self._tokenizer.least_tokens(text)
        if least > most:
            raise errors.context_length_exceeded(least, most, *advice)

    def count(self, items: tuple[Item, ...], options: TemplateOptions) -> int:
        """Tokens of items on their own; a good estimate of what they add to a context. Of items
        that cannot fit into any as few as they can be."""
        segments, _ = self._segments(items, Tail.INPUT, generate=False, options=options)
        text = _text(segments)
        least = self._tokenizer.least_tokens(text)
        if least > self._max_tokens:
            return least
        try:
            return len(self._tokenizer.encode(segments))
        except UnsplittableText:
            return len(text.encode("utf-8", "surrogatepass"))

    def input(
        self,
        items: tuple[Item, ...],
        tail: Tail,
        *,
        generate: bool,
        options: TemplateOptions,
        most: int | None = None,
    ) -> tuple[TokenArray, Tail]:
        """Ids of new items behind ``tail``, with the generation prompt if the model is to
        go on, and how the text ends then (before the model's output).

        Args:
            most: a text that has more tokens, whatever they are, is refused before it is
                tokenised.
        """
        segments, ends = self._segments(items, tail, generate=generate, options=options)
        if not segments:
            return _NO_TOKENS, tail
        if most is not None:
            self._refuse_hopeless(segments, most)
        return self._encode(segments), ends

    def _segments(
        self, items: tuple[Item, ...], tail: Tail, *, generate: bool, options: TemplateOptions
    ) -> tuple[list[Segment], Tail]:
        """The text of items, and how it ends."""
        write, given = self._format, expanded(items)
        if tail in (Tail.INSIDE, Tail.OPENED_CALL_OUTPUT):
            opened = tail is Tail.OPENED_CALL_OUTPUT
            segments = write.items_inside(given, opened=opened, options=options)
        else:
            segments = write.items(
                given,
                first=tail is Tail.START,
                open_output=tail is Tail.OPEN_OUTPUT,
                after_output=tail in (Tail.CLOSED_OUTPUT, Tail.OPEN_OUTPUT),
                options=options,
            )
        inside = write.ends_inside(given, before=tail is Tail.INSIDE)
        if generate:
            prompt = write.prompt_inside if inside else write.generation_prompt
            segments += prompt(options)
        return segments, Tail.INSIDE if inside else Tail.INPUT

    def _encode(self, segments: Sequence[Segment]) -> TokenArray:
        try:
            return self._tokenizer.encode(segments)
        except UnsplittableText as error:
            raise errors.unsplittable_input() from error


def _text(segments: Sequence[Segment]) -> str:
    """The segments that are text; nothing is spelt across a special one."""
    return "".join(segment.text for segment in segments if not segment.special)
