// Products with tiled weights (linear.h) in registers of 512 bits: what all kinds of weights share.

#pragma once

#include "linear.h"

#ifdef HAVE_BF16_UNITS

extern "C" {

// linear_by_groups.cpp
void keepwarm_by_groups_4(const LinearArgs* args);
void keepwarm_by_groups_int4(const LinearArgs* args);
void keepwarm_by_groups_int8(const LinearArgs* args);
void keepwarm_by_groups_e2m1(const LinearArgs* args);
void keepwarm_by_groups_e4m3(const LinearArgs* args);
}

namespace {

inline int64_t groups_of(const LinearArgs& args) {
  return (args.inputs + args.group - 1) / args.group;
}

inline void store(const LinearArgs& args, int64_t tile, int64_t row, __m512 sums) {
  int64_t count = std::min(kTile, args.outputs - tile * kTile);
  bf16* out = static_cast<bf16*>(args.output) + row * args.outputs + tile * kTile;
  __m512i bits = _mm512_castps_si512(sums);
  __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
  __mmask16 nan = _mm512_cmp_ps_mask(sums, sums, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  __m256i narrowed = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
  _mm256_mask_storeu_epi16(out, __mmask16((1 << count) - 1), narrowed);
}

// float to bf16 in the upper half of each lane; finite values only.
inline __m512i rounded_bits(__m512 value) {
  __m512i bits = _mm512_castps_si512(value);
  __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
}

// Two registers of floats as one of bf16 pairs.
inline __m512i side_by_side(__m512 even, __m512 odd) {
  __m512i upper = _mm512_and_si512(rounded_bits(odd), _mm512_set1_epi32(0xffff0000));
  return _mm512_or_si512(upper, _mm512_srli_epi32(rounded_bits(even), 16));
}

// As many tiles at once as the registers hold sums for.
template <typename Kind, typename In, int kMost>
struct Rows512 {
  using Input = In;
  static constexpr int kMaxRows = kMost;
  static constexpr int most_rows(int tiles) { return tiles <= 2 ? kMaxRows : 4; }
  static void multiply(const LinearArgs& args, const In* x) {
    args.rows <= 4 ? strips<Kind, 4>(args, x) : strips<Kind, 2>(args, x);
  }
};

}  // namespace

#endif
