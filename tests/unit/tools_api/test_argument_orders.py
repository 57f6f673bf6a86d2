"""Which arguments there may be, and in which orders."""

import itertools
import re

import pytest

from tools_api.argument_orders import group_size, object_ways, ordered
from tools_api.lark_rules import LarkRules


def language(lark: LarkRules, start: str) -> set[str]:
    """All texts of a grammar without repetition, by putting in bodies for names."""
    rules = dict(line.split(": ", 1) for line in lark.text("x").splitlines())

    def texts(name: str) -> set[str]:
        found: set[str] = set()
        for way in re.split(r" \| ", rules[name]):
            parts = [
                {part.strip('"')} if part.startswith('"') else texts(part)
                for part in way.split()
                if part
            ]
            found |= {"".join(words) for words in itertools.product(*parts)}
        return found

    return texts(start)


@pytest.mark.parametrize("separator", ["", '","'])
@pytest.mark.parametrize("group", [2, 3])
def test_every_order_within_a_group_and_no_other(separator: str, group: int) -> None:
    lark = LarkRules(lenient=False)
    names = ["a", "b", "c"]
    needed = [lark.rule(name, f'"{name}"') == "b" for name in names]
    start = ordered(
        lark,
        "p",
        list(zip(names, needed, strict=True)),
        more="",
        group=group,
        separator=separator,
    )
    groups = [names[at : at + group] for at in range(0, 3, group)]
    expected = set()
    for orders in itertools.product(
        *(
            [
                chosen
                for size in range(len(part) + 1)
                for chosen in itertools.permutations(part, size)
            ]
            for part in groups
        )
    ):
        words = [word for order in orders for word in order]
        if "b" in words:
            expected.add(separator.strip('"').join(words))
    assert language(lark, start) == expected


@pytest.mark.parametrize("last", [True, False])
def test_further_names_come_anywhere_or_behind_the_others(last: bool) -> None:
    lark = LarkRules(lenient=False)
    named = [(lark.rule(name, f'"{name}"'), name == "b") for name in "ab"]
    ordered(lark, "p", named, more=lark.rule("m", '"m"'), group=1, more_last=last)
    states = dict(line.split(": ", 1) for line in lark.text("x").splitlines())
    may_come = [name for name, body in states.items() if "m " in body]
    assert may_come == (["ps1_1"] if last else ["ps1_1", "ps1_0", "ps0_1", "ps0_0"])


@pytest.mark.parametrize("separator", ["", '","'])
@pytest.mark.parametrize("group", [1, 2])
def test_one_at_least_comes_where_that_is_asked_for(separator: str, group: int) -> None:
    lark, other = LarkRules(lenient=False), LarkRules(lenient=False)

    def all_of(rules: LarkRules, at_least: bool) -> set[str]:
        named = [(rules.rule(name, f'"{name}"'), False) for name in "abc"]
        start = ordered(
            rules, "p", named, more="", group=group, separator=separator, one_at_least=at_least
        )
        return language(rules, start)

    some = all_of(lark, True)
    assert some | {""} == all_of(other, False)
    assert "" not in some


def test_groups_shrink_as_tools_grow_many() -> None:
    sizes = [group_size(tools) for tools in (0, 1, 5, 50, 5000)]
    assert sizes[0] == sizes[1] == 8
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 2


def test_an_object_may_have_several_forms() -> None:
    ways = object_ways(
        {
            "properties": {"a": {}},
            "oneOf": [{"required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}],
        }
    )
    assert [sorted(way.properties) for way in ways] == [["a"], ["a", "b"]]
    assert [sorted(way.required) for way in ways] == [["a"], ["b"]]


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {"a": {}}},
        {"minProperties": 1},
        {"enum": [{}]},
        {"required": ["a"], "additionalProperties": False},
        {"$ref": "#/nowhere"},
        {"properties": []},
    ],
)
def test_what_is_not_plain_to_see_has_none(schema: dict[str, object]) -> None:
    assert object_ways(schema) == []
