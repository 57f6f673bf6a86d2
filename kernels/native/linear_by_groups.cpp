// Products by the units for bf16 with codes, which 16 bits hold exactly: of each group of inputs the
// codes are summed up, and the sum is multiplied by the group's scale. No weight is rounded.
//
// Few rows take the codes as they lie. For many rows those of a strip are laid out first as weights
// of 16 bits lie (linear.h), in a thread's own memory; the sums are the same, bit for bit.
//
// For processors that do one of these products in the time of one in single precision
// (wide_is_faster() is false).

#include "linear_avx512.h"

#ifdef HAVE_BF16_UNITS

namespace {

// Of 16 outputs' weights of a group: its scales, and what turns codes into numbers.
struct GroupLaw {
  __m512 scale;
  __m512i zero;
};

struct FloatScales {
  static GroupLaw law(const LinearArgs& args, int64_t group) {
    return {_mm512_loadu_ps(args.scales + group * kTile), _mm512_setzero_si512()};
  }
};

// Powers of two, kept as the exponent that a float has; 0 is half of what 1 is.
struct ExponentScales {
  static GroupLaw law(const LinearArgs& args, int64_t group) {
    auto from = reinterpret_cast<const __m128i*>(args.scales) + group;
    __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(from)), 23);
    bits = _mm512_max_epu32(bits, _mm512_set1_epi32(1 << 22));
    return {_mm512_castsi512_ps(bits), _mm512_setzero_si512()};
  }
};

inline __m512i zeros_of(const LinearArgs& args, int64_t group) {
  auto from = reinterpret_cast<const __m128i*>(args.zeros + group * kTile);
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(from));
}

// Of numbers that 16 bits hold.
inline __m512i exactly_side_by_side(__m512 even, __m512 odd) {
  __m512i upper = _mm512_and_si512(_mm512_castps_si512(odd), _mm512_set1_epi32(0xffff0000));
  return _mm512_or_si512(upper, _mm512_srli_epi32(_mm512_castps_si512(even), 16));
}

template <int kFirst>
inline __m512i table_of_integers() {
  alignas(64) uint16_t values[32];
  for (int i = 0; i < 32; ++i) {
    bf16 value;
    narrow(float(kFirst == -16 ? i + kFirst : i % 16 + kFirst), &value);
    values[i] = value.bits;
  }
  return _mm512_load_si512(values);
}

struct Nibbles16 {
  static constexpr int kBits = 4, kPairs = 4, kFewRows = 6, kAtOnce = 6;
  __m512i packed;
  Nibbles16(const LinearArgs& args, int64_t tile, int64_t pair)
      : packed(_mm512_loadu_si512(static_cast<const char*>(args.weights) +
                                  (tile * args.inputs / 8 + pair / 4) * 64)) {}
  __m512i lanes(int j) const { return _mm512_srl_epi16(packed, _mm_cvtsi32_si128(4 * j)); }
};

// Our own, less 8. The table repeats after 16, so the bits above a nibble do not matter.
struct MiddleInt4 : Nibbles16 {
  using Nibbles16::Nibbles16;
  using Scales = FloatScales;
  static __m512i table() { return table_of_integers<-8>(); }
  static GroupLaw law(const LinearArgs& args, int64_t group) { return Scales::law(args, group); }
  __m512i pair(int j, const GroupLaw&, __m512i table) const {
    return _mm512_permutexvar_epi16(lanes(j), table);
  }
};

// Zero points are 0 to 16, so a code less its zero point is an integer from -16 on.
struct ZeroInt4 : Nibbles16 {
  using Nibbles16::Nibbles16;
  using Scales = FloatScales;
  static __m512i table() { return table_of_integers<-16>(); }
  static GroupLaw law(const LinearArgs& args, int64_t group) {
    GroupLaw law = Scales::law(args, group);
    __m512i first = _mm512_sub_epi32(_mm512_set1_epi32(16), zeros_of(args, group));
    law.zero = _mm512_or_si512(first, _mm512_slli_epi32(first, 16));
    return law;
  }
  __m512i pair(int j, const GroupLaw& law, __m512i table) const {
    __m512i code = _mm512_and_si512(lanes(j), _mm512_set1_epi16(15));
    return _mm512_permutexvar_epi16(_mm512_add_epi16(code, law.zero), table);
  }
};

struct Float4 : Nibbles16 {
  using Nibbles16::Nibbles16;
  static __m512i table() {
    const float sizes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    alignas(64) uint16_t values[32];
    for (int i = 0; i < 32; ++i) {
      bf16 value;
      narrow(i % 16 < 8 ? sizes[i % 8] : -sizes[i % 8], &value);
      values[i] = value.bits;
    }
    return _mm512_load_si512(values);
  }
  using Scales = ExponentScales;
  static GroupLaw law(const LinearArgs& args, int64_t group) { return Scales::law(args, group); }
  __m512i pair(int j, const GroupLaw&, __m512i table) const {
    return _mm512_permutexvar_epi16(lanes(j), table);
  }
};

struct Bytes16 {
  static constexpr int kBits = 8, kPairs = 1, kFewRows = 24, kAtOnce = 8;
  __m256i both;  // 16 outputs' codes of an input, and of the next
  Bytes16(const LinearArgs& args, int64_t tile, int64_t pair)
      : both(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(
            static_cast<const char*>(args.weights) + (tile * args.inputs + 2 * pair) * kTile))) {}
  static __m512i table() { return _mm512_setzero_si512(); }
};

struct ZeroInt8 : Bytes16 {
  using Bytes16::Bytes16;
  using Scales = FloatScales;
  static GroupLaw law(const LinearArgs& args, int64_t group) {
    GroupLaw law = Scales::law(args, group);
    if (args.zeros) law.zero = zeros_of(args, group);
    return law;
  }
  __m512i pair(int, const GroupLaw& law, __m512i) const {
    return exactly_side_by_side(number(_mm256_castsi256_si128(both), law),
                                number(_mm256_extracti128_si256(both, 1), law));
  }
  static __m512 number(__m128i codes, const GroupLaw& law) {
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_cvtepi8_epi32(codes), law.zero));
  }
};

// The exponent of a bfloat16 is larger by 120 for the same number. The smallest numbers, multiples of
// 2^-9, have no hidden bit here and one there.
struct Float8 : Bytes16 {
  using Bytes16::Bytes16;
  using Scales = FloatScales;
  static __m512i table() {
    alignas(64) uint16_t values[32] = {};
    for (int i = 0; i < 8; ++i) {
      bf16 value;
      narrow(float(i) / 512, &value);
      values[i] = value.bits;
    }
    return _mm512_load_si512(values);
  }
  static GroupLaw law(const LinearArgs& args, int64_t group) { return Scales::law(args, group); }
  __m512i pair(int, const GroupLaw&, __m512i table) const {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512i codes = _mm512_permutexvar_epi16(order, _mm512_cvtepi8_epi16(both));
    __m512i size = _mm512_and_si512(codes, _mm512_set1_epi16(127));
    __mmask32 smallest = _mm512_cmplt_epu16_mask(size, _mm512_set1_epi16(8));
    __m512i number = _mm512_add_epi16(_mm512_slli_epi16(size, 4), _mm512_set1_epi16(120 << 7));
    number = _mm512_mask_permutexvar_epi16(number, smallest, size, table);
    return _mm512_or_si512(number, _mm512_and_si512(codes, _mm512_set1_epi16(int16_t(0x8000))));
  }
};

// Codes of a strip that were laid out in 16 bits; their scales stay where they are.
template <typename Scales>
struct LaidOut {
  static constexpr int kPairs = 1;
  __m512i weights;
  LaidOut(const LinearArgs& args, int64_t tile, int64_t pair)
      : weights(_mm512_load_si512(static_cast<const char*>(args.weights) +
                                  (tile * args.inputs / 2 + pair) * 64)) {}
  static __m512i table() { return _mm512_setzero_si512(); }
  static GroupLaw law(const LinearArgs& args, int64_t group) { return Scales::law(args, group); }
  __m512i pair(int, const GroupLaw&, __m512i) const { return weights; }
};

template <typename Codes, int kRows, int kTiles>
void sum_by_groups(const LinearArgs& args, const int32_t* x, int64_t tile, int64_t row) {
  int64_t groups = groups_of(args), pairs = args.inputs / 2;
  const int32_t* from = x + row * pairs;
  const __m512i table = Codes::table();
  __m512 totals[kTiles][kRows];
  for (int t = 0; t < kTiles; ++t)
    for (int r = 0; r < kRows; ++r) totals[t][r] = _mm512_setzero_ps();
  for (int64_t g = 0; g < groups; ++g) {
    GroupLaw laws[kTiles];
    __m512 sums[kTiles][kRows];
    for (int t = 0; t < kTiles; ++t) {
      laws[t] = Codes::law(args, (tile + t) * groups + g);
      for (int r = 0; r < kRows; ++r) sums[t][r] = _mm512_setzero_ps();
    }
    int64_t end = std::min(pairs, (g + 1) * args.group / 2);
    for (int64_t p = g * args.group / 2; p < end; p += Codes::kPairs)
      for (int t = 0; t < kTiles; ++t) {
        Codes codes(args, tile + t, p);
#pragma GCC unroll 4
        for (int j = 0; j < Codes::kPairs; ++j) {
          __m512bh weight = as_bf16(codes.pair(j, laws[t], table));
          for (int r = 0; r < kRows; ++r) {
            __m512i input = _mm512_set1_epi32(from[r * pairs + p + j]);
            sums[t][r] = _mm512_dpbf16_ps(sums[t][r], weight, as_bf16(input));
          }
        }
      }
    for (int t = 0; t < kTiles; ++t)
      for (int r = 0; r < kRows; ++r)
        totals[t][r] = _mm512_fmadd_ps(sums[t][r], laws[t].scale, totals[t][r]);
  }
  for (int t = 0; t < kTiles; ++t)
    for (int r = 0; r < kRows; ++r) store(args, tile + t, row + r, totals[t][r]);
}

// Nothing is asked for ahead: a strip is in the cache.
template <typename Scales>
struct LaidOutRows : Rows512<LaidOutRows<Scales>, int32_t, 8> {
  static constexpr int kBits = 0;
  template <int kRows, int kTiles>
  static void tiles(const LinearArgs& args, const int32_t* x, int64_t tile, int64_t row) {
    sum_by_groups<LaidOut<Scales>, kRows, kTiles>(args, x, tile, row);
  }
};

// More than kFewRows rows are worth the laying out; of few rows kAtOnce are summed up together.
template <typename Codes>
struct ByGroups : Rows512<ByGroups<Codes>, int32_t, Codes::kAtOnce> {
  static constexpr int kBits = Codes::kBits;
  using Few = Rows512<ByGroups, int32_t, Codes::kAtOnce>;

  template <int kRows, int kTiles>
  static void tiles(const LinearArgs& args, const int32_t* x, int64_t tile, int64_t row) {
    sum_by_groups<Codes, kRows, kTiles>(args, x, tile, row);
  }

  static void multiply(const LinearArgs& args) {
    const int32_t* x = static_cast<const int32_t*>(args.x);
    if (args.rows <= Codes::kFewRows) return Few::multiply(args, x);
    int64_t tiles = (args.outputs + kTile - 1) / kTile;
    team::each((tiles + 1) / 2, [&](int64_t strip) {
      2 * strip + 1 < tiles ? laid_out<2>(args, x, 2 * strip) : laid_out<1>(args, x, 2 * strip);
    });
  }

  template <int kTiles>
  static void laid_out(const LinearArgs& args, const int32_t* x, int64_t tile) {
    static thread_local Room room;
    int64_t groups = groups_of(args), pairs = args.inputs / 2;
    char* to = room.of(kTiles * pairs * 64);
    LinearArgs strip = args;
    strip.weights = to - tile * pairs * 64;  // where the first tile of all would be
    const __m512i table = Codes::table();
    for (int64_t t = tile; t < tile + kTiles; ++t)
      for (int64_t g = 0; g < groups; ++g) {
        GroupLaw law = Codes::law(args, t * groups + g);
        int64_t end = std::min(pairs, (g + 1) * args.group / 2);
        for (int64_t p = g * args.group / 2; p < end; p += Codes::kPairs) {
          Codes codes(args, t, p);
#pragma GCC unroll 4
          for (int j = 0; j < Codes::kPairs; ++j, to += 64)
            _mm512_store_si512(to, codes.pair(j, law, table));
        }
      }
    rows_of<LaidOutRows<typename Codes::Scales>, kTiles>(strip, x, tile);
  }
};

}  // namespace

extern "C" {

void keepwarm_by_groups_4(const LinearArgs* args) { ByGroups<MiddleInt4>::multiply(*args); }
void keepwarm_by_groups_int4(const LinearArgs* args) { ByGroups<ZeroInt4>::multiply(*args); }
void keepwarm_by_groups_int8(const LinearArgs* args) { ByGroups<ZeroInt8>::multiply(*args); }
void keepwarm_by_groups_e2m1(const LinearArgs* args) { ByGroups<Float4>::multiply(*args); }
void keepwarm_by_groups_e4m3(const LinearArgs* args) { ByGroups<Float8>::multiply(*args); }
}

#endif
