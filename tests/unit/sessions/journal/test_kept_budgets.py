"""What a journal's sessions were told of budgets, and what these leave."""

from dataclasses import replace

from sessions.durable.account import NO_BUDGET, Budget
from sessions.journal.kept_budgets import budgets_kept
from sessions.journal.records import new_session, options_kept
from tests.support.journals import record
from tests.support.memory_journal import MemoryJournal


def test_options_without_budgets_tell_none() -> None:
    assert options_kept(b"").budgets == {}
    assert options_kept(b'{"outlives_sockets":true,"parent":"p"}').budgets == {}
    told = options_kept(b'{"tree":[{"output":9},{"output":3}]}').budgets
    assert told == {"tree": (Budget(output=9), Budget(output=3))}
    assert options_kept(b'{"session":[{},{}]}').budgets == {"session": (NO_BUDGET, NO_BUDGET)}


def test_a_session_keeps_to_its_own_budget_and_to_those_of_all_its_trees() -> None:
    journal = MemoryJournal(b"f")
    options = {
        "root": b'{"tree":[{"output":100},{}]}',
        "child": b'{"tree":[{"output":50},{"output":4}],"parent":"root"}',
        "grandchild": b'{"session":[{"output":3},{}],"parent":"child"}',
    }
    trees = [f"tree/{name}" for name in options]
    for number, (name, each) in enumerate(options.items()):
        turn = record(f"r{number}", session=name, accounts=tuple(trees[: number + 1]))
        journal.append([replace(turn, options=each)])
    session = journal.session("t", "grandchild")
    assert session is not None
    found = [
        (each.scope, each.owner, each.left, each.soft) for each in budgets_kept(journal, session)
    ]
    assert found == [
        ("session", "grandchild", {"output": 0}, {}),
        ("tree", "child", {"output": 40}, {"output": 4}),
        ("tree", "root", {"output": 85}, {}),
    ]


def test_a_parent_that_is_gone_or_goes_round_ends_the_line() -> None:
    journal = MemoryJournal(b"f")
    orphan = replace(new_session("t", "s"), options=b'{"parent":"gone"}')
    assert budgets_kept(journal, orphan) == []
    for name, parent in (("a", "b"), ("b", "a")):
        options = f'{{"tree":[{{"output":9}},{{}}],"parent":"{parent}"}}'
        journal.append([replace(record(f"r{name}", session=name), options=options.encode())])
    session = journal.session("t", "a")
    assert session is not None
    assert [each.owner for each in budgets_kept(journal, session)] == ["a", "b"]
