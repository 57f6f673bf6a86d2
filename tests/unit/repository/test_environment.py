"""Tests, and the servers that they start, see no settings of whoever runs them."""

import os
import subprocess
import sys

from tests.support.architecture import ROOT

KEPT = {"KEEPWARM_CONFIG", "KEEPWARM_JOURNAL", "KEEPWARM_KERNELS", "KEEPWARM_NATIVE"}


def test_no_setting_is_seen() -> None:
    assert {name for name in os.environ if name.startswith("KEEPWARM_")} <= KEPT
    assert (os.environ["KEEPWARM_CONFIG"], os.environ["KEEPWARM_JOURNAL"]) == ("", ":memory:")


def test_none_is_seen_where_there_are_some() -> None:
    settings = {"KEEPWARM_URL": "http://127.0.0.1:9/v1", "KEEPWARM_ALL_CLIENTS": "0"}
    settings |= {"KEEPWARM_CONFIG": "/somewhere", "KEEPWARM_JOURNAL": "/somewhere"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    command += ["-k", test_no_setting_is_seen.__name__]
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
