"""The search for deferred tools: the same question, the same answer, and what it may cost."""

import random
import re
import time
from typing import Any

import pytest

from tools_api.tool_search import MOST_FOUND, search
from tools_api.tools import FunctionTool, parse_tools


def tools(**said: str) -> tuple[FunctionTool, ...]:
    return parse_tools(
        [
            {"type": "function", "name": name, "description": text, "defer_loading": True}
            for name, text in said.items()
        ]
    )


DESK = tools(
    get_weather="Says how warm it is in a city.",
    getUserEmails="Lists e-mails of a person.",
    send_email="Sends an e-mail.",
    stock_price="What a share costs.",
    delete_user="Removes a person. Weather does not matter.",
    list_files="Lists what is in a folder.",
    read_file="Reads one file.",
)


def found(question: str, among: tuple[FunctionTool, ...] = DESK) -> list[str]:
    return [tool.name for tool in search(among, {"query": question})]


def matched(pattern: str, among: tuple[FunctionTool, ...] = DESK) -> list[str]:
    return [tool.name for tool in search(among, {"pattern": pattern})]


def test_words_of_names_and_descriptions_are_found_the_best_first() -> None:
    assert found("what is the weather in Oslo")[0] == "get_weather"
    assert found("weather") == ["get_weather", "delete_user"]
    assert found("SHARE costs")[0] == "stock_price"
    assert set(found("email")) == {"send_email", "getUserEmails"}
    assert found("user emails")[0] == "getUserEmails"
    assert found("files")[:2] == ["read_file", "list_files"]


def test_nothing_is_found_by_nothing() -> None:
    for question in ("", "   ", "xyzzy", "!?"):
        assert found(question) == []
    assert search(DESK, {}) == search(DESK, {"query": 1}) == search((), {"query": "x"}) == ()


def test_arguments_and_namespaces_are_looked_at() -> None:
    (tool, other) = parse_tools(
        [
            {"type": "namespace", "name": "crm", "description": "All about customers.", "tools": [
                {"type": "function", "name": "find", "defer_loading": True,
                 "parameters": {"type": "object", "properties": {"zip_code": {}}}}]},
            {"type": "function", "name": "other", "defer_loading": True},
        ]
    )  # fmt: skip
    for question in ("customer", "crm", "zip"):
        assert search((tool, other), {"query": question}) == (tool,)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("weather", ["get_weather", "delete_user"]),
        ("get_.*weather", ["get_weather"]),
        ("(?i)STOCK|share", ["stock_price"]),
        ("^list_[a-z]+$", ["list_files"]),
        ("read.*file|send.*mail", ["send_email", "read_file"]),
        (r"e\-mail", ["getUserEmails", "send_email"]),
        ("files?", ["list_files", "read_file"]),
        ("fil(es)?", ["list_files", "read_file"]),
        ("xyzzy", []),
        ("", []),
    ],
)
def test_a_pattern_is_read_for_its_literal_parts(pattern: str, names: list[str]) -> None:
    assert matched(pattern) == names


def test_all_that_an_expression_matches_is_found() -> None:
    """No more than ``MOST_FOUND`` of it, and perhaps something else."""
    rng = random.Random(3)
    pieces = ["get", "_", "user", ".*", "file", "|", "s?", "e", "[a-z]*", r"\w+", "mail"]
    for _ in range(300):
        pattern = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 4)))
        try:
            compiled = re.compile(pattern, re.IGNORECASE)
        except re.error:
            continue
        if compiled.search(""):
            continue  # it says nothing of what is wanted
        wanted = [tool.name for tool in DESK if compiled.search(tool.name)]
        names = matched(pattern)
        assert len(names) == MOST_FOUND or set(wanted) <= set(names), pattern


def test_an_expression_that_would_never_end_costs_its_length() -> None:
    many = tools(**{f"t{n}": "a" * 2000 for n in range(200)})
    began = time.process_time()
    for pattern in ("(a+)+$b", "(a|a)*b" * 20, "a*" * 80 + "b", ".*" * 90 + "z"):
        search(many, {"pattern": pattern})
    assert time.process_time() - began < 2


def test_of_equals_the_first_come_first_and_no_more_than_may() -> None:
    same = tools(**{f"tool_{n}": "the same" for n in range(20)})
    assert found("same", same) == [f"tool_{n}" for n in range(MOST_FOUND)]
    assert matched("same", same) == [f"tool_{n}" for n in range(MOST_FOUND)]


@pytest.mark.parametrize("seed", range(4))
def test_order_of_words_and_case_change_nothing(seed: int) -> None:
    rng = random.Random(seed)
    words = ["weather", "city", "person", "file", "Lists"]
    answer: Any = found(" ".join(words))
    for _ in range(5):
        rng.shuffle(words)
        assert found(" ".join(words).upper()) == answer
