"""A person looks at the dashboard of a small server and finds nothing untrue.

Needs ``chromium``, as ``test_browser``.
"""

import pytest

from tools.person import Checks, look
from tools.screenshots import chromium

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no chromium on the path")


@pytest.mark.slow
def test_a_person_finds_what_the_ledger_has() -> None:
    checks = look(60)
    assert checks.failed == {}
    assert len(checks.passed) == len(set(checks.passed)) >= 100


def test_what_is_untrue_and_what_does_not_answer_are_told_by_name() -> None:
    checks = Checks()
    checks.same("one", 1, 1)
    checks.same("two", 1, 2)
    checks.attempt("three", lambda: (1 / 0, 1))
    assert checks.passed == ["one"]
    assert set(checks.failed) == {"two", "three"}
    assert "ZeroDivisionError" in checks.failed["three"]
