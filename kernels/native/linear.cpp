// Products of few rows with weights of 16, 8 or 4 bits: reading the weights at the speed of
// the memory is all that counts. Specification: kernels/quant_matmul.py.
//
// For processors with AVX-512 and units for bf16; linear_avx2.cpp is for others.

#include "linear_avx512.h"
#include "matrix_unit.h"

#ifdef HAVE_BF16_UNITS

namespace {

// Bytes between asking for weights and reading them. With the work of more than four rows between
// two lines the processor by itself looks too few lines ahead; with less it does not.
constexpr int64_t kAhead = 3072;

// 16 bits.
template <int kRows, int kTiles>
void bf16_tiles(const LinearArgs& args, const int32_t* x, int64_t tile, int64_t row) {
  int64_t pairs = args.inputs / 2;
  const char* weights = static_cast<const char*>(args.weights) + tile * pairs * 64;
  __m512 sums[kTiles][kRows];
  for (int t = 0; t < kTiles; ++t)
    for (int r = 0; r < kRows; ++r) sums[t][r] = _mm512_setzero_ps();
  for (int64_t p = 0; p < pairs; ++p)
    for (int t = 0; t < kTiles; ++t) {
      const char* at = weights + (t * pairs + p) * 64;
      if constexpr (kRows > 4) _mm_prefetch(at + kAhead, _MM_HINT_T0);
      __m512bh weight = as_bf16(_mm512_loadu_si512(at));
      for (int r = 0; r < kRows; ++r) {
        __m512i pair = _mm512_set1_epi32(x[(row + r) * pairs + p]);
        sums[t][r] = _mm512_dpbf16_ps(sums[t][r], weight, as_bf16(pair));
      }
    }
  for (int t = 0; t < kTiles; ++t)
    for (int r = 0; r < kRows; ++r) store(args, tile + t, row + r, sums[t][r]);
}

// The same in single precision: two multiply-adds where the units for bf16 need one, on processors
// that do four of them in the time of one of those. Products are exact either way.
template <int kRows, int kTiles>
void bf16_tiles_wide(const LinearArgs& args, const float* x, int64_t tile, int64_t row) {
  int64_t pairs = args.inputs / 2;
  const char* weights = static_cast<const char*>(args.weights) + tile * pairs * 64;
  const float* from = x + row * args.inputs;
  __m512 sums[kTiles][kRows];
  for (int t = 0; t < kTiles; ++t)
    for (int r = 0; r < kRows; ++r) sums[t][r] = _mm512_setzero_ps();
  for (int64_t p = 0; p < pairs; ++p) {
    __m512 even[kTiles], odd[kTiles];
    for (int t = 0; t < kTiles; ++t) {
      __m512i both = _mm512_loadu_si512(weights + (t * pairs + p) * 64);
      even[t] = even_floats(both);
      odd[t] = odd_floats(both);
    }
    for (int r = 0; r < kRows; ++r) {
      __m512 first = _mm512_set1_ps(from[r * args.inputs + 2 * p]);
      for (int t = 0; t < kTiles; ++t) sums[t][r] = _mm512_fmadd_ps(even[t], first, sums[t][r]);
    }
    for (int r = 0; r < kRows; ++r) {
      __m512 second = _mm512_set1_ps(from[r * args.inputs + 2 * p + 1]);
      for (int t = 0; t < kTiles; ++t) sums[t][r] = _mm512_fmadd_ps(odd[t], second, sums[t][r]);
    }
  }
  for (int t = 0; t < kTiles; ++t)
    for (int r = 0; r < kRows; ++r) store(args, tile + t, row + r, sums[t][r]);
}

// 8 bits.
template <int kRows, int kTiles>
void int8_tiles(const LinearArgs& args, const float* x, int64_t tile, int64_t row) {
  const int8_t* weights = static_cast<const int8_t*>(args.weights) + tile * args.inputs * kTile;
  __m512 sums[kTiles][kRows];
  for (int t = 0; t < kTiles; ++t)
    for (int r = 0; r < kRows; ++r) sums[t][r] = _mm512_setzero_ps();
  for (int64_t k = 0; k < args.inputs; ++k)
    for (int t = 0; t < kTiles; ++t) {
      const int8_t* from = weights + (t * args.inputs + k) * kTile;
      __m128i narrow_weights = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      __m512 weight = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(narrow_weights));
      for (int r = 0; r < kRows; ++r) {
        __m512 input = _mm512_set1_ps(x[(row + r) * args.inputs + k]);
        sums[t][r] = _mm512_fmadd_ps(weight, input, sums[t][r]);
      }
    }
  for (int t = 0; t < kTiles; ++t) {
    __m512 scale = _mm512_loadu_ps(args.scales + (tile + t) * kTile);
    for (int r = 0; r < kRows; ++r)
      store(args, tile + t, row + r, _mm512_mul_ps(sums[t][r], scale));
  }
}

// 4 bits.
template <int kRows, int kTiles>
void int4_tiles(const LinearArgs& args, const float* x, int64_t tile, int64_t row) {
  alignas(64) float table_values[16];
  for (int i = 0; i < 16; ++i) table_values[i] = float(i - 8);
  __m512 table = _mm512_load_ps(table_values);
  int64_t eights = args.inputs / 8, groups = args.inputs / args.group;
  const char* weights = static_cast<const char*>(args.weights) + tile * eights * 64;
  const float* from = x + row * args.inputs;
  __m512 sums[kTiles][kRows];
  for (int t = 0; t < kTiles; ++t)
    for (int r = 0; r < kRows; ++r) sums[t][r] = _mm512_setzero_ps();
  for (int64_t k = 0; k < eights; ++k) {
    __m512 scales[kTiles];
    __m512i packed[kTiles];
    for (int t = 0; t < kTiles; ++t) {
      const float* scale = args.scales + ((tile + t) * groups + 8 * k / args.group) * kTile;
      scales[t] = _mm512_loadu_ps(scale);
      packed[t] = _mm512_loadu_si512(weights + (t * eights + k) * 64);
    }
    for (int i = 0; i < 8; ++i) {
      __m512 weight[kTiles];
      for (int t = 0; t < kTiles; ++t) {
        __m512i index = _mm512_srli_epi32(packed[t], i % 2 * 16 + i / 2 * 4);
        weight[t] = _mm512_permutexvar_ps(index, table);
        weight[t] = _mm512_mul_ps(weight[t], scales[t]);
      }
      for (int r = 0; r < kRows; ++r) {
        __m512 input = _mm512_set1_ps(from[r * args.inputs + 8 * k + i]);
        for (int t = 0; t < kTiles; ++t) sums[t][r] = _mm512_fmadd_ps(weight[t], input, sums[t][r]);
      }
    }
  }
  for (int t = 0; t < kTiles; ++t)
    for (int r = 0; r < kRows; ++r) store(args, tile + t, row + r, sums[t][r]);
}

struct Bf16 : Rows512<Bf16, int32_t, 8> {
  static constexpr int kBits = 16;
  template <int kRows, int kTiles>
  static void tiles(const LinearArgs& args, const int32_t* x, int64_t tile, int64_t row) {
    bf16_tiles<kRows, kTiles>(args, x, tile, row);
  }
  // The 16 outputs' weights of inputs 2 pair and 2 pair + 1, side by side.
  static __m512i pair(const LinearArgs& args, int64_t tile, int64_t pair) {
    const char* weights = static_cast<const char*>(args.weights);
    return _mm512_loadu_si512(weights + (tile * args.inputs / 2 + pair) * 64);
  }
};

struct WideBf16 : Rows512<WideBf16, float, 12> {
  static constexpr int kBits = 16;
  template <int kRows, int kTiles>
  static void tiles(const LinearArgs& args, const float* x, int64_t tile, int64_t row) {
    bf16_tiles_wide<kRows, kTiles>(args, x, tile, row);
  }
};

struct Int8 : Rows512<Int8, float, 12> {
  static constexpr int kBits = 8;
  static __m512i pair(const LinearArgs& args, int64_t tile, int64_t pair) {
    const int8_t* from =
        static_cast<const int8_t*>(args.weights) + (tile * args.inputs + 2 * pair) * kTile;
    __m512 scale = _mm512_loadu_ps(args.scales + tile * kTile);
    __m512i both = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    __m512i first = _mm512_cvtepi16_epi32(_mm512_castsi512_si256(both));
    __m512i second = _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(both, 1));
    return side_by_side(_mm512_mul_ps(_mm512_cvtepi32_ps(first), scale),
                        _mm512_mul_ps(_mm512_cvtepi32_ps(second), scale));
  }
  template <int kRows, int kTiles>
  static void tiles(const LinearArgs& args, const float* x, int64_t tile, int64_t row) {
    int8_tiles<kRows, kTiles>(args, x, tile, row);
  }
};

struct Int4 : Rows512<Int4, float, 12> {
  static constexpr int kBits = 4;
  static __m512i pair(const LinearArgs& args, int64_t tile, int64_t pair) {
    int64_t eights = args.inputs / 8, groups = args.inputs / args.group;
    const char* from =
        static_cast<const char*>(args.weights) + (tile * eights + pair / 4) * 64;
    const float* scales = args.scales + (tile * groups + 2 * pair / args.group) * kTile;
    __m512i lanes = _mm512_srl_epi16(_mm512_loadu_si512(from), _mm_cvtsi32_si128(4 * (pair % 4)));
    __m512i low = _mm512_and_si512(lanes, _mm512_set1_epi32(15));
    __m512i high = _mm512_and_si512(_mm512_srli_epi32(lanes, 16), _mm512_set1_epi32(15));
    __m512 scale = _mm512_loadu_ps(scales), eight = _mm512_set1_ps(8.0f);
    return side_by_side(_mm512_mul_ps(_mm512_sub_ps(_mm512_cvtepi32_ps(low), eight), scale),
                        _mm512_mul_ps(_mm512_sub_ps(_mm512_cvtepi32_ps(high), eight), scale));
  }
  template <int kRows, int kTiles>
  static void tiles(const LinearArgs& args, const float* x, int64_t tile, int64_t row) {
    int4_tiles<kRows, kTiles>(args, x, tile, row);
  }
};

// The whole matrix in bf16, [outputs, inputs], to args.output. inputs is a multiple of 32.
template <typename Kind>
void widen_all(const LinearArgs& args) {
  int64_t tiles = (args.outputs + kTile - 1) / kTile;
  team::each(tiles, [&](int64_t tile) {
    int64_t count = std::min(kTile, args.outputs - tile * kTile);
    bf16* out = static_cast<bf16*>(args.output) + tile * kTile * args.inputs;
    for (int64_t k = 0; k < args.inputs; k += 32) {
      __m512i pairs[16], rows[16];
      for (int64_t p = 0; p < 16; ++p) pairs[p] = Kind::pair(args, tile, k / 2 + p);
      transpose(pairs, rows);
      for (int64_t i = 0; i < count; ++i)
        _mm512_storeu_si512(out + i * args.inputs + k, rows[i]);
    }
  });
}

// The same in tiles of 16 bits, as a matrix unit takes them.
template <typename Kind>
void to_tiles(const LinearArgs& args) {
  team::each((args.outputs + kTile - 1) / kTile, [&](int64_t tile) {
    __m512i* out = static_cast<__m512i*>(args.output) + tile * args.inputs / 2;
    for (int64_t p = 0; p < args.inputs / 2; ++p)
      _mm512_storeu_si512(out + p, Kind::pair(args, tile, p));
  });
}

// Row-major bf16 to tiles of pairs; rows past the last output are zero.
void pack_bf16(const PackArgs& args) {
  const bf16* weight = static_cast<const bf16*>(args.weight);
  __m512i* tiles = static_cast<__m512i*>(args.tiles);
  int64_t pairs = args.inputs / 2;
  team::each((args.outputs + kTile - 1) / kTile, [&](int64_t tile) {
    for (int64_t k = 0; k < args.inputs; k += 32) {
      __m512i rows[16], turned[16];
      for (int64_t i = 0; i < kTile; ++i) {
        int64_t output = tile * kTile + i;
        rows[i] = output < args.outputs ? _mm512_loadu_si512(weight + output * args.inputs + k)
                                        : _mm512_setzero_si512();
      }
      transpose(rows, turned);
      for (int64_t p = 0; p < 16; ++p) _mm512_storeu_si512(tiles + tile * pairs + k / 2 + p, turned[p]);
    }
  });
}

}  // namespace

extern "C" {

int keepwarm_has_linear() { return 1; }

void keepwarm_pack_16(const PackArgs* args) { pack_bf16(*args); }
void keepwarm_pack_8(const PackArgs* args) { pack_quantised<8>(*args); }
void keepwarm_pack_4(const PackArgs* args) { pack_quantised<4>(*args); }

void keepwarm_widen_16(const LinearArgs* args) { widen_all<Bf16>(*args); }
void keepwarm_widen_8(const LinearArgs* args) { widen_all<Int8>(*args); }
void keepwarm_widen_4(const LinearArgs* args) { widen_all<Int4>(*args); }

// Only where keepwarm_has_matrix_unit() holds.
void keepwarm_tiles_8(const LinearArgs* args) { to_tiles<Int8>(*args); }
void keepwarm_tiles_4(const LinearArgs* args) { to_tiles<Int4>(*args); }

void keepwarm_linear_16(const LinearArgs* args) {
  if (keepwarm_has_matrix_unit()) return keepwarm_linear_matrix(args);
  wide_is_faster() ? multiply_wide<WideBf16>(*args)
                   : Bf16::multiply(*args, static_cast<const int32_t*>(args->x));
}
void keepwarm_linear_8(const LinearArgs* args) {
  if (wide_is_faster()) return multiply_wide<Int8>(*args);
  LinearArgs whole = *args;
  whole.group = args->inputs;
  keepwarm_by_groups_int8(&whole);
}
void keepwarm_linear_4(const LinearArgs* args) {
  wide_is_faster() ? multiply_wide<Int4>(*args) : keepwarm_by_groups_4(args);
}
}

#endif
