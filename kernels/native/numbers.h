// Number types of the CPU kernels, and what they share.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__AVX512BF16__) && defined(__AVX512VL__) && defined(__AVX512BW__)
#include <immintrin.h>
#define HAVE_BF16_UNITS 1
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define HAVE_AVX2_ALONE 1
#endif

namespace {

struct bf16 {
  uint16_t bits;
};

inline float widen(float value) { return value; }
inline float widen(bf16 value) {
  uint32_t bits = uint32_t(value.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, 4);
  return wide;
}

inline void narrow(float value, float* out) { *out = value; }
inline void narrow(float value, bf16* out) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  uint32_t quiet_nan = (bits >> 16) | 0x40;
  out->bits = uint16_t((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
}

template <typename T>
inline float rounded(float value) {
  T narrowed;
  narrow(value, &narrowed);
  return widen(narrowed);
}

// A key or value in 8 bits. A row of them has its scale, a float, behind it.
struct int8 {
  int8_t value;
};

inline float widen(int8 value) { return value.value; }

template <typename S>
constexpr int64_t row_size(int64_t head_dim) {
  return sizeof(S) == 1 ? head_dim + int64_t(sizeof(float)) : head_dim;
}
template <typename S>
inline float scale_of(const S* row, int64_t head_dim) {
  float scale = 1;
  if (sizeof(S) == 1) std::memcpy(&scale, row + head_dim, sizeof scale);
  return scale;
}

// e^x to float precision (Cephes' expf); x <= 88, NaN stays NaN.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
  float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  int32_t bits = (int32_t(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, 4);
  return p * power;
}

inline float silu(float x) { return x / (1.0f + exponential(std::min(-x, 87.0f))); }

template <typename T>
inline float sum_of_squares(const T* x, int64_t size) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) sum += widen(x[i]) * widen(x[i]);
  return sum;
}

#ifdef HAVE_BF16_UNITS
// Intel's units for bf16 beside its matrix units take as long for 32 products as for 64 in single
// precision; AMD's do not.
inline bool wide_is_faster() {
  static const bool intel = __builtin_cpu_is("intel");
  return intel;
}

inline __m512bh as_bf16(__m512i value) { return (__m512bh)value; }

// 32 numbers as bf16; 8 bits fit exactly.
inline __m512i load_32(const bf16* from) { return _mm512_loadu_si512(from); }
inline __m512i load_32(const int8* from) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(from);
  __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128(halves));
  __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128(halves + 1));
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
}

// 16 numbers or fewer, those of a mask.
constexpr __mmask16 kAll16 = 0xffff;
inline __m512 widen_16(const bf16* from, __mmask16 some = kAll16) {
  __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
inline void narrow_16(__m512 values, bf16* out, __mmask16 some = kAll16) {
  _mm256_mask_storeu_epi16(out, some, (__m256i)_mm512_cvtneps_pbh(values));
}
inline __m512 rounded_16(__m512 values) {
  __m512i bits = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(values));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
// Of a loop over count numbers, those from i on that are there.
inline __mmask16 left_of(int64_t count, int64_t i) {
  return count - i >= 16 ? kAll16 : __mmask16((1 << (count - i)) - 1);
}

// The even and the odd ones of 32 numbers in bf16, as floats.
inline __m512 even_floats(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline __m512 odd_floats(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff0000)));
}

// Transposes 16 x 16 elements of 32 bits (pairs of bf16); a is used up.
__attribute__((always_inline)) inline void transpose(__m512i* a, __m512i* out) {
  __m512i b[16];
  for (int i = 0; i < 8; ++i) {
    b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    a[4 * i] = _mm512_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
    a[4 * i + 1] = _mm512_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
    a[4 * i + 2] = _mm512_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
    a[4 * i + 3] = _mm512_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x88);
    b[4 + i] = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xdd);
    b[8 + i] = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x88);
    b[12 + i] = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm512_shuffle_i32x4(b[i], b[8 + i], 0x88);
    out[8 + i] = _mm512_shuffle_i32x4(b[i], b[8 + i], 0xdd);
    out[4 + i] = _mm512_shuffle_i32x4(b[4 + i], b[12 + i], 0x88);
    out[12 + i] = _mm512_shuffle_i32x4(b[4 + i], b[12 + i], 0xdd);
  }
}
#endif

}  // namespace
