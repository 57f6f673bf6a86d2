"""A session's view is what the session is at that moment, and stays so."""

from sessions.durable.account import Account, Amount, Budget
from sessions.durable.ledger import Ledger, PriceTable
from sessions.durable.session import Session
from sessions.durable.session_view import view_of


def test_a_view_shows_the_least_that_a_budget_leaves_and_does_not_change() -> None:
    ledger = Ledger(PriceTable())
    session = Session(name="s", tenant="t", ledger=ledger, now=10.0)
    parent = Session(name="p", tenant="t", ledger=Ledger(PriceTable()), now=10.0)
    session.parent = parent
    ledger.account.budget, ledger.tree.budget = Budget(output=100), Budget(output=50)
    ledger.account.spent = ledger.tree.spent = Amount(output=20)
    tenant = Account(scope="tenant", budget=Budget(output=1))
    view = view_of(session, tenant, 13.0)
    assert (view.session, view.tenant, view.state, view.parent) == ("s", "t", "idle", "p")
    assert view.idle_s == 3.0
    assert (view.budget_left, view.budget) == ({"output": 30}, {"output": 50})
    assert {each.scope for each in view.budgets} == {"session", "tree", "tenant"}
    ledger.tree.spent = Amount(output=50)
    assert view.budget_left == {"output": 30}
    assert view_of(session, tenant, 13.0).budget_left == {"output": 0}
