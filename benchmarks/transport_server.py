"""``keepwarm`` as it is, with the scripted engine in place of the real one.

python -m benchmarks.transport_server serve --port 0
"""

import sys

from keepwarm.__main__ import main as keepwarm
from sessions.command import serve

ENGINE = (sys.executable, "-m", "benchmarks.transport_engine")


def main() -> int:
    """Entry point; returns the exit status."""
    serve.engine_command = lambda log_format: ENGINE  # type: ignore
    return keepwarm()


if __name__ == "__main__":
    raise SystemExit(main())
