"""``keepwarm`` as a program of a few lines, for tests of who starts it as a child."""

import os
from pathlib import Path

from tests.support.architecture import ROOT

KEEPWARM = """
import signal, sys, time
def stop(*_):
    sys.exit(7)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in sys.argv else stop)
if "no-disk" in sys.argv and "--disk-kv-folder" in sys.argv:
    print("keepwarm: error: disk cache folder x: 9 MiB more are needed", file=sys.stderr)
    sys.exit(1)
if "wrong" in sys.argv:
    print("keepwarm: error: no", file=sys.stderr)
    sys.exit(1)
print("keepwarm ready at http://127.0.0.1:4711/v1 model=x", flush=True)
time.sleep(600)
"""


def fake_keepwarm(folder: Path) -> dict[str, str]:
    """The environment in which it is the module ``keepwarm``. Word ``deaf``: it does not mind
    SIGTERM; ``wrong``: it does not start, ``no-disk``: nor
    with a folder of KV."""
    package = folder / "fake/keepwarm"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(KEEPWARM)
    (package / "__init__.py").write_text("")
    (folder / "fake/cluster").symlink_to(ROOT / "cluster")
    return os.environ | {"PYTHONPATH": str(folder / "fake"), "PYTHONSAFEPATH": "1"}
