"""The chat format that a description names, as ``Tokenizer.load`` takes it.

Always true: without a description nothing is chosen here.
"""

from collections.abc import Mapping

from runtime.tokenizer import FormatOf
from tools_api.chat_format import ChatFormat
from tools_api.chat_generic import chat_format_described


def format_of(description: str | None) -> FormatOf | None:
    """The choice that a description makes; None: it makes none.

    Args:
        description: as ``tools_api.chat_generic`` has it.
    """
    if description is None:
        return None

    def choose(specials: Mapping[str, int]) -> ChatFormat:
        return chat_format_described(description, specials.__contains__)

    return choose
