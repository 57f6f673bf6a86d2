"""The other end of ``replica_process``: the command ``keepwarm`` as a child that never outlives its
parent.

``python -m cluster.child FD WORDS``: FD is a pipe whose other end the parent holds. When it ends
the server is told to stop, and killed where it does not. A signal at the parent's death would not
do: it follows the thread that started the child.

Always true: whatever way the parent ends, this process ends ``GRACE_S`` later at most.
"""

import os
import runpy
import signal
import sys
import threading
import time

GRACE_S = 5.0


def main() -> None:
    """Run the command, and watch the pipe meanwhile."""
    descriptor = int(sys.argv[1])
    threading.Thread(target=watch, args=(descriptor,), name="parent", daemon=True).start()
    sys.argv = ["keepwarm", *sys.argv[2:]]
    runpy.run_module("keepwarm", run_name="__main__", alter_sys=True)


def watch(descriptor: int) -> None:
    """Wait for the pipe's end, then end this process."""
    while os.read(descriptor, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
