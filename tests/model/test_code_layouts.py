"""The published layouts, by numbers worked out by hand."""

import torch

from kernels.codes import widen_codes
from runtime.model import code_layouts


def test_gptq_of_the_first_version_keeps_zero_points_less_one() -> None:
    """Worked out by hand: one output's codes 0 to 7 of a first word, zero points 7 and 15."""
    words = torch.tensor([[0x76543210] * 8, [-1] * 8, [0] * 8, [0x0F0F0F0F] * 8], dtype=torch.int32)
    scales = torch.full((1, 8), 0.5, dtype=torch.float16)
    zeros = torch.tensor([[0x7777777F]], dtype=torch.int32)
    for first, zero_of in ((True, [16, 8]), (False, [15, 7])):
        codes = code_layouts.gptq_codes(words, scales, zeros, bits=4, first_version=first)
        wide = widen_codes(codes, torch.float32)
        for output, zero in enumerate(zero_of):
            expected = [
                (code - zero) * 0.5 for code in (*range(8), *[15] * 8, *[0] * 8, *[15, 0] * 4)
            ]
            assert wide[output].tolist() == expected


def test_awq_deals_a_words_outputs_out_in_its_order() -> None:
    """The word's nibbles, lowest first, are outputs 0 2 4 6 1 3 5 7; zero points likewise."""
    words = torch.tensor([[0x75316420], [0]], dtype=torch.int32)
    zeros = torch.tensor([[0x11111111]], dtype=torch.int32)
    scales = torch.tensor([[1.0, 2, 4, 8, 16, 32, 64, 128]], dtype=torch.float16)
    wide = widen_codes(code_layouts.awq_codes(words, scales, zeros), torch.float32)
    assert wide[:, 0].tolist() == [(code - 1) * 2.0**code for code in range(8)]
    assert wide[:, 1].tolist() == [-(2.0**code) for code in range(8)]


def test_packed_numbers_are_kept_more_by_half_of_what_there_is() -> None:
    words = torch.tensor([[0x76543210, -0x01234568, 0, 0]], dtype=torch.int32)
    codes = code_layouts.packed_codes(words, torch.tensor([[2.0]]), None, bits=4, inputs=32)
    wide = widen_codes(codes, torch.float32)[0]
    assert wide[:16].tolist() == [2.0 * (code - 8) for code in range(16)]
    wider = code_layouts.packed_codes(words, torch.tensor([[2.0]]), None, bits=8, inputs=16)
    assert widen_codes(wider, torch.float32)[0, 0] == 2.0 * (0x10 - 128)


def test_zero_points_are_packed_along_the_outputs() -> None:
    words = torch.zeros(8, 4, dtype=torch.int32)
    zeros = torch.tensor([[0x76543210]], dtype=torch.int32)
    scales = torch.ones(8, 1)
    wide = widen_codes(
        code_layouts.packed_codes(words, scales, zeros, bits=4, inputs=32), torch.float32
    )
    assert wide[:, 0].tolist() == [-float(zero) for zero in range(8)]


def test_blocks_of_fp8_may_be_part_full() -> None:
    values = torch.ones(5, 7).to(torch.float8_e4m3fn)
    scales = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    wide = widen_codes(code_layouts.e4m3_codes(values, scales, (4, 4)), torch.float32)
    assert wide[0].tolist() == [1, 1, 1, 1, 2, 2, 2]
    assert wide[4].tolist() == [3, 3, 3, 3, 4, 4, 4]


def test_mxfp4_has_its_first_input_in_the_lower_half_of_a_byte() -> None:
    blocks = torch.full((1, 16), 0x9A, dtype=torch.uint8)
    wide = widen_codes(
        code_layouts.mxfp4_codes(blocks, torch.full((1, 1), 128, dtype=torch.uint8)), torch.float32
    )
    assert wide[0, :2].tolist() == [-2.0, -1.0]


def test_nvfp4_has_a_scale_for_sixteen_inputs() -> None:
    values = torch.full((1, 16), 0x22, dtype=torch.uint8)
    wide = code_layouts.nvfp4_weight(values, torch.tensor([[0.5, 3.0]]))
    assert wide[0].tolist() == [0.5] * 16 + [3.0] * 16
