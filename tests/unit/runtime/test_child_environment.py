"""Children see the server's environment, but not what would let them speak for a client."""

import subprocess
import sys

from runtime.child_environment import KEY_VARIABLE, child_environment


def test_everything_but_the_key_is_passed_on() -> None:
    given = {"HOME": "/h", "KEEPWARM_OTHER": "x", KEY_VARIABLE: "secret-key"}
    passed = child_environment(given)
    assert KEY_VARIABLE not in passed
    assert (passed["HOME"], passed["KEEPWARM_OTHER"]) == ("/h", "x")


def test_a_child_can_import_what_its_parent_can() -> None:
    program = "import runtime.messages, os; print(sorted(os.environ))"
    environment = child_environment({KEY_VARIABLE: "secret-key"})
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert KEY_VARIABLE not in ran.stdout
