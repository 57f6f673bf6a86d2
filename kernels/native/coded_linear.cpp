// Products with weights as checkpoints hold them: codes, a scale for each output of a group of
// inputs, and zero points. Specification: kernels/coded_matrix.py.
//
// Tiles are those of linear.h: 4-bit codes lie as its 4 bits do, here not less 8, and 8-bit ones as
// its 8 bits. Scales and zero points are [tiles][groups][16]; a group is a multiple of 32 inputs, or
// all of them, and the last may be shorter.
//
// A weight is widened to single precision, where it is what the checkpoint says, and multiplied
// there, or by the units for bf16 (linear_by_groups.cpp). For processors with AVX-512;
// coded_linear_avx2.cpp is for others.

#include "linear_avx512.h"

#ifdef HAVE_BF16_UNITS

namespace {

struct Law {
  __m512 scale, zero;
};

inline Law law_of(const LinearArgs& args, int64_t group) {
  Law law = {_mm512_loadu_ps(args.scales + group * kTile), _mm512_setzero_ps()};
  if (args.zeros) {
    auto from = reinterpret_cast<const __m128i*>(args.zeros + group * kTile);
    law.zero = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from)));
  }
  return law;
}

// Eight inputs of 4 bits.
struct Nibbles {
  static constexpr int kTogether = 8;
  __m512i packed;
  Nibbles(const LinearArgs& args, int64_t tile, int64_t k)
      : packed(_mm512_loadu_si512(static_cast<const char*>(args.weights) +
                                  (tile * args.inputs + k) * 8)) {}
  // The register repeats after 16, so the bits above the nibble do not matter.
  __m512 looked_up(int i, __m512 table) const {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(packed, i % 2 * 16 + i / 2 * 4), table);
  }
};

struct Int4 : Nibbles {
  static constexpr int kBits = 4;
  using Nibbles::Nibbles;
  static Law law(const LinearArgs& args, int64_t group) { return law_of(args, group); }
  __m512 weight(int i, const Law& law) const {
    __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mul_ps(_mm512_sub_ps(looked_up(i, table), law.zero), law.scale);
  }
};

// Scales are powers of two, kept as the exponent that a float has; 0 is half of what 1 is.
struct E2m1 : Nibbles {
  static constexpr int kBits = 4;
  using Nibbles::Nibbles;
  static Law law(const LinearArgs& args, int64_t group) {
    auto from = reinterpret_cast<const __m128i*>(args.scales) + group;
    __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(from)), 23);
    bits = _mm512_max_epu32(bits, _mm512_set1_epi32(1 << 22));
    return {_mm512_castsi512_ps(bits), _mm512_setzero_ps()};
  }
  __m512 weight(int i, const Law& law) const {
    __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f,
                                  -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    return _mm512_mul_ps(looked_up(i, table), law.scale);
  }
};

inline __m256i two_inputs(const LinearArgs& args, int64_t tile, int64_t k) {
  auto from = static_cast<const char*>(args.weights) + (tile * args.inputs + k) * kTile;
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

struct Int8 {
  static constexpr int kBits = 8, kTogether = 2;
  __m256i both;
  Int8(const LinearArgs& args, int64_t tile, int64_t k) : both(two_inputs(args, tile, k)) {}
  static Law law(const LinearArgs& args, int64_t group) { return law_of(args, group); }
  __m512 weight(int i, const Law& law) const {
    __m128i own = i ? _mm256_extracti128_si256(both, 1) : _mm256_castsi256_si128(both);
    __m512 code = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(own));
    return _mm512_mul_ps(_mm512_sub_ps(code, law.zero), law.scale);
  }
};

// As a half, whose exponent is larger by 8 for the same number.
struct E4m3 {
  static constexpr int kBits = 8, kTogether = 2;
  __m512i halves;
  E4m3(const LinearArgs& args, int64_t tile, int64_t k) {
    __m512i words = _mm512_slli_epi16(_mm512_cvtepi8_epi16(two_inputs(args, tile, k)), 7);
    halves = _mm512_and_si512(words, _mm512_set1_epi16(int16_t(0xbfff)));
  }
  static Law law(const LinearArgs& args, int64_t group) {
    __m512 scale = _mm512_loadu_ps(args.scales + group * kTile);
    return {_mm512_mul_ps(scale, _mm512_set1_ps(256.0f)), _mm512_setzero_ps()};
  }
  __m512 weight(int i, const Law& law) const {
    __m256i own = i ? _mm512_extracti64x4_epi64(halves, 1) : _mm512_castsi512_si256(halves);
    return _mm512_mul_ps(_mm512_cvtph_ps(own), law.scale);
  }
};

template <typename Codes>
struct Coded : Rows512<Coded<Codes>, float, 12> {
  static constexpr int kBits = Codes::kBits;

  template <int kRows, int kTiles>
  static void tiles(const LinearArgs& args, const float* x, int64_t tile, int64_t row) {
    int64_t groups = groups_of(args);
    const float* from = x + row * args.inputs;
    __m512 sums[kTiles][kRows];
    for (int t = 0; t < kTiles; ++t)
      for (int r = 0; r < kRows; ++r) sums[t][r] = _mm512_setzero_ps();
    for (int64_t g = 0; g < groups; ++g) {
      Law laws[kTiles];
      for (int t = 0; t < kTiles; ++t) laws[t] = Codes::law(args, (tile + t) * groups + g);
      int64_t end = std::min(args.inputs, (g + 1) * args.group);
      for (int64_t k = g * args.group; k < end; k += Codes::kTogether) add<kRows, kTiles>(args, from, tile, k, laws, sums);
    }
    for (int t = 0; t < kTiles; ++t)
      for (int r = 0; r < kRows; ++r) store(args, tile + t, row + r, sums[t][r]);
  }

  template <int kRows, int kTiles>
  [[gnu::always_inline]] static inline void add(const LinearArgs& args, const float* from, int64_t tile, int64_t k,
                                                const Law (&laws)[kTiles], __m512 (&sums)[kTiles][kRows]) {
    for (int i = 0; i < Codes::kTogether; ++i) {
      __m512 weight[kTiles];
      for (int t = 0; t < kTiles; ++t) weight[t] = Codes(args, tile + t, k).weight(i, laws[t]);
      for (int r = 0; r < kRows; ++r) {
        __m512 input = _mm512_set1_ps(from[r * args.inputs + k + i]);
        for (int t = 0; t < kTiles; ++t) sums[t][r] = _mm512_fmadd_ps(weight[t], input, sums[t][r]);
      }
    }
  }

  // The weights of 32 inputs from k on, by pairs of inputs.
  static void pairs(const LinearArgs& args, int64_t tile, int64_t k, __m512i* pairs) {
    Law law = Codes::law(args, tile * groups_of(args) + k / args.group);
    for (int64_t at = 0; at < 32; at += Codes::kTogether) {
      Codes codes(args, tile, k + at);
      for (int i = 0; i < Codes::kTogether; i += 2)
        pairs[(at + i) / 2] = side_by_side(codes.weight(i, law), codes.weight(i + 1, law));
    }
  }
};

// The whole matrix in bf16, [outputs, inputs], to args.output.
template <typename Codes>
void widen_codes(const LinearArgs& args) {
  team::each((args.outputs + kTile - 1) / kTile, [&](int64_t tile) {
    int64_t count = std::min(kTile, args.outputs - tile * kTile);
    bf16* out = static_cast<bf16*>(args.output) + tile * kTile * args.inputs;
    for (int64_t k = 0; k < args.inputs; k += 32) {
      __m512i pairs[16], rows[16];
      Coded<Codes>::pairs(args, tile, k, pairs);
      transpose(pairs, rows);
      for (int64_t i = 0; i < count; ++i) _mm512_storeu_si512(out + i * args.inputs + k, rows[i]);
    }
  });
}

// The same in tiles of 16 bits (linear.h), as a matrix unit takes them.
template <typename Codes>
void codes_to_tiles(const LinearArgs& args) {
  team::each((args.outputs + kTile - 1) / kTile, [&](int64_t tile) {
    __m512i* out = static_cast<__m512i*>(args.output) + tile * args.inputs / 2;
    for (int64_t k = 0; k < args.inputs; k += 32) {
      __m512i pairs[16];
      Coded<Codes>::pairs(args, tile, k, pairs);
      for (int64_t p = 0; p < 16; ++p) _mm512_storeu_si512(out + k / 2 + p, pairs[p]);
    }
  });
}

}  // namespace

extern "C" {

void keepwarm_linear_int4(const LinearArgs* args) {
  wide_is_faster() ? multiply_wide<Coded<Int4>>(*args) : keepwarm_by_groups_int4(args);
}
void keepwarm_linear_int8(const LinearArgs* args) {
  wide_is_faster() ? multiply_wide<Coded<Int8>>(*args) : keepwarm_by_groups_int8(args);
}
void keepwarm_linear_e2m1(const LinearArgs* args) {
  wide_is_faster() ? multiply_wide<Coded<E2m1>>(*args) : keepwarm_by_groups_e2m1(args);
}
void keepwarm_linear_e4m3(const LinearArgs* args) {
  wide_is_faster() ? multiply_wide<Coded<E4m3>>(*args) : keepwarm_by_groups_e4m3(args);
}

void keepwarm_widen_int4(const LinearArgs* args) { widen_codes<Int4>(*args); }
void keepwarm_widen_int8(const LinearArgs* args) { widen_codes<Int8>(*args); }
void keepwarm_widen_e2m1(const LinearArgs* args) { widen_codes<E2m1>(*args); }
void keepwarm_widen_e4m3(const LinearArgs* args) { widen_codes<E4m3>(*args); }

void keepwarm_tiles_int4(const LinearArgs* args) { codes_to_tiles<Int4>(*args); }
void keepwarm_tiles_int8(const LinearArgs* args) { codes_to_tiles<Int8>(*args); }
void keepwarm_tiles_e2m1(const LinearArgs* args) { codes_to_tiles<E2m1>(*args); }
void keepwarm_tiles_e4m3(const LinearArgs* args) { codes_to_tiles<E4m3>(*args); }
}

#endif
