"""The structures of Python and of C++ are the same, byte for byte."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from kernels import native_arguments as arguments
from kernels import native_layers as layers
from kernels import native_library

STRUCTURES = (
    arguments.AttendArgs,
    arguments.LinearArgs,
    arguments.PackArgs,
    arguments.QkvArgs,
    arguments.ShortConvArgs,
    arguments.DeltaArgs,
    arguments.DeltaFoldArgs,
    arguments.DeltaShapingArgs,
    arguments.GatedNormArgs,
    arguments.IndexScoresArgs,
    arguments.RingWriteArgs,
    arguments.WindowArgs,
    layers._ProductArgs,
    layers._LayerArgs,
    layers._LayersArgs,
)
LIBRARY = native_library.native_library(torch.bfloat16)
HAS_PRODUCTS = LIBRARY is not None and LIBRARY.has_linear
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")


@pytest.mark.skipif(not HAS_PRODUCTS, reason="no compiled products here")
def test_sizes_and_places_are_those_of_the_headers(tmp_path: Path) -> None:
    claims = []
    for structure in STRUCTURES:
        name = structure.__name__.removeprefix("_")
        claims.append(f"static_assert(sizeof({name}) == {ctypes.sizeof(structure)});")
        claims += [
            f"static_assert(offsetof({name}, {field}) == {getattr(structure, field).offset});"
            for field, *_ in structure._fields_
        ]
    folder = Path(native_library.__file__).parent / "native"
    source = tmp_path / "claims.cpp"
    source.write_text(
        f'#include "{folder}/layers.cpp"\n#include "{folder}/short_conv.h"\n'
        f'#include "{folder}/index_scores.h"\n'
        f'#include "{folder}/gated_delta.h"\n#include "{folder}/recurrent.h"\n'
        "#include <cstddef>\n" + "\n".join(claims)
    )
    command = [str(COMPILER), *native_library.FLAGS, "-fsyntax-only", str(source)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_a_matrix_says_what_every_call_with_it_says() -> None:
    values, scales = torch.zeros(64, dtype=torch.uint8), torch.zeros(1, 1, 16)
    weights = arguments.TiledWeights(
        kind="8", values=values, scales=scales, outputs=16, inputs=4, group=32
    )
    said = arguments.LinearArgs.from_buffer_copy(weights.arguments)
    assert (said.weights, said.scales) == (values.data_ptr(), scales.data_ptr())
    assert (said.outputs, said.inputs, said.group) == (16, 4, 32)
    assert (said.x, said.output, said.rows) == (None, None, 0)
