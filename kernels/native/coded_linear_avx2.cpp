// The same as coded_linear.cpp for processors without AVX-512.

#include "linear_avx2.h"

#ifdef HAVE_AVX2_ALONE

namespace {

inline Lanes eight_bits(const int8_t* from) {
  __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(all, 8)))};
}

inline int64_t group_of(const LinearArgs& args, int64_t tile, int64_t k) {
  return tile * ((args.inputs + args.group - 1) / args.group) + k / args.group;
}

// What codes of a group mean.
struct Law {
  Lanes scale, zero;
  Law(const LinearArgs& args, int64_t group)
      : scale(load(args.scales + group * kTile)),
        zero(args.zeros ? eight_bits(args.zeros + group * kTile) : ::zero()) {}
  Lanes weights(const Lanes& code) const {
    return scaled({_mm256_sub_ps(code.low, zero.low), _mm256_sub_ps(code.high, zero.high)}, scale);
  }
};

struct Nibbles {
  static constexpr int kBits = 4, kTogether = 8, kBytes = 8;
  __m256i low, high;
  Nibbles(const LinearArgs& args, int64_t tile, int64_t k) {
    auto from = reinterpret_cast<const __m256i*>(static_cast<const char*>(args.weights) +
                                                 (tile * args.inputs + k) * 8);
    low = _mm256_loadu_si256(from), high = _mm256_loadu_si256(from + 1);
  }
  static __m256i nibble(__m256i packed, int i) {
    __m256i shifted = _mm256_srli_epi32(packed, i % 2 * 16 + i / 2 * 4);
    return _mm256_and_si256(shifted, _mm256_set1_epi32(15));
  }
  static Lanes finished(const LinearArgs&, int64_t, const Lanes& sum) { return sum; }
};

struct Int4 : Nibbles {
  Law law;
  Int4(const LinearArgs& args, int64_t tile, int64_t k)
      : Nibbles(args, tile, k), law(args, group_of(args, tile, k)) {}
  Lanes weights(int i) const {
    return law.weights({_mm256_cvtepi32_ps(nibble(low, i)), _mm256_cvtepi32_ps(nibble(high, i))});
  }
};

struct E2m1 : Nibbles {
  Lanes scale;
  E2m1(const LinearArgs& args, int64_t tile, int64_t k) : Nibbles(args, tile, k) {
    auto from = reinterpret_cast<const uint8_t*>(args.scales) + group_of(args, tile, k) * kTile;
    __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    scale = {power(_mm256_cvtepu8_epi32(all)), power(_mm256_cvtepu8_epi32(_mm_srli_si128(all, 8)))};
  }
  static __m256 power(__m256i exponent) {
    __m256i bits = _mm256_slli_epi32(exponent, 23);
    return _mm256_castsi256_ps(_mm256_max_epu32(bits, _mm256_set1_epi32(1 << 22)));
  }
  static __m256 value(__m256i code) {
    __m256 sizes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(code, 3), 31);
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(sizes, code), _mm256_castsi256_ps(sign));
  }
  Lanes weights(int i) const {
    return scaled({value(nibble(low, i)), value(nibble(high, i))}, scale);
  }
};

inline const int8_t* one_input(const LinearArgs& args, int64_t tile, int64_t k) {
  return static_cast<const int8_t*>(args.weights) + (tile * args.inputs + k) * kTile;
}

struct Int8 {
  static constexpr int kBits = 8, kTogether = 1, kBytes = 16;
  Lanes wide;
  Int8(const LinearArgs& args, int64_t tile, int64_t k)
      : wide(Law(args, group_of(args, tile, k)).weights(eight_bits(one_input(args, tile, k)))) {}
  Lanes weights(int) const { return wide; }
  static Lanes finished(const LinearArgs&, int64_t, const Lanes& sum) { return sum; }
};

// As a half, whose exponent is larger by 8 for the same number.
struct E4m3 {
  static constexpr int kBits = 8, kTogether = 1, kBytes = 16;
  Lanes wide;
  E4m3(const LinearArgs& args, int64_t tile, int64_t k) {
    auto from = reinterpret_cast<const __m128i*>(one_input(args, tile, k));
    __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(from)), 7);
    words = _mm256_and_si256(words, _mm256_set1_epi16(int16_t(0xbfff)));
    Lanes halves = {_mm256_cvtph_ps(_mm256_castsi256_si128(words)),
                    _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1))};
    __m256 more = _mm256_set1_ps(256.0f);
    Lanes scale = load(args.scales + group_of(args, tile, k) * kTile);
    wide = scaled(halves, scaled(scale, {more, more}));
  }
  Lanes weights(int) const { return wide; }
  static Lanes finished(const LinearArgs&, int64_t, const Lanes& sum) { return sum; }
};

}  // namespace

extern "C" {

void keepwarm_linear_int4(const LinearArgs* args) { multiply_wide<Kind<Int4>>(*args); }
void keepwarm_linear_int8(const LinearArgs* args) { multiply_wide<Kind<Int8>>(*args); }
void keepwarm_linear_e2m1(const LinearArgs* args) { multiply_wide<Kind<E2m1>>(*args); }
void keepwarm_linear_e4m3(const LinearArgs* args) { multiply_wide<Kind<E4m3>>(*args); }

void keepwarm_widen_int4(const LinearArgs* args) { widen_all<Int4>(*args); }
void keepwarm_widen_int8(const LinearArgs* args) { widen_all<Int8>(*args); }
void keepwarm_widen_e2m1(const LinearArgs* args) { widen_all<E2m1>(*args); }
void keepwarm_widen_e4m3(const LinearArgs* args) { widen_all<E4m3>(*args); }
}

#endif
