"""``keepwarm`` as it is, with the scripted engine in place of the real one.

python -m benchmarks.transport_server serve --port 0
"""

import sys
from functools import partial

from runtime.process.engine_process import EngineProcess
from sessions.command import cli

ENGINE = (sys.executable, "-m", "benchmarks.transport_engine")


def main() -> int:
    """Entry point; returns the exit status."""
    cli.EngineProcess = partial(EngineProcess, command=ENGINE)  # type: ignore
    return cli.main()


if __name__ == "__main__":
    raise SystemExit(main())
