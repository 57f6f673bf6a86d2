import json

import pytest

from tools_api.json_scanner import CallScanner, ValueScanner


def scan(text: str, *, needs_arguments: bool = False, step: int | None = None) -> CallScanner:
    scanner = CallScanner("arguments", needs_arguments=needs_arguments)
    step = step or len(text) or 1
    for start in range(0, len(text), step):
        if scanner.done or scanner.failed:
            break
        scanner.feed(text[start : start + step])
    return scanner


ARGUMENTS = [
    "{}",
    '{"a": 1, "b": [1, {"c": "]}"}]}',
    '{"quote": "\\"", "back": "\\\\", "brace": "}{", "é": "\\u00e9"}',
    "[]",
    '"text"',
    "-1.5e3",
    "null",
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize(
    "form",
    [
        '{{"name": "f", "arguments": {}}}',
        ' \n{{ "name" :"f" ,\n"arguments":{} }}',
        '{{"arguments": {}, "name": "f"}}',
        '{{"id": "x", "name": "f", "nested": {{"name": "g"}}, "arguments": {}, "n": 1}}',
    ],
)
@pytest.mark.parametrize("step", [1, 3, None])
def test_the_arguments_pass_through_as_written(arguments: str, form: str, step: int | None) -> None:
    scanner = scan(form.format(arguments), step=step)
    assert scanner.done
    assert scanner.name == "f"
    assert scanner.arguments == arguments


@pytest.mark.parametrize("name", ["f", "get.weather", 'quo"te', "back\\slash", "Wetter_ä", "</x>"])
def test_a_name_is_decoded(name: str) -> None:
    assert scan(f'{{"name": {json.dumps(name)}, "arguments": {{}}}}').name == name


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[",
        "{x",
        '{"name" "f"',
        '{"name": 1',
        '{"name": {"a"',
        '{"name": "f" "arguments"',
        '{"name": "f", }',
        '{"name": "f", "arguments": [}',
        '{"name": "f", "arguments": }',
        '{"name": "\\x", ',
        "{}",
        '{"arguments": {}}',
    ],
)
@pytest.mark.parametrize("step", [1, None])
def test_what_is_no_call_fails(text: str, step: int | None) -> None:
    scanner = scan(text, step=step)
    assert scanner.failed
    assert not scanner.done


def test_a_call_is_announced_with_its_arguments_or_its_end() -> None:
    scanner = CallScanner("arguments", needs_arguments=False)
    scanner.feed('{"name": "f", "arguments": ')
    assert not scanner.announced
    scanner.feed("{")
    assert scanner.announced
    assert scan('{"name": "f"}').announced


def test_an_object_without_arguments_may_be_no_call() -> None:
    assert scan('{"name": "f"}').arguments == ""
    assert scan('{"name": "f"}', needs_arguments=True).failed
    assert scan('{"name": "Bob", "age": 3}', needs_arguments=True).failed


def test_new_arguments_are_taken_once() -> None:
    scanner = CallScanner("arguments", needs_arguments=False)
    scanner.feed('{"name": "f", "arguments": {"a')
    assert scanner.take_arguments() == '{"a'
    assert scanner.take_arguments() == ""
    scanner.feed('": 1}')
    assert scanner.take_arguments() == '": 1}'
    assert scanner.arguments == '{"a": 1}'


def test_a_second_value_of_the_arguments_is_skipped() -> None:
    assert scan('{"name": "f", "arguments": {}, "arguments": {"a": 1}}').arguments == "{}"


def test_reading_stops_behind_the_object_and_before_a_fault() -> None:
    scanner = CallScanner("arguments", needs_arguments=False)
    assert scanner.feed('{"name": "f"}\nrest') == len('{"name": "f"}')
    scanner = CallScanner("arguments", needs_arguments=False)
    assert scanner.feed("  {x") == 3


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        ('{"name": "f", "arguments": {"x": 1}}', False),
        ('{"type": "function", "name": "f", "arguments": {}, "id": "1"}', False),
        ('{"name": "f", "argument": {}}', True),
        ('{"why": "so", "name": "f", "arguments": {}}', True),
    ],
)
def test_a_key_that_means_nothing_in_a_call_is_told(text: str, *, skipped: bool) -> None:
    assert scan(text).skipped is skipped


@pytest.mark.parametrize("step", [1, 2, 100])
@pytest.mark.parametrize(
    ("text", "read", "done"),
    [
        ("{}", 2, True),
        (' \n{"a": ["}", {}]} x', 18, True),
        ('{"a": "\\""', 10, False),
        ("[1]", 0, False),
        ("{]", 1, False),
        ("x", 0, False),
    ],
)
def test_an_object_ends_where_its_bracket_closes(
    text: str, read: int, step: int, *, done: bool
) -> None:
    scanner, taken = ValueScanner(), 0
    while taken < len(text) and not scanner.done and not scanner.failed:
        taken += scanner.feed(text[taken : taken + step])
    assert (taken, scanner.done) == (read, done)
