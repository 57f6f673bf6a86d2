"""What headers say of a checkpoint is told in words, and what it will take in bytes."""

import pytest

from runtime.model.contents import Extent, counted, held_bytes, held_of_gguf, told
from runtime.model.module_names import ModuleNames
from runtime.model.schemes import Quantisation, Scheme

PACKED = Scheme(layout="packed", bits=4, group=128, has_zeros=True)
NVFP4 = Scheme(layout="nvfp4", bits=4, group=16)
FP8 = Scheme(layout="fp8", block=(128, 128))
WORDS = Extent(kind="int32", floats=False, numbers=1000, num_bytes=4000)
BYTES = Extent(kind="uint8", floats=False, numbers=1000, num_bytes=1000)
HALVES = Extent(kind="float16", floats=True, numbers=1000, num_bytes=2000)


def quantisation(scheme: Scheme, **own: Scheme | None) -> Quantisation:
    rules = tuple((ModuleNames("ends", (name,)), each) for name, each in own.items())
    return Quantisation(method="m", excluded_field="ignore", scheme=scheme, own=rules)


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (quantisation(FP8), "m (e4m3 in blocks of 128 x 128)"),
        (quantisation(PACKED), "m (int4 in groups of 128 with zero points)"),
        (quantisation(FP8, k_proj=PACKED, lm_head=None),
         "m (e4m3 in blocks of 128 x 128, int4 in groups of 128 with zero points)"),
        (quantisation(NVFP4, k_proj=NVFP4), "m (NVFP4, widened in groups of 16)"),
    ],
)  # fmt: skip
def test_a_quantisation_is_told_with_each_way_of_it_once(of: Quantisation, expected: str) -> None:
    assert told(of) == expected


@pytest.mark.parametrize(
    ("name", "extent", "of", "expected"),
    [
        ("a.weight_packed", WORDS, quantisation(PACKED), 4000),  # as it lies
        ("a.weight_scale", HALVES, quantisation(PACKED), 4000),  # in float32
        ("a.weight", HALVES, quantisation(PACKED, a=None), 2000),  # in the model's dtype
        ("a.weight", HALVES, None, 2000),
        ("a.weight_packed", BYTES, quantisation(NVFP4), 4000),  # two numbers a byte, widened
        ("a.weight_scale", BYTES, quantisation(NVFP4), 0),  # which takes up its scales
    ],
)
def test_what_is_widened_takes_the_memory_of_the_models_dtype(
    name: str, extent: Extent, of: Quantisation | None, expected: int
) -> None:
    assert held_bytes(name, extent, of, 2) == expected


@pytest.mark.parametrize(("kind", "expected"), [("Q4_0", 144), ("Q4_K", 512), ("F32", 512)])
def test_of_a_gguf_file_few_kinds_stay_as_they_lie(kind: str, expected: int) -> None:
    assert held_of_gguf(kind, 256, 144, 2) == expected


def test_names_are_told_once_with_their_count() -> None:
    assert counted(["mtp.*", "*visual.*", "mtp.*"]) == "*visual.* (1), mtp.* (2)"
    assert counted([]) == ""
