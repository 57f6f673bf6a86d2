"""``quantization_config`` of a ``config.json`` -> how matrices are kept.

One reader for all ways of saying it. What it says of inputs, of keys and values and of how the
numbers were found changes nothing here: weights are multiplied as they are kept, by inputs as they
come. What would change the weights themselves and is not known is an error.

Always true: what is read has a layout that ``runtime.model.quantised_tensors`` knows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from runtime.model.config_fields import Fields
from runtime.model.module_names import ModuleNames, Way
from runtime.model.name_patterns import UnknownSyntax
from runtime.model.schemes import Layout, Quantisation, Scheme

_MOST_NAMES = 65_536
"""Most names in a list of modules."""
_Read = Callable[[Fields], Quantisation]
_PASSING_ORDERS = ("weight", "static")
"""Orders in which inputs were looked at, and are not kept; others are (``group`` and its other
names, ``dynamic`` and true)."""
_MX = 32
"""Neighbouring inputs that share a scale in the Microscaling formats (OCP, version 1.0)."""
_GROUPS = (32, 64, 128)
"""Groups of integers; GPTQ and others have -1 for all inputs."""


def read_quantisation(fields: Fields) -> Quantisation | None:
    """From the fields of a model; None where its weights are as ever.

    Raises:
        LoadError: it is nothing that is known here; the message names the field and what is.
    """
    for name in ("quantization_config", "compression_config"):
        own = fields.within(name)
        if own is not None:
            read: _Read = own.one_of("quant_method", _METHODS, _unnamed(own))
            return read(own)
    return None


def _unnamed(fields: Fields) -> str | None:
    """The scheme of older folders that do not say how."""
    return "compressed-tensors" if "config_groups" in fields else None


def _read_fp8(fields: Fields) -> Quantisation:
    """``transformers``' own: blocks, or one scale for a matrix. The list of modules that are left
    out has another name in some folders (MiMo V2)."""
    fields.one_of("fmt", {"e4m3": True, "float8_e4m3fn": True}, "e4m3")
    fields.whole("store_dtype", None, "absent: numbers are kept in the format that is named")
    field = "ignored_layers" if "ignored_layers" in fields else "modules_to_not_convert"
    return Quantisation(
        method="fp8",
        excluded_field=field,
        scheme=Scheme(layout="fp8", block=_block(fields, "weight_block_size")),
        own=_listed(fields, field, "ends"),
    )


def _read_mxfp8(fields: Fields) -> Quantisation:
    """The way of MiniMax M3: FP8 whose blocks, of 32 inputs of an output, need not be named."""
    block = _block(fields, "weight_block_size") or (1, _MX)
    if block != (1, _MX):
        raise fields.error("weight_block_size", list(block), f"[1, {_MX}], as MXFP8 has it")
    read = _read_fp8(fields)
    return replace(read, method="mxfp8", scheme=Scheme(layout="fp8", block=block))


def _read_mxfp4(fields: Fields) -> Quantisation:
    field = "modules_to_not_convert"
    return Quantisation(
        method="mxfp4",
        excluded_field=field,
        scheme=Scheme(layout="mxfp4", bits=4, group=_MX),
        own=_listed(fields, field, "ends"),
        tensors_decide=True,  # only experts are ever quantised so
    )


def _read_gptq(fields: Fields) -> Quantisation:
    """Modules that are not quantised are not listed, but for rules of the form ``-:EXPRESSION``."""
    versions = {"gptq": True, "gptq_v2": False}
    first = fields.one_of("checkpoint_format", versions, "gptq")
    rules = fields.get("dynamic", {})
    if not isinstance(rules, dict):
        raise fields.error("dynamic", rules, "an object of rules")
    for rule, changes in rules.items():
        if not rule.startswith("-:") or changes:
            raise fields.error("dynamic", rule, "rules that only leave modules out (-:EXPRESSION)")
    return Quantisation(
        method="gptq",
        excluded_field="dynamic",
        scheme=Scheme(
            layout="gptq",
            bits=_bits(fields, "bits"),
            group=_group(fields, "group_size"),
            has_zeros=True,
            counts_zeros_from_one=first,
        ),
        tensors_decide=True,
    )


def _read_awq(fields: Fields) -> Quantisation:
    fields.one_of("version", {"gemm": True, "GEMM": True}, "gemm")
    bits = fields.get("bits", fields.get("w_bit", 4))
    if bits != 4:
        raise fields.error("bits", bits, "4")
    size = "q_group_size" if "q_group_size" in fields else "group_size"
    return Quantisation(
        method="awq",
        excluded_field="modules_to_not_convert",
        scheme=Scheme(
            layout="awq",
            bits=4,
            group=_group(fields, size, 128),
            has_zeros=fields.flag("zero_point", True),
        ),
        own=_listed(fields, "modules_to_not_convert", "parts"),
        tensors_decide=True,
    )


def _read_modelopt(fields: Fields) -> Quantisation:
    kinds = {
        "FP8": Scheme(layout="fp8"),
        "NVFP4": Scheme(layout="nvfp4", bits=4, group=16),
        "MXFP4": Scheme(layout="mxfp4", bits=4, group=_MX),
        "MXFP8": Scheme(layout="fp8", block=(1, _MX)),
    }
    field = "exclude_modules" if "exclude_modules" in fields else "ignore"
    return Quantisation(
        method="modelopt",
        excluded_field=field,
        scheme=fields.one_of("quant_algo", kinds),
        own=_listed(fields, field, "wildcards"),
    )


def _read_compressed(fields: Fields) -> Quantisation:
    """compressed-tensors: groups of modules, each with a scheme and maybe a format of its own."""
    for name in ("sparsity_config", "transform_config"):
        if fields.get(name):
            raise fields.error(name, "set", "absent: weights that are more than quantised")
    groups = fields.get("config_groups")
    if not isinstance(groups, dict) or not groups or len(groups) > _MOST_NAMES:
        raise fields.error("config_groups", groups, "an object of groups")
    every = fields.within("config_groups")
    assert every is not None
    own: list[tuple[ModuleNames, Scheme | None]] = [*_listed(fields, "ignore", "targets")]
    whole: Scheme | None = None
    for name in groups:
        group = every.within(name)
        if group is None:
            raise every.error(name, None, "an object")
        scheme = _compressed_scheme(group, group.get("format", fields.get("format")))
        targets = _names(group, "targets")
        if "Linear" in targets:
            whole = scheme
        else:
            own.append((_module_names(group, "targets", "targets", targets), scheme))
    if whole is None:
        own.append((ModuleNames("all", ()), None))
    return Quantisation(
        method="compressed-tensors",
        excluded_field="ignore",
        scheme=whole or Scheme(layout="fp8"),
        own=tuple(own),
    )


def _compressed_scheme(group: Fields, form: object) -> Scheme | None:
    weights = group.within("weights")
    if weights is None or form == "dense":
        return None
    kinds = {"int": "int", "float": "float"}
    kind = weights.one_of("type", kinds, "int")
    layout = _LAYOUTS.get((form, kind)) if isinstance(form, str) else None
    if layout is None:
        known = ", ".join(sorted({name for name, _ in _LAYOUTS}))
        raise group.error("format", form, f"one of {known} for weights of type {kind}")
    strategies = {name: name for name in ("tensor", "channel", "group", "block", "tensor_group")}
    size = weights.get("group_size")
    default = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = weights.one_of("strategy", strategies, default)
    order = weights.get("actorder", False)
    if order is not False and (not isinstance(order, str) or order.lower() not in _PASSING_ORDERS):
        raise weights.error("actorder", order, "null or weight: inputs in an order of their own")
    return _with_groups(weights, layout, strategy)


def _with_groups(weights: Fields, layout: Layout, strategy: str) -> Scheme:
    zeros = not weights.flag("symmetric", True)
    bits = weights.size("num_bits", 8)
    if layout in ("mxfp4", "nvfp4"):
        if bits != 4:
            raise weights.error("num_bits", bits, "4")
        return Scheme(layout=layout, bits=4, group=32 if layout == "mxfp4" else 16)
    if layout in ("fp8", "int8") and bits != 8:
        raise weights.error("num_bits", bits, "8")
    if layout == "fp8" and zeros:
        raise weights.error("symmetric", False, "true: floating point has no zero points")
    if layout == "packed":
        bits = _bits(weights, "num_bits")
    block = _block(weights, "block_structure") if strategy == "block" else None
    if strategy == "block" and block is None:
        raise weights.error("block_structure", None, "two sizes")
    group = _group(weights, "group_size") if "group" in strategy else None
    return Scheme(layout=layout, bits=bits, group=group, block=block, has_zeros=zeros)


_LAYOUTS: Mapping[tuple[str, str], Layout] = {
    ("pack-quantized", "int"): "packed",
    ("int-quantized", "int"): "int8",
    ("naive-quantized", "int"): "int8",
    ("float-quantized", "float"): "fp8",
    ("naive-quantized", "float"): "fp8",
    ("mxfp8-quantized", "float"): "fp8",
    ("mxfp4-pack-quantized", "float"): "mxfp4",
    ("nvfp4-pack-quantized", "float"): "nvfp4",
}

_METHODS: Mapping[str, _Read] = {
    "fp8": _read_fp8,
    "compressed-tensors": _read_compressed,
    "gptq": _read_gptq,
    "awq": _read_awq,
    "mxfp4": _read_mxfp4,
    "mxfp8": _read_mxfp8,
    "modelopt": _read_modelopt,
}


def _bits(fields: Fields, name: str) -> int:
    bits = fields.size(name)
    if bits not in (4, 8):
        raise fields.error(name, bits, "4 or 8")
    return bits


def _group(fields: Fields, name: str, default: int | None = None) -> int | None:
    """Inputs that share a scale; None: all of them."""
    if fields.get(name) == -1:
        return None
    group = fields.size(name, default)
    if group not in _GROUPS:
        raise fields.error(name, group, f"{', '.join(map(str, _GROUPS))} or -1")
    return group


def _block(fields: Fields, name: str) -> tuple[int, int] | None:
    sizes = fields.get(name)
    if sizes is None:
        return None
    right = isinstance(sizes, list) and len(sizes) == 2
    if not right or not all(type(size) is int and 1 <= size <= 1 << 20 for size in sizes):
        raise fields.error(name, sizes, "two sizes")
    return sizes[0], sizes[1]


def _names(fields: Fields, name: str) -> Sequence[str]:
    names = fields.get(name, [])
    right = isinstance(names, list) and len(names) <= _MOST_NAMES
    if not right or not all(isinstance(each, str) for each in names):
        raise fields.error(name, names, "a list of names")
    return tuple(names)


def _listed(fields: Fields, name: str, way: Way) -> tuple[tuple[ModuleNames, None], ...]:
    """Modules that are left as they are, as one rule."""
    names = _names(fields, name)
    return ((_module_names(fields, name, way, names), None),) if names else ()


def _module_names(fields: Fields, name: str, way: Way, names: Sequence[str]) -> ModuleNames:
    try:
        return ModuleNames(way, tuple(names))
    except UnknownSyntax as error:
        raise fields.error(name, str(error), "plain expressions for names") from None
