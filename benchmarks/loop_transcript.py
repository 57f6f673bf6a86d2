"""What our own server makes of a session's texts, as the token ids that a peer is sent.

Always true: a peer that is sent these computes the same prompts as our server, to the token.
"""

from collections.abc import Sequence
from pathlib import Path

from runtime.tokenizer import Tokenizer
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import TemplateOptions
from tools_api.items import Message, TextPart


class ChatTranscript:
    """A ``loop_peers.Transcript`` in the chat format of a model folder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.load(folder)
        self._format = chat_format_for("qwen3", self._tokenizer.specials.__contains__)

    def opened(self, system: str) -> list[int]:
        """See ``Transcript.opened``."""
        segments = self._format.header(system or None, (), TemplateOptions())
        return [int(token) for token in self._tokenizer.encode(segments)]

    def asked(self, text: str, *, first: bool) -> list[int]:
        """See ``Transcript.asked``."""
        options = TemplateOptions()
        message = Message(role="user", content=(TextPart(type="input_text", text=text),))
        segments = self._format.items(
            [message], first=first, open_output=not first, options=options
        )
        segments += self._format.generation_prompt(options)
        return [int(token) for token in self._tokenizer.encode(segments)]

    def text_of(self, answer: Sequence[int]) -> str:
        """See ``Transcript.text_of``: the text that our server would say."""
        return self._tokenizer.text_of(answer)

    def foretold(self, follows: Sequence[int], count: int) -> str:
        """An answer of ``count`` tokens of a model of wide margins (``loop_model.successors``)."""
        last = self.asked("", first=True)[-1]
        said = []
        for _ in range(count):
            last = follows[last]
            said.append(last)
        return self.text_of(said)
