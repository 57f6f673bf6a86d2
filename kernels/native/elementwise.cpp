// The small operations between matrix products, each in one pass. Specifications: the torch
// references in kernels/norm.py, kernels/activation.py and kernels/qkv.py, whose roundings
// to the number type are done here as well.

#include "elementwise.h"
#include "numbers.h"
#include "team.h"

namespace {

// Below this many elements a second thread costs more than it saves.
constexpr int64_t kWorthThreads = 1 << 15;

template <typename T>
float inverse_rms(const T* x, int64_t size, float eps) {
  return 1.0f / std::sqrt(sum_of_squares(x, size) / float(size) + eps);
}

template <typename T>
void add_rms_norm_row(const T* a, const T* b, const T* weight, T* out, T* sum, int64_t size,
                      float eps) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) narrow(widen(a[i]) + widen(b[i]), sum + i);
  float scale = inverse_rms(sum, size, eps);
#pragma omp simd
  for (int64_t i = 0; i < size; ++i)
    narrow(rounded<T>(widen(sum[i]) * scale) * widen(weight[i]), out + i);
}

constexpr int64_t kPiece = 256;

template <typename T>
void silu_mul_row(const T* gate, const T* up, T* out, int64_t size) {
  for (int64_t from = 0; from < size; from += kPiece) {
    int64_t count = std::min(kPiece, size - from);
    float weights[kPiece];  // in one loop with the rounding, each of its cases divides again
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) weights[i] = silu(widen(gate[from + i]));
#pragma omp simd
    for (int64_t i = 0; i < count; ++i)
      narrow(rounded<T>(weights[i]) * widen(up[from + i]), out + from + i);
  }
}

// A head's queries or keys: normed where there is a weight, then turned.
template <typename T>
void norm_rope_row(const T* x, const T* weight, const T* cosines, const T* sines, T* out,
                   int64_t dim, float eps) {
  int64_t half = dim / 2;
  thread_local std::vector<float> normed;
  normed.resize(dim);
  float scale = weight ? inverse_rms(x, dim, eps) : 1.0f;
  for (int64_t d = 0; d < dim; ++d)
    normed[d] = weight ? rounded<T>(rounded<T>(widen(x[d]) * scale) * widen(weight[d])) : widen(x[d]);
  for (int64_t d = 0; d < half; ++d) {
    float a = normed[d], b = normed[half + d], c = widen(cosines[d]), s = widen(sines[d]);
    narrow(rounded<T>(a * c) - rounded<T>(b * s), out + d);
    narrow(rounded<T>(b * c) + rounded<T>(a * s), out + half + d);
  }
}

#ifdef HAVE_BF16_UNITS

// The same in registers of 16: what the compiler makes of the loops above takes two to four times as
// long.
inline float inverse_rms(__m512 squares, int64_t size, float eps) {
  return 1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / float(size) + eps);
}

inline void add_rms_norm_row(const bf16* a, const bf16* b, const bf16* weight, bf16* out, bf16* sum,
                             int64_t size, float eps) {
  __m512 squares = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += 16) {
    __mmask16 some = left_of(size, i);
    __m512 both = rounded_16(_mm512_add_ps(widen_16(a + i, some), widen_16(b + i, some)));
    narrow_16(both, sum + i, some);
    squares = _mm512_fmadd_ps(both, both, squares);
  }
  __m512 scale = _mm512_set1_ps(inverse_rms(squares, size, eps));
  for (int64_t i = 0; i < size; i += 16) {
    __mmask16 some = left_of(size, i);
    __m512 scaled = rounded_16(_mm512_mul_ps(widen_16(sum + i, some), scale));
    narrow_16(_mm512_mul_ps(scaled, widen_16(weight + i, some)), out + i, some);
  }
}

// See the other ``exponential``; x in [-87, 88].
inline __m512 exponential(__m512 x) {
  __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(p, r), r, r), _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

inline void silu_mul_row(const bf16* gate, const bf16* up, bf16* out, int64_t size) {
  for (int64_t i = 0; i < size; i += 16) {
    __mmask16 some = left_of(size, i);
    __m512 g = widen_16(gate + i, some);
    // The second one of a maximum or a minimum stands where one of them is no number.
    __m512 minus = _mm512_sub_ps(_mm512_setzero_ps(), g);
    minus = _mm512_min_ps(_mm512_set1_ps(87.0f), _mm512_max_ps(_mm512_set1_ps(-87.0f), minus));
    __m512 silu = _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), exponential(minus)));
    narrow_16(_mm512_mul_ps(rounded_16(silu), widen_16(up + i, some)), out + i, some);
  }
}

inline void norm_rope_row(const bf16* x, const bf16* weight, const bf16* cosines, const bf16* sines,
                          bf16* out, int64_t dim, float eps) {
  __m512 scale = _mm512_set1_ps(1.0f), squares = _mm512_setzero_ps();
  for (int64_t d = 0; weight && d < dim; d += 16) {
    __m512 some = widen_16(x + d, left_of(dim, d));
    squares = _mm512_fmadd_ps(some, some, squares);
  }
  if (weight) scale = _mm512_set1_ps(inverse_rms(squares, dim, eps));
  auto normed = [&](int64_t d, __mmask16 some) {
    __m512 value = widen_16(x + d, some);
    if (!weight) return value;
    value = rounded_16(_mm512_mul_ps(value, scale));
    return rounded_16(_mm512_mul_ps(value, widen_16(weight + d, some)));
  };
  int64_t half = dim / 2;
  for (int64_t d = 0; d < half; d += 16) {
    __mmask16 some = left_of(half, d);
    __m512 a = normed(d, some), b = normed(half + d, some);
    __m512 c = widen_16(cosines + d, some), s = widen_16(sines + d, some);
    __m512 first = rounded_16(_mm512_mul_ps(a, c)), second = rounded_16(_mm512_mul_ps(b, s));
    narrow_16(_mm512_sub_ps(first, second), out + d, some);
    first = rounded_16(_mm512_mul_ps(b, c)), second = rounded_16(_mm512_mul_ps(a, s));
    narrow_16(_mm512_add_ps(first, second), out + half + d, some);
  }
}

#endif

template <typename T>
void add_rms_norm(const T* x, const T* residual, const T* weight, T* normed, T* total,
                  int64_t tokens, int64_t size, float eps) {
  team::each_of(tokens, tokens * size > kWorthThreads, [&](int64_t t) {
    int64_t at = t * size;
    add_rms_norm_row(x + at, residual + at, weight, normed + at, total + at, size, eps);
  });
}

template <typename T>
void silu_mul(const T* gate_up, T* out, int64_t tokens, int64_t size) {
  team::each_of(tokens, tokens * size > kWorthThreads, [&](int64_t t) {
    const T* gate = gate_up + 2 * t * size;
    silu_mul_row(gate, gate + size, out + t * size, size);
  });
}

// Softmax of each row over the columns it sees, in place; the others become zero. Row r is
// query r % queries and sees the columns below first_end + r % queries, the last `window` of
// them if that is not 0. A NaN or an infinity among them makes the row's weights NaN.
template <typename T>
void visible_softmax(T* scores, int64_t rows, int64_t columns, int64_t queries, int64_t first_end,
                     int64_t window) {
  team::each_of(rows, rows * columns > kWorthThreads, [&](int64_t row) {
    T* score = scores + row * columns;
    int64_t sees = first_end + row % queries;
    int64_t end = std::clamp<int64_t>(sees, 0, columns);
    int64_t begin = window > 0 ? std::clamp<int64_t>(sees - window, 0, end) : 0;
    float best = -INFINITY;
    int bad = 0;
#pragma omp simd reduction(max : best) reduction(| : bad)
    for (int64_t i = begin; i < end; ++i) {
      float value = widen(score[i]);
      bad |= value != value;
      best = std::max(best, value);
    }
    if (bad) best = NAN;
    float sum = 0;
    thread_local std::vector<float> weights;
    weights.resize(columns);
    float* weight = weights.data();
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i) {
      weight[i] = exponential(widen(score[i]) - best);
      sum += weight[i];
    }
    float share = 1.0f / sum;
    std::memset(score, 0, begin * sizeof(T));
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) narrow(weight[i] * share, score + i);
    std::memset(score + end, 0, (columns - end) * sizeof(T));
  });
}

template <typename T>
void norm_rope_write(const QkvArgs& args) {
  int64_t dim = args.head_dim, half = dim / 2, all = args.heads + 2 * args.kv_heads;
  team::each_of(args.tokens, args.tokens * all * dim > kWorthThreads, [&](int64_t t) {
    const T* row = static_cast<const T*>(args.qkv) + t * all * dim;
    const T* cosines = static_cast<const T*>(args.cosines) + t * half;
    const T* sines = static_cast<const T*>(args.sines) + t * half;
    int64_t block = args.slots[t] / args.block_size, offset = args.slots[t] % args.block_size;
    for (int64_t h = 0; h < args.heads + args.kv_heads; ++h) {
      int64_t kv_head = h - args.heads;
      T* out = kv_head < 0
                   ? static_cast<T*>(args.queries) + (t * args.heads + h) * dim
                   : static_cast<T*>(args.keys) +
                         ((block * args.kv_heads + kv_head) * args.block_size + offset) * dim;
      const T* weight = static_cast<const T*>(args.norm_weight);
      if (weight) weight += h * dim;
      norm_rope_row(row + h * dim, weight, cosines, sines, out, dim, args.eps);
    }
    for (int64_t h = 0; h < args.kv_heads; ++h) {
      T* out = static_cast<T*>(args.values) +
               ((block * args.kv_heads + h) * args.block_size + offset) * dim;
      std::memcpy(out, row + (args.heads + args.kv_heads + h) * dim, dim * sizeof(T));
    }
  });
}

// Rows [kv_heads, tokens, head_dim] to their slots in 8 bits, as kernels/quantised_kv.py says.
template <typename T>
void write_int8(const T* rows, const int64_t* slots, int8_t* blocks, int64_t tokens,
                int64_t kv_heads, int64_t head_dim, int64_t block_size) {
  team::each_of(tokens, tokens * kv_heads * head_dim > kWorthThreads, [&](int64_t t) {
    for (int64_t h = 0; h < kv_heads; ++h) {
      const T* x = rows + (h * tokens + t) * head_dim;
      int64_t row = (slots[t] / block_size * kv_heads + h) * block_size + slots[t] % block_size;
      int8_t* out = blocks + row * row_size<int8>(head_dim);
      float largest = 0, sum = 0;
#pragma omp simd reduction(max : largest) reduction(+ : sum)
      for (int64_t d = 0; d < head_dim; ++d) {
        largest = std::max(largest, std::fabs(widen(x[d])));
        sum += widen(x[d]) * 0.0f;
      }
      float scale = sum == 0.0f ? largest / 127.0f : NAN;
      float divisor = scale > 0.0f ? scale : 1.0f;
      for (int64_t d = 0; d < head_dim; ++d)
        out[d] = sum == 0.0f ? int8_t(std::nearbyint(widen(x[d]) / divisor)) : 0;
      std::memcpy(out + head_dim, &scale, sizeof scale);
    }
  });
}

}  // namespace

extern "C" {

void keepwarm_norm_rope_write_bf16(const QkvArgs* args) { norm_rope_write<bf16>(*args); }
void keepwarm_norm_rope_write_f32(const QkvArgs* args) { norm_rope_write<float>(*args); }

void keepwarm_write_int8_bf16(const void* rows, const int64_t* slots, void* blocks, int64_t tokens,
                              int64_t kv_heads, int64_t head_dim, int64_t block_size) {
  write_int8(static_cast<const bf16*>(rows), slots, static_cast<int8_t*>(blocks), tokens, kv_heads,
             head_dim, block_size);
}
void keepwarm_write_int8_f32(const void* rows, const int64_t* slots, void* blocks, int64_t tokens,
                             int64_t kv_heads, int64_t head_dim, int64_t block_size) {
  write_int8(static_cast<const float*>(rows), slots, static_cast<int8_t*>(blocks), tokens, kv_heads,
             head_dim, block_size);
}

void keepwarm_add_rms_norm_bf16(const void* x, const void* residual, const void* weight,
                                void* normed, void* total, int64_t tokens, int64_t size,
                                float eps) {
  add_rms_norm(static_cast<const bf16*>(x), static_cast<const bf16*>(residual),
               static_cast<const bf16*>(weight), static_cast<bf16*>(normed),
               static_cast<bf16*>(total), tokens, size, eps);
}
void keepwarm_add_rms_norm_f32(const void* x, const void* residual, const void* weight,
                               void* normed, void* total, int64_t tokens, int64_t size,
                               float eps) {
  add_rms_norm(static_cast<const float*>(x), static_cast<const float*>(residual),
               static_cast<const float*>(weight), static_cast<float*>(normed),
               static_cast<float*>(total), tokens, size, eps);
}

void keepwarm_silu_mul_bf16(const void* gate_up, void* out, int64_t tokens, int64_t size) {
  silu_mul(static_cast<const bf16*>(gate_up), static_cast<bf16*>(out), tokens, size);
}
void keepwarm_silu_mul_f32(const void* gate_up, void* out, int64_t tokens, int64_t size) {
  silu_mul(static_cast<const float*>(gate_up), static_cast<float*>(out), tokens, size);
}

void keepwarm_visible_softmax_bf16(void* scores, int64_t rows, int64_t columns, int64_t queries,
                                   int64_t first_end, int64_t window) {
  visible_softmax(static_cast<bf16*>(scores), rows, columns, queries, first_end, window);
}
void keepwarm_visible_softmax_f32(void* scores, int64_t rows, int64_t columns, int64_t queries,
                                  int64_t first_end, int64_t window) {
  visible_softmax(static_cast<float*>(scores), rows, columns, queries, first_end, window);
}
}
