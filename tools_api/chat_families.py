"""The chat formats by name, and the choice of one by the tokenizer's special tokens.

A name stands for one published way of writing conversations. A format is made for a tokenizer:
a tag that the tokenizer knows is one token, else text where the published template has it so.

Knows the renderers. Knows no folder, no template and no weights.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tools_api.chat_chatml import QWEN2_DEFAULT_SYSTEM, ChatML
from tools_api.chat_deepseek import (
    ASSISTANT,
    BEGIN_OF_SENTENCE,
    CALL_TOKENS,
    END_OF_SENTENCE,
    OUTPUT_TAGS,
    OUTPUTS_TAGS,
    USER,
    DeepSeekR1,
    DeepSeekR1May,
    DeepSeekV3,
    DeepSeekV31,
)
from tools_api.chat_format import CallSyntax, ChatFormat
from tools_api.chat_gemma4 import TOKENS as GEMMA4_TOKENS
from tools_api.chat_gemma4 import Gemma4, Gemma4E
from tools_api.chat_glm import Glm45, Glm47
from tools_api.chat_harmony import Harmony
from tools_api.chat_kimi import TOKENS as KIMI_TOKENS
from tools_api.chat_kimi import KimiK2, KimiK2Thinking, KimiK25
from tools_api.chat_lfm import Lfm2, Olmo3
from tools_api.chat_llama import Llama3
from tools_api.chat_minimax import MiniMaxM2
from tools_api.chat_minimax_m3 import TOKENS as MINIMAX_M3_TOKENS
from tools_api.chat_minimax_m3 import MiniMaxM3
from tools_api.chat_mistral import Mistral, MistralV11, MistralV13
from tools_api.chat_qwen_xml import Nemotron3, Qwen35, QwenXml
from tools_api.chat_small import Gemma3, Granite4, Phi4Mini, SmolLm3

HasToken = Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One name of the table of chat families."""

    make: Callable[[HasToken], ChatFormat]
    needs: tuple[str, ...]
    """Special tokens without which it cannot be written."""


_CHATML = ("<|im_start|>", "<|im_end|>")
_CALL_TAGS = ("<tool_call>", "</tool_call>")
_THINK = ("<think>", "</think>")
_GLM = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", *_CALL_TAGS)
_MISTRAL_V11 = ("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]")
_DEEPSEEK_V31 = (BEGIN_OF_SENTENCE, END_OF_SENTENCE, USER, ASSISTANT, *CALL_TOKENS, *OUTPUT_TAGS)
_DEEPSEEK = (*_DEEPSEEK_V31, *OUTPUTS_TAGS)
_HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
_ROWS: dict[str, _Row] = {
    "qwen3": _Row(make=ChatML, needs=(*_CHATML, *_CALL_TAGS, "<think>", "</think>")),
    "qwen2.5": _Row(make=lambda has: ChatML(has, QWEN2_DEFAULT_SYSTEM), needs=_CHATML),
    "hermes": _Row(make=ChatML, needs=_CHATML),
    "qwen3.5": _Row(make=Qwen35, needs=(*_CHATML, *_CALL_TAGS, *_THINK)),
    "nemotron3": _Row(make=Nemotron3, needs=(*_CHATML, *_CALL_TAGS, *_THINK)),
    "qwen3-coder": _Row(make=QwenXml, needs=(*_CHATML, *_CALL_TAGS)),
    "harmony": _Row(make=Harmony, needs=_HARMONY),
    "lfm2": _Row(make=Lfm2, needs=(*_CHATML, "<|tool_call_start|>", "<|tool_call_end|>")),
    "olmo3": _Row(make=Olmo3, needs=_CHATML),
    "granite4": _Row(
        make=Granite4,
        needs=("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", *_CALL_TAGS),
    ),
    "smollm3": _Row(make=SmolLm3, needs=(*_CHATML, *_CALL_TAGS)),
    "phi4-mini": _Row(make=Phi4Mini, needs=("<|system|>", "<|end|>", "<|tool_call|>", "<|tool|>")),
    "gemma4": _Row(make=Gemma4, needs=GEMMA4_TOKENS),
    "gemma4-e": _Row(make=Gemma4E, needs=GEMMA4_TOKENS),
    "gemma3": _Row(make=Gemma3, needs=("<start_of_turn>", "<end_of_turn>")),
    "llama3.1": _Row(make=Llama3, needs=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    "glm4.5": _Row(make=Glm45, needs=_GLM),
    "glm4.7": _Row(make=Glm47, needs=_GLM),
    "minimax-m3": _Row(make=MiniMaxM3, needs=MINIMAX_M3_TOKENS),
    "minimax-m2": _Row(
        make=MiniMaxM2, needs=("]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>")
    ),
    "deepseek-r1": _Row(make=DeepSeekR1, needs=(*_DEEPSEEK, *_THINK)),
    "deepseek-r1-0528": _Row(make=DeepSeekR1May, needs=(*_DEEPSEEK, *_THINK)),
    "deepseek-v3.1": _Row(make=DeepSeekV31, needs=(*_DEEPSEEK_V31, *_THINK)),
    "deepseek-v3": _Row(make=DeepSeekV3, needs=_DEEPSEEK),
    "kimi-k2": _Row(make=KimiK2, needs=KIMI_TOKENS),
    "kimi-k2.5": _Row(make=KimiK25, needs=(*KIMI_TOKENS, *_THINK)),
    "kimi-k2-thinking": _Row(make=KimiK2Thinking, needs=(*KIMI_TOKENS, *_THINK)),
    "mistral-v13": _Row(make=MistralV13, needs=_MISTRAL_V11),
    "mistral-v11": _Row(make=MistralV11, needs=(*_MISTRAL_V11, "[CALL_ID]")),
    "mistral": _Row(make=Mistral, needs=("[INST]", "[/INST]")),
}


def chat_format_names() -> tuple[str, ...]:
    """Every name that ``chat_format_named`` takes, the more special before the more general."""
    return tuple(_ROWS)


def chat_format_named(name: str, has_token: HasToken) -> ChatFormat:
    """The format of that name for a tokenizer.

    Args:
        has_token: whether the tokenizer has a special token of that text.

    Raises:
        LookupError: there is no such name; the message lists them.
        ValueError: the tokenizer lacks special tokens that the format cannot do without.
    """
    row = _ROWS.get(name)
    if row is None:
        known = ", ".join(_ROWS)
        raise LookupError(f"there is no chat format {name!r}; there are {known}")
    if missing := [token for token in row.needs if not has_token(token)]:
        lacks = ", ".join(missing)
        raise ValueError(f"chat format {name}: the tokenizer has no special token {lacks}")
    return row.make(has_token)


def call_syntax_named(name: str, has_token: HasToken) -> CallSyntax:
    """The call syntax of the format of that name.

    Raises:
        LookupError: there is no such format.
        ValueError: the tokenizer lacks its special tokens, or it has no calls.
    """
    syntax = chat_format_named(name, has_token).calls
    if syntax is None:
        raise ValueError(f"chat format {name} has no calls with this tokenizer")
    return syntax


def chat_format_for(model_type: str, has_token: Callable[[str], bool]) -> ChatFormat:
    """The renderer for a model.

    The tokenizer decides: it holds the control tokens of the format the model was trained
    on. ``model_type`` (from config.json) settles what tokens cannot tell.

    Raises:
        ValueError: no format known here fits the tokens.
    """
    if has_token("<|im_start|>") and has_token("<|im_end|>"):
        qwen2 = model_type.startswith("qwen2")
        return ChatML(has_token, QWEN2_DEFAULT_SYSTEM if qwen2 else None)
    if has_token("<|start_header_id|>") and has_token("<|eot_id|>"):
        return Llama3(has_token)
    if has_token("[INST]") and has_token("[/INST]"):
        if has_token("[ARGS]"):
            raise ValueError("Mistral's tokenizer v11 and later ([ARGS]) is not supported")
        return Mistral(has_token)
    raise ValueError(
        f"no chat format for model type {model_type!r}: the tokenizer has neither <|im_start|> "
        "nor <|start_header_id|> nor [INST]"
    )
