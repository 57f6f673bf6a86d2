"""How Triton kernels are launched; and how all that a step needs are compiled beforehand.

A kernel is compiled when it is first launched with arguments of new types, one after the other,
half a second each. Inside ``compiling_ahead`` launches are not made: each kernel is only given to
threads that compile it, so that whoever runs a model's steps in it has all their kernels compiled
side by side. What the steps compute there is void.
"""

import importlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any

_only_compile = ContextVar("only_compile", default=False)


def launch(kernel: Any, grid: Any) -> Callable[..., object]:
    """A function that launches ``kernel``, a function of ``triton.jit``, over ``grid``."""
    warmup = _only_compile.get()
    return lambda *arguments, **sizes: kernel.run(*arguments, grid=grid, warmup=warmup, **sizes)


@contextmanager
def compiling_ahead(
    threads: int, compiled: Callable[[int], None] = lambda count: None
) -> Iterator[None]:
    """Inside, kernels are compiled and not launched; at the end all are compiled.

    One that cannot be compiled is left out: its launch will say why. Where Triton is not
    installed or runs its interpreter there is nothing to compile, and launches are not made.

    Args:
        threads: that compile; Triton lets go of Python's lock for most of a compilation.
        compiled: is told how many are done, after each, from one of the threads.
    """
    mode = _compile_mode()
    before = _only_compile.set(True)
    try:
        if mode is None:
            yield
        else:
            with _Compilers(threads, compiled) as compilers, mode(compilers, ignore_errors=True):
                yield
    finally:
        _only_compile.reset(before)


def _compile_mode() -> Any:
    """Triton's way to compile on an executor; None where there is none."""
    try:
        triton: Any = importlib.import_module("triton")
    except ImportError:
        return None
    return getattr(triton, "AsyncCompileMode", None)


class _Compilers(ThreadPoolExecutor):
    """Threads that compile and count."""

    def __init__(self, threads: int, compiled: Callable[[int], None]) -> None:
        super().__init__(threads, thread_name_prefix="compile")
        self._compiled = compiled
        self._count = count(1)

    def submit(self, *work: Any, **named: Any) -> Future[Any]:
        """See ``Executor.submit``."""
        future = super().submit(*work, **named)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: Future[Any]) -> None:
        self._compiled(next(self._count))
