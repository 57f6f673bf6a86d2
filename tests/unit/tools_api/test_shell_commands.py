"""Commands are told while their JSON is written, however it comes in pieces."""

import json
import random

import pytest

from tools_api.shell_commands import CommandPiece, CommandReader

ARGUMENTS = [
    {"commands": ["ls -l", 'echo "a\\b"', "", "日本\n\t\U0001f600"], "timeout_ms": 5},
    {"timeout_ms": 5, "commands": ["x"]},
    {"commands": []},
    {"other": ["no", ["commands"]], "deep": {"commands": ["no"]}, "commands": ["yes"]},
    {"commands": [["no"], {"a": "no"}, "yes"]},
    {"a": "commands", "b": ["no"]},
    {},
]


def told(text: str, cuts: list[int]) -> list[CommandPiece]:
    reader = CommandReader()
    ends = [*cuts, len(text)]
    starts = [0, *cuts]
    return [
        piece
        for start, end in zip(starts, ends, strict=True)
        for piece in reader.feed(text[start:end])
    ]


def joined(pieces: list[CommandPiece]) -> list[str]:
    texts: dict[int, str] = {}
    for piece in pieces:
        match piece.what:
            case "added":
                assert piece.index == len(texts)
                texts[piece.index] = ""
            case "delta":
                assert piece.text
                texts[piece.index] += piece.text
            case "done":
                assert piece.text == texts[piece.index]
    return list(texts.values())


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_pieces_join_to_the_commands(arguments: dict[str, object], ensure_ascii: bool) -> None:
    text = json.dumps(arguments, ensure_ascii=ensure_ascii)
    listed = arguments.get("commands", [])
    assert isinstance(listed, list)
    expected = [command for command in listed if isinstance(command, str)]
    rng = random.Random(text)
    for _ in range(40):
        cuts = sorted(rng.sample(range(len(text)), rng.randint(0, min(6, len(text)))))
        assert joined(told(text, cuts)) == expected
    assert joined(told(text, list(range(1, len(text))))) == expected


def test_a_command_that_is_cut_ends_with_what_there_is() -> None:
    reader = CommandReader()
    reader.feed('{"commands": ["ls", "ec')
    assert reader.end() == [CommandPiece("done", 1, "ec")]
    assert reader.end() == []
    other = CommandReader()
    other.feed('{"name')
    assert other.end() == []
