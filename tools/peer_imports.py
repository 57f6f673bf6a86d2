"""What a served text model imports of the peer and of what it needs, counted in its environment.

    PEER/bin/python tools/peer_imports.py [--stand-in] [--help-of-server]

Needs nothing but the peer's environment. Prints one line of JSON: the modules that did not import
and why, the native libraries that did not load, and for each distribution that was imported its
megabytes. ``--stand-in``, for a machine without a GPU, has empty modules take the place of native
ones that lack a library, and the server's options be parsed as on a CPU: what is counted then is
what Python imports, not what a GPU loads. Exit code 1: a module did not import.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import io
import json
import re
import sys
import types
from collections.abc import Sequence
from typing import Any

NATIVE = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
)
SERVED = (
    "vllm.platforms.cuda",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.sample.sampler",
    "vllm.v1.structured_output",
    "vllm.compilation.backends",
    "vllm.model_executor.models.qwen3",
    "flashinfer.sampling",
)
"""Modules of the way of a request to a text model on a GPU."""


def load(names: Sequence[str], *, stand_in: bool) -> dict[str, str]:
    """Import each; why those that failed did. ``stand_in`` puts empty modules in their place."""
    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            if stand_in:
                sys.modules[name] = types.ModuleType(name)
    return failed


def imported() -> dict[str, float]:
    """Megabytes of the distributions of which a module was imported."""
    names = importlib.metadata.packages_distributions()
    tops = {module.partition(".")[0] for module in list(sys.modules)}
    found = sorted({name for top in tops for name in names.get(top, ())}, key=str.lower)
    return {normal(name): megabytes(importlib.metadata.distribution(name)) for name in found}


def megabytes(distribution: importlib.metadata.Distribution) -> float:
    """What its files take, as its record says."""
    return round(sum(file.size or 0 for file in distribution.files or ()) / 1e6, 1)


def normal(name: str) -> str:
    """A distribution's name as it is compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def options_of_server(*, stand_in: bool) -> list[str]:
    """The options that the server's own help names."""
    if stand_in:
        platforms: Any = importlib.import_module("vllm.platforms")
        platforms._current_platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform()
    program: Any = importlib.import_module("vllm.entrypoints.cli.main")
    sys.argv = ["vllm", "serve", "--help=all"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        program.main()
    return sorted(set(re.findall(r"^ +(--[a-z-]+)", said.getvalue(), re.MULTILINE)))


def main(words: Sequence[str] | None = None) -> int:
    """Import, count and print."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--stand-in", action="store_true")
    options.add_argument("--help-of-server", action="store_true", help="list its options, too")
    given = options.parse_args(words)
    importlib.import_module("vllm")
    native = load(NATIVE, stand_in=given.stand_in)
    failed = load(SERVED, stand_in=False)
    answer: dict[str, Any] = {"failed": failed, "native": native, "imported_mb": imported()}
    if given.help_of_server:
        answer["options"] = options_of_server(stand_in=given.stand_in)
    print(json.dumps(answer))
    return 1 if failed or (native and not given.stand_in) else 0


if __name__ == "__main__":
    sys.exit(main())
