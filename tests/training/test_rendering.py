"""What the default model is trained on is what the runtime will show it, token for token."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from examples.train_agent_model.generator import SessionGenerator
from examples.train_agent_model.recalls import recalled_arguments, recalled_names
from examples.train_agent_model.rendering import (
    CHAT_FORMAT,
    CHOICE_WEIGHT,
    NO_LABEL,
    Label,
    Part,
    SessionEncoder,
    calls_turn,
    header,
    session_parts,
)
from examples.train_agent_model.tokenizer import SPECIAL, save_tokenizer, train_tokenizer
from examples.train_agent_model.world import Call, Session, Step
from runtime.tokenizer import Tokenizer
from tools_api.chat_format import Segment, TemplateOptions
from tools_api.item_reading import parse_items
from tools_api.items import Item

VOCAB_SIZE = 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("tokenizer")
    generator = SessionGenerator("test", held_out=False)
    sessions = [generator.session(level=0.5) for _ in range(100)]
    texts = [part.text for s in sessions for part in session_parts(s) if not part.special]
    save_tokenizer(train_tokenizer(texts, VOCAB_SIZE), target)
    return target


@pytest.fixture(scope="module")
def encoder(folder: Path) -> SessionEncoder:
    return SessionEncoder(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder, model_type="qwen3")


def items_of(session: Session) -> tuple[Item, ...]:
    raw: list[dict[str, str]] = []
    for question in session.questions:
        raw.append({"type": "message", "role": "user", "content": question.text})
        for step in question.steps:
            calls = list(zip(step.calls, step.results, strict=True))
            for number, (call, _) in enumerate(calls):
                arguments = json.dumps(call.arguments, ensure_ascii=False)
                item = {"type": "function_call", "name": call.name, "arguments": arguments}
                raw.append(item | {"call_id": f"{len(raw) - number}.{number}"})
            start = len(raw) - len(calls)
            for number, (_, result) in enumerate(calls):
                raw.append(
                    {
                        "type": "function_call_output",
                        "call_id": f"{start}.{number}",
                        "output": result,
                    }
                )
        raw.append({"type": "message", "role": "assistant", "content": question.answer})
    return parse_items(raw, "input")


@pytest.mark.parametrize("seed", range(40))
def test_a_session_has_the_text_and_tokens_that_the_runtime_gives_it(
    seed: int, encoder: SessionEncoder, tokenizer: Tokenizer
) -> None:
    session = SessionGenerator(seed, held_out=True).session()
    parts = session_parts(session)
    segments = [Segment(part.text, part.special) for part in header(session)]
    segments += CHAT_FORMAT.items(
        items_of(session), first=True, open_output=False, options=TemplateOptions()
    )
    assert "".join(p.text for p in parts) == "".join(s.text for s in segments)
    assert np.array_equal(encoder.encode(parts).ids, tokenizer.encode(segments))


def test_only_what_the_assistant_writes_is_learned(
    encoder: SessionEncoder, tokenizer: Tokenizer
) -> None:
    session = SessionGenerator(2, held_out=True).session(num_questions=6)
    encoded = encoder.encode(session_parts(session))
    ids, weights = encoded.ids, encoded.weights
    written = b"".join(tokenizer.token_bytes(int(i)) for i in ids[weights > 0]).decode()
    expected = ""
    for question in session.questions:
        for step in question.steps:
            calls = [
                f'<tool_call>\n{{"name": "{call.name}", "arguments": '
                f"{json.dumps(call.arguments, ensure_ascii=False)}}}\n</tool_call>"
                for call in step.calls
            ]
            expected += "\n".join(calls) + "<|im_end|>"
        expected += question.answer + "<|im_end|>"
    assert written == expected


@pytest.mark.parametrize("seed", range(12))
def test_whether_to_call_the_names_and_how_values_begin_and_end_weigh_most(
    encoder: SessionEncoder, tokenizer: Tokenizer, seed: int
) -> None:
    generator = SessionGenerator(seed, held_out=True)
    session = generator.session(num_questions=1)
    while not session.questions[0].steps or len(session.questions[0].steps[0].calls) > 1:
        session = generator.session(num_questions=1)
    encoded = encoder.encode(session_parts(session))
    ids, weights = encoded.ids, encoded.weights
    heavy = b"".join(tokenizer.token_bytes(int(i)) for i in ids[weights == CHOICE_WEIGHT])
    expected = ""
    for call in (step.calls[0] for step in session.questions[0].steps):
        expected += f"<tool_call>{re.escape(call.name)}" + "".join(
            rf'{re.escape(name)}": (""|\d{{1,2}})(, "|}}}})' for name in call.arguments
        )
    found = re.match(expected, heavy.decode())
    assert found
    answer = heavy.decode()[found.end() :]
    assert answer
    assert session.questions[0].answer.startswith(answer)
    assert len(answer) < 6


def test_a_second_arguments_name_weighs_most_behind_accents_too(
    encoder: SessionEncoder, tokenizer: Tokenizer
) -> None:
    call = Call(name="get_price", arguments={"shop": "\u00e9" * 6, "count": 7})
    encoded = encoder.encode(calls_turn(Step(calls=(call,), results=("{}",))))
    heavy = encoded.ids[encoded.weights == CHOICE_WEIGHT]
    written = b"".join(tokenizer.token_bytes(int(i)) for i in heavy).decode()
    assert written == '<tool_call>get_priceshop": "", "count": 7}}'


def test_words_have_the_same_tokens_in_prose_names_and_json(tokenizer: Tokenizer) -> None:
    def tokens(text: str) -> str:
        return " ".join(map(str, tokenizer.encode([Segment(text)])))

    for word in ("saucer", "womgraix", "lamp"):
        alone = tokens(word)
        for text in (f"the {word} of", f"get_{word}", f'{{"{word}": 1}}', f"{word}?"):
            assert f" {alone} " in f" {tokens(text)} "


def test_no_text_piece_spells_a_special_token(folder: Path) -> None:
    raw = json.loads((folder / "tokenizer.json").read_text())
    merged = {"".join(merge) for merge in raw["model"]["merges"]}
    assert not merged & set(SPECIAL)
    assert len(raw["model"]["vocab"]) == VOCAB_SIZE


@pytest.mark.parametrize("seed", range(6))
def test_a_questions_words_say_whether_the_tools_schemas_hold_them(
    seed: int, encoder: SessionEncoder, tokenizer: Tokenizer
) -> None:
    session = SessionGenerator(seed, held_out=False).session(level=0.5, num_questions=4)
    schemas = "".join(part.text for part in header(session))
    encoded = encoder.encode(session_parts(session))
    before = [tokenizer.token_bytes(int(i)).decode(errors="replace") for i in encoded.ids]
    labels: dict[str, int] = {}
    known = encoded.labels[Label.KNOWN]
    for place in np.flatnonzero(known != NO_LABEL):
        word = re.findall("[A-Z]?[a-z]+", "".join(before[place - 8 : place + 1]))[-1]
        labels[word] = int(known[place])
    assert all(word in schemas for word, label in labels.items() if label)
    for question in session.questions:
        for step in question.steps[:1]:
            topics = [t.topic for t in session.tools if t.name == step.calls[0].name]
            if question.kind != "follow_up":
                assert all(labels[word] == 1 for topic in topics for word in topic.split())
        if not question.steps:
            topic = question.answer.removeprefix("I have no tool for the ").rstrip(".")
            assert 0 in [labels[word] for word in topic.split()]


def labelled(
    encoder: SessionEncoder, tokenizer: Tokenizer, session: Session, label: Label
) -> list[tuple[str, int]]:
    """The text up to each token with that label, and the label."""
    encoded = encoder.encode(session_parts(session))
    said = [tokenizer.token_bytes(int(i)).decode(errors="replace") for i in encoded.ids]
    values = encoded.labels[label]
    return [("".join(said[: i + 1]), int(values[i])) for i in np.flatnonzero(values != NO_LABEL)]


@pytest.mark.parametrize("seed", range(12))
def test_an_arguments_name_says_whether_one_more_follows_where_the_question_does_not(
    seed: int, encoder: SessionEncoder, tokenizer: Tokenizer
) -> None:
    session = SessionGenerator(seed, held_out=False, hard=True).session(
        num_tools=6, num_questions=12
    )
    found = labelled(encoder, tokenizer, session, Label.MORE)
    calls = [question.steps[0].calls[0] for question in session.questions if question.is_open]
    assert [value for _, value in found] == [len(call.arguments) - 1 for call in calls]
    for (text, _), call in zip(found, calls, strict=True):
        assert text.endswith(
            f'{{"name": "{call.name}", "arguments": {{"{next(iter(call.arguments))}'
        )


def lines_and_learned(
    encoder: SessionEncoder, tokenizer: Tokenizer, parts: list[Part]
) -> tuple[list[str], list[str]]:
    """The lines of a recall, and of each line after the tools' the text that is learned."""
    encoded = encoder.encode(parts)
    said = [tokenizer.token_bytes(int(i)) for i in encoded.ids]
    learned, line = [""], 0
    for word, weight in zip(said, encoded.weights, strict=True):
        assert weight in (0, CHOICE_WEIGHT)
        if weight:
            learned[line] += word.decode()
        elif b"\n" in word:
            line += 1
            learned.append("")
    return b"".join(said).decode().split("\n"), learned


@pytest.mark.parametrize("seed", range(4))
def test_a_recall_of_arguments_teaches_how_many_there_are(
    seed: int, encoder: SessionEncoder, tokenizer: Tokenizer
) -> None:
    tools, recalled = SessionGenerator(seed, held_out=False, hard=True).recall()
    parts = recalled_arguments(tools, recalled)
    lines, learned = lines_and_learned(encoder, tokenizer, parts)
    calls = [one.call for one in recalled]
    assert [json.loads(line) for line in lines] == [
        *(tool.schema() for tool in tools),
        *({"arguments": call.arguments} for call in calls),
    ]
    assert not any(learned[: len(tools)])
    for text, call in zip(learned[len(tools) :], calls, strict=True):
        first, *rest = call.arguments
        assert text.endswith("}}")
        assert f'{first}"' not in text
        assert all(f', "{name}": ' in text for name in rest)
    labels = encoder.encode(parts).labels[Label.MORE]
    assert [int(value) for value in labels[labels != NO_LABEL]] == [
        len(call.arguments) - 1 for call in calls
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_recall_of_names_teaches_whose_topic_a_question_says(
    seed: int, encoder: SessionEncoder, tokenizer: Tokenizer
) -> None:
    tools, recalled = SessionGenerator(seed, held_out=False, hard=True).recall()
    lines, learned = lines_and_learned(encoder, tokenizer, recalled_names(tools, recalled))
    assert [json.loads(line) for line in lines[: len(tools)]] == [
        {"name": tool.name, "description": tool.description} for tool in tools
    ]
    topics = {tool.name: tool.topic for tool in tools}
    assert lines[len(tools) :: 2] == [one.text for one in recalled]
    for one in recalled:
        assert f"the {topics[one.call.name]}" in one.text
    assert [text.removesuffix('", "') for text in learned if text] == [
        one.call.name for one in recalled
    ]


@pytest.mark.parametrize("seed", range(12))
def test_a_tools_topic_says_how_its_name_begins_where_that_tells_tools_apart(
    seed: int, encoder: SessionEncoder, tokenizer: Tokenizer
) -> None:
    generator = SessionGenerator(seed, held_out=False, hard=True)
    session = generator.session(num_tools=6, num_questions=6)
    tools = {tool.topic: tool for tool in session.tools if tool.topic}
    begins = {re.split("_|(?=[A-Z])", tool.name)[0] for tool in tools.values()}
    owners = labelled(encoder, tokenizer, session, Label.OWNER)
    chosen = labelled(encoder, tokenizer, session, Label.CHOSEN)
    if len(begins) == 1:
        assert not owners
        assert not chosen
        return
    names = {tool.name: tokenizer.encode([Segment(tool.name)])[0] for tool in tools.values()}
    assert len(owners) == 2 * len(tools)
    for text, token in owners:
        name = re.findall('"name": "([^"]+)', text)[-1]
        assert token == names[name]
        said = text.rsplit("\n", 1)[1]
        assert said.endswith((f'"name": "{name}', next(t for t in tools if tools[t].name == name)))
    assert chosen
    for text, token in chosen:
        asked = text.rsplit("user\n", 1)[1]
        topic = max((t for t in tools if asked.endswith(f"the {t}")), key=len)
        assert token == names[tools[topic].name]


@pytest.mark.parametrize("seed", range(6))
def test_a_topic_says_how_its_second_word_is_spelled_in_camel_case(
    seed: int, encoder: SessionEncoder, tokenizer: Tokenizer
) -> None:
    generator = SessionGenerator(seed, held_out=False, hard=True)

    def spelled(session: Session) -> dict[str, str]:
        return {
            tool.topic: tool.topic.split()[1].capitalize()
            for tool in session.tools
            if " " in tool.topic and tool.name != tool.name.lower()
        }

    session = generator.session(num_tools=6, num_questions=6)
    assert not spelled(session) or labelled(encoder, tokenizer, session, Label.OWNER_SECOND)
    while len(spelled(session)) < 2:
        session = generator.session(num_tools=6, num_questions=6)
    first = {t: tokenizer.encode([Segment(w)])[0] for t, w in spelled(session).items()}
    names = {tool.name: tool.topic for tool in session.tools}
    owners = labelled(encoder, tokenizer, session, Label.OWNER_SECOND)
    assert len(owners) == 2 * len(first)
    for text, token in owners:
        name = re.findall('"name": "([^"]+)', text)[-1]
        assert text.endswith((f'"name": "{name}', f" {names[name]}"))
        assert token == first[names[name]]
    for text, token in labelled(encoder, tokenizer, session, Label.CHOSEN_SECOND):
        asked = text.rsplit("user\n", 1)[1]
        topic = next(topic for topic in first if asked.endswith(f"the {topic}"))
        assert token == first[topic]


def test_recalled_names_have_the_labels_of_topics(encoder: SessionEncoder) -> None:
    generator = SessionGenerator(1, held_out=False, hard=True)
    counts = dict.fromkeys(Label, 0)
    for tools, recalled in (generator.recall() for _ in range(40)):
        for label, values in encoder.encode(recalled_names(tools, recalled)).labels.items():
            counts[label] += int((values != NO_LABEL).sum())
    for schema, question in (
        (Label.OWNER, Label.CHOSEN),
        (Label.OWNER_SECOND, Label.CHOSEN_SECOND),
    ):
        assert counts[schema] == 2 * counts[question] > 40
