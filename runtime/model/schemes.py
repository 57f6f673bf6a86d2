"""How a checkpoint keeps its matrices in few bits: which modules, and in which layout.

Values only; ``runtime.model.quantisation`` reads them from ``config.json``.
"""

from dataclasses import dataclass
from typing import Literal

from runtime.model.module_names import ModuleNames

Layout = Literal["fp8", "int8", "packed", "gptq", "awq", "mxfp4", "nvfp4", "gguf"]
"""Which tensors a matrix is kept in; ``runtime.model.code_layouts`` has them one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How a matrix is quantised and stored."""

    layout: Layout
    bits: int = 8
    group: int | None = None
    """Inputs that share a scale; None: all, or as ``block`` says."""
    block: tuple[int, int] | None = None
    """Outputs and inputs that share one."""
    has_zeros: bool = False
    """Groups have zero points."""
    counts_zeros_from_one: bool = False
    """They are kept less 1 (GPTQ's first version)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """The quantisation of a whole checkpoint."""

    method: str
    """As ``quantization_config`` calls it."""
    excluded_field: str
    """Names those modules that are not quantised."""
    scheme: Scheme
    """The scheme of modules that no other one is for."""
    own: tuple[tuple[ModuleNames, Scheme | None], ...] = ()
    """Schemes of some modules, the first that fits a name counts; None: these are not quantised."""
    tensors_decide: bool = False
    """A module that is kept in 16 bits is right without being listed."""

    def scheme_of(self, module: str) -> Scheme | None:
        """The scheme of a module, as the checkpoint names it; None: it is kept as it is."""
        names = {module, _plain(module)}
        for listed, scheme in self.own:
            if any(listed.fits(name) for name in names):
                return scheme
        return self.scheme


def _plain(module: str) -> str:
    """The name that it has in a model without a wrapper: lists have either."""
    for prefix in ("model.language_model.", "language_model.model.", "model.text_model."):
        if module.startswith(prefix):
            return "model." + module.removeprefix(prefix)
    return module.removeprefix("language_model.")
