"""The inference engine: scheduler, model runner, loop, child process. No sockets, no sessions.

Modules that import torch are imported only in the engine's process.
"""

import importlib.util
from pathlib import Path


def _refuse_foreign_kernels() -> None:
    """Raise ImportError if ``kernels`` is not the package that lies beside this one."""
    spec = importlib.util.find_spec("kernels")
    ours = Path(__file__).resolve().parent.parent / "kernels" / "__init__.py"
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != ours:
        found = "no package" if spec is None else str(spec.origin)
        raise ImportError(
            "keepwarm needs its own top-level package 'kernels', but Python finds "
            f"{found}. Hugging Face's distribution 'kernels' has the same import name: "
            "install keepwarm in an environment without it."
        )


_refuse_foreign_kernels()
