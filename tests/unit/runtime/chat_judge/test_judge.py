"""A template is judged by what it writes: a renderer of ours, its pieces, or a refusal."""

import re
from collections.abc import Sequence

import pytest

from runtime.chat_judge.conversations import Conversation, Wants, probes, user, variables
from runtime.chat_judge.differences import written
from runtime.chat_judge.judge import Judgement, Refused, fitting_names, judge
from runtime.chat_judge.template_runs import run_template
from tests.support import judged_templates as templates
from tests.support.byte_tokenizer import SPECIAL_TOKENS
from tests.support.chat_models import FORMATS as TABLE
from tools_api.chat_format import ChatFormat
from tools_api.chat_generic import GenericFormat, chat_format_described
from tools_api.raw_calls import RawCalls

WITHOUT_THINK = tuple(name for name in SPECIAL_TOKENS if "think" not in name)


def judged(template: str, specials: Sequence[str] = SPECIAL_TOKENS) -> Judgement:
    return judge(template, {"eos_token": "<|im_end|>"}, specials)


def refusal(template: str) -> str:
    with pytest.raises(Refused) as caught:
        judged(template)
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    assert len(line) < 1500
    return line


def renderer(found: Judgement) -> ChatFormat:
    return chat_format_described(found.description, frozenset(SPECIAL_TOKENS).__contains__)


def texts(template: str, conversations: Sequence[Conversation]) -> list[str | None]:
    wants = Wants(special_tokens={})
    given = [variables(each, wants) for each in conversations]
    return [made.text for made in run_template(template, given)]


@pytest.mark.parametrize(
    ("template", "specials", "name"),
    [
        ("QWEN3", SPECIAL_TOKENS, "qwen3"),
        ("HERMES", WITHOUT_THINK, "hermes"),
        ("QWEN3_CODER", SPECIAL_TOKENS, "qwen3-coder"),
        ("QWEN3_CODER", WITHOUT_THINK, "qwen3-coder"),
    ],
)
def test_the_renderer_that_writes_what_the_template_does_is_chosen(
    template: str, specials: Sequence[str], name: str
) -> None:
    found = judged(getattr(templates, template), specials)
    assert (found.description, found.no_tools) == (name, "")


KIMI, GEMMA4 = (TABLE[name]["tokens"] for name in ("kimi-k2", "gemma4"))
DEEPSEEK, DEEPSEEK_V3 = (TABLE[name]["tokens"] for name in ("deepseek-r1", "deepseek-v3"))


@pytest.mark.parametrize(
    ("template", "specials", "name"),
    [
        ("KIMI_K2", KIMI, "kimi-k2"),
        ("KIMI_K2", [*KIMI, "<think>", "</think>"], "kimi-k2"),
        ("KIMI_K2_THINKING", [*KIMI, "<think>", "</think>"], "kimi-k2-thinking"),
        ("KIMI_K25", [*KIMI, "<think>", "</think>"], "kimi-k2.5"),
        ("GEMMA4", GEMMA4, "gemma4"),
        ("GEMMA4_OF_APRIL", GEMMA4, "gemma4"),
        ("GEMMA4_E", GEMMA4, "gemma4-e"),
        ("DEEPSEEK_V31", DEEPSEEK, "deepseek-v3.1"),
        ("DEEPSEEK_V3", DEEPSEEK, "deepseek-r1-0528"),
        ("DEEPSEEK_V3", DEEPSEEK_V3, "deepseek-v3"),
    ],
)
def test_templates_with_ids_of_their_own_or_without_tools_are_known(
    template: str, specials: Sequence[str], name: str
) -> None:
    """Kimi's writes ids of calls as they come, DeepSeek's lists no tools."""
    found = judge(getattr(templates, template), {"bos_token": specials[0]}, specials)
    assert (found.description, found.no_tools) == (name, "")


@pytest.mark.parametrize("name", ["minimax-m3", "minimax-m3-thinking"])
def test_a_template_whose_thinking_has_a_mode_is_known(name: str) -> None:
    """MiniMax M3's; the tags around its calls are text or tokens."""
    specials = TABLE[name]["tokens"]
    found = judge(templates.minimax_m3(specials), {}, specials)
    assert (found.description, found.no_tools) == ("minimax-m3", "")


@pytest.mark.samples(2)
@pytest.mark.parametrize(
    "template",
    ["NEWLINE_IN_CALL", "NEWLINE_IN_PROMPT_AND_TURNS", "NEWLINE_AFTER_TURNS", "ASKS_FOR_THE_DATE"],
)
def test_a_template_with_something_of_its_own_is_written_from_its_pieces(template: str) -> None:
    text = getattr(templates, template)
    found = judged(text)
    chat_format = renderer(found)
    assert isinstance(chat_format, GenericFormat)
    assert isinstance(chat_format.calls, RawCalls)
    assert found.no_tools == ""
    asked = [probe for probe in probes() if "reasoning" not in probe.name]
    ours = [written(chat_format, probe) for probe in asked]
    assert ours == texts(text, asked)


def test_a_newline_more_in_a_call_is_a_newline_more_in_the_calls_that_are_forced() -> None:
    calls = renderer(judged(templates.NEWLINE_IN_CALL)).calls
    assert isinstance(calls, RawCalls)
    assert calls.before == "\n\n"


def test_where_earlier_parts_depend_on_later_turns_the_place_is_told() -> None:
    line = refusal(templates.COUNTS_ITS_TURNS)
    assert "what stands before a turn depends on what follows it" in line
    assert re.search(r"at character 15 stands '3user.* instead of '2user", line)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("DROPS_OUTPUTS", "drops what it is given: in 'one output'"),
        ("DROPS_QUESTIONS", "drops what it is given: in 'a second user'"),
    ],
)
def test_a_template_that_drops_what_it_is_given_is_refused_with_the_probe(
    template: str, said: str
) -> None:
    line = refusal(getattr(templates, template))
    assert said in line
    assert re.search(r"in the probe '[a-z ]+' at character \d+ the template has '", line)


@pytest.mark.parametrize("what", templates.HOSTILE)
@pytest.mark.samples(2)
def test_a_template_that_does_harm_is_refused_in_a_line(what: str) -> None:
    assert refusal(templates.HOSTILE[what])


def test_contents_that_are_changed_are_found_by_real_ones() -> None:
    """Marks survive what real texts do not."""
    for change, said in (
        ("upper", "the contents 'Qmarkub' stand 0 times"),
        ("replace('好', 'x')", "in the probe 'letters of many scripts' at character"),
    ):
        own = f"~ (message.content | {change}) ~"
        assert said in refusal(templates.QWEN3.replace("~ message.content ~", own))


def test_of_a_template_without_a_place_for_tools_requests_with_tools_are_refused() -> None:
    turns = (
        "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content | trim }}<|im_end|>"
        "{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
    )
    found = judged(turns)
    assert "lists tools" in found.no_tools
    chat_format = renderer(found)
    assert chat_format.calls is None
    assert written(chat_format, Conversation(name="", items=(user(" a "),))) == (
        "<|im_start|>user:a<|im_end|><|im_start|>assistant:"
    )


def test_pieces_that_no_other_process_could_be_told_are_refused() -> None:
    long = templates.QWEN3.replace(
        "<|im_start|>system\\n' -}}", "<|im_start|>system\\n' -}}" + 9_000 * "x"
    )
    assert long != templates.QWEN3
    assert "they have more than 48000 bytes" in refusal(long.replace("x" * 9_000, "x" * 30_000))
    assert renderer(judged(long)).calls is not None


def test_the_formats_that_a_tokenizer_fits_can_be_told() -> None:
    assert {"qwen3", "hermes", "qwen3-coder"} <= set(fitting_names(SPECIAL_TOKENS))
    assert fitting_names(("<s>",)) == ()
