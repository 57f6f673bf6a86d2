"""A child ends with its parent, however that ends."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.child import GRACE_S
from tests.support.fake_keepwarm import fake_keepwarm

PARENT = """
import sys
from pathlib import Path
from cluster.replica_process import ReplicaProcess
replica = ReplicaProcess([*sys.argv[2:]], log=Path(sys.argv[1]))
replica.wait_ready(20)
print(replica.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("words", [(), ("deaf",)])
def test_a_child_ends_with_its_parent_however_that_ends(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    environment = fake_keepwarm(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log"), *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        number = int(parent.stdout.readline())
        watched = os.pidfd_open(number)
        parent.kill()
        parent.wait()
    poll = select.poll()
    poll.register(watched, 1)
    assert poll.poll((GRACE_S + 10) * 1000)
    os.close(watched)
