"""Descriptions of quantised folders, in the spellings of those who publish them."""

from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import LoadError
from runtime.model.config_fields import Fields
from runtime.model.quantisation import read_quantisation
from runtime.model.schemes import Quantisation, Scheme

MODULE = "model.layers.3.mlp.up_proj"


def read(settings: Any, name: str = "quantization_config") -> Quantisation | None:
    return read_quantisation(Fields(Path("config.json"), {name: settings}))


def groups(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"a": group}}


READ: list[tuple[dict[str, Any], Scheme]] = [
    ({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
      "weight_block_size": [128, 128]}, Scheme(layout="fp8", block=(128, 128))),
    ({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
     Scheme(layout="fp8")),
    ({"quant_method": "mxfp4"}, Scheme(layout="mxfp4", bits=4, group=32)),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
     Scheme(layout="gptq", bits=4, group=128, has_zeros=True, counts_zeros_from_one=True)),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2",
      "dynamic": {"-:.*mlp.*": {}}}, Scheme(layout="gptq", bits=8, has_zeros=True)),
    ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
     Scheme(layout="awq", bits=4, group=64, has_zeros=True)),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128},
     Scheme(layout="awq", bits=4, group=128, has_zeros=True)),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, Scheme(layout="nvfp4", bits=4, group=16)),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, Scheme(layout="fp8")),
    ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, Scheme(layout="fp8", block=(1, 32))),
    ({"quant_method": "mxfp8", "activation_scheme": "dynamic", "fmt": "e4m3",
      "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}, Scheme(layout="fp8", block=(1, 32))),
    ({"quant_method": "mxfp8", "ignored_layers": []}, Scheme(layout="fp8", block=(1, 32))),
    (groups("pack-quantized", num_bits=4, type="int", symmetric=False, strategy="group",
            group_size=32), Scheme(layout="packed", bits=4, group=32, has_zeros=True)),
    (groups("pack-quantized", num_bits=8, strategy="channel"), Scheme(layout="packed")),
    (groups("float-quantized", num_bits=8, type="float", strategy="block",
            block_structure=[128, 128]), Scheme(layout="fp8", block=(128, 128))),
    (groups("float-quantized", num_bits=8, type="float", strategy="tensor"), Scheme(layout="fp8")),
    (groups("int-quantized", num_bits=8, type="int", strategy="channel"), Scheme(layout="int8")),
    (groups("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group",
            group_size=16), Scheme(layout="nvfp4", bits=4, group=16)),
    (groups("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32),
     Scheme(layout="mxfp4", bits=4, group=32)),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "scheme"), READ)
def test_a_description_says_how_matrices_are_kept(settings: dict[str, Any], scheme: Scheme) -> None:
    found = read(settings)
    assert found is not None
    assert found.scheme_of(MODULE) == scheme
    assert read(settings) == found


def test_without_a_description_weights_are_as_ever() -> None:
    assert read_quantisation(Fields(Path("config.json"), {"quantization_config": None})) is None
    assert read_quantisation(Fields(Path("config.json"), {})) is None


def test_an_older_name_and_no_method_are_known() -> None:
    settings = groups("pack-quantized", num_bits=4, strategy="group", group_size=128)
    del settings["quant_method"]
    found = read(settings, "compression_config")
    assert found is not None
    assert found.method == "compressed-tensors"


def test_groups_have_schemes_of_their_own_and_what_is_in_none_is_kept() -> None:
    settings = {
        "quant_method": "compressed-tensors",
        "ignore": ["lm_head", "re:.*[.]gate$"],
        "config_groups": {
            "attention": {"targets": ["re:.*self_attn.*"], "format": "float-quantized",
                          "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
            "experts": {"targets": ["re:.*mlp.experts.*"], "format": "pack-quantized",
                        "weights": {"num_bits": 4, "strategy": "group", "group_size": 32}},
        },
    }  # fmt: skip
    found = read(settings)
    assert found is not None
    assert found.scheme_of("model.layers.0.self_attn.q_proj") == Scheme(layout="fp8")
    packed = Scheme(layout="packed", bits=4, group=32)
    assert found.scheme_of("model.layers.0.mlp.experts.3.up_proj") == packed
    for kept in ("lm_head", "model.layers.0.mlp.gate", "model.layers.0.mlp.up_proj"):
        assert found.scheme_of(kept) is None


WRONG: list[tuple[Any, str]] = [
    ("fp8", "quantization_config is 'fp8', not an object"),
    ({}, "quant_method is None"),
    ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes', not fp8 or"),
    ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt is 'e5m2'"),
    ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size is"),
    ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size is"),
    ({"quant_method": "mxfp8", "weight_block_size": [128, 128]}, "weight_block_size is"),
    ({"quant_method": "mxfp8", "fmt": "e5m2"}, "fmt is"),
    ({"quant_method": "fp8", "modules_to_not_convert": [1]}, "modules_to_not_convert is"),
    ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "bits is 3, not 4 or 8"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 48}, "group_size is 48, not 32, 64, 128"),
    ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "marlin"),
    ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:a": {"bits": 8}}}, "dynamic is"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": [1]}, "dynamic is"),
    ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version is 'gemv'"),
    ({"quant_method": "awq", "bits": 8}, "bits is 8, not 4"),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo is 'W4A8_AWQ'"),
    (groups("marlin-24", num_bits=4), "format is 'marlin-24', not one of"),
    (groups("pack-quantized", num_bits=3, strategy="channel"), "num_bits is 3"),
    (groups("pack-quantized", num_bits=4, strategy="group", group_size=16), "group_size is 16"),
    (groups("float-quantized", num_bits=8, type="float", strategy="block"), "block_structure"),
    (groups("float-quantized", num_bits=4, type="float", strategy="channel"), "num_bits is 4"),
    (groups("pack-quantized", num_bits=4, strategy="token"), "strategy is 'token'"),
    *(
        (groups("pack-quantized", num_bits=4, strategy="channel", actorder=order), "actorder is")
        for order in ("group", "GROUP", "dynamic", True, 1, [])
    ),
    ({**groups("pack-quantized", num_bits=4), "transform_config": {"a": 1}}, "transform_config is"),
    ({**groups("pack-quantized", num_bits=4), "sparsity_config": {"a": 1}}, "sparsity_config is"),
    ({**groups("pack-quantized", num_bits=4), "ignore": ["re:(a+)+"]}, "ignore is"),
    ({"quant_method": "compressed-tensors"}, "config_groups is None"),
    ({"quant_method": "compressed-tensors", "config_groups": {"a": []}}, "config_groups.a is"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_what_is_not_known_is_refused_by_field_and_remedy(settings: Any, message: str) -> None:
    with pytest.raises(LoadError) as caught:
        read(settings)
    text = str(caught.value)
    assert text.startswith("config.json: field quantization_config")
    assert message in text
    assert ", not " in text
    assert "\n" not in text
