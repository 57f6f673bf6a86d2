// The small operations between matrix products, each in one pass. Specifications: the torch
// references in kernels/norm.py, kernels/activation.py and kernels/qkv.py, whose roundings
// to the number type are done here as well.

#include "elementwise.h"
#include "numbers.h"

namespace {

// Below this many elements a second thread costs more than it saves.
constexpr int64_t kWorthThreads = 1 << 15;

template <typename T>
float inverse_rms(const T* x, int64_t size, float eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) sum += widen(x[i]) * widen(x[i]);
  return 1.0f / std::sqrt(sum / float(size) + eps);
}

template <typename T>
void add_rms_norm(const T* x, const T* residual, const T* weight, T* normed, T* total,
                  int64_t tokens, int64_t size, float eps) {
#pragma omp parallel for if (tokens * size > kWorthThreads)
  for (int64_t t = 0; t < tokens; ++t) {
    const T *a = x + t * size, *b = residual + t * size;
    T *out = normed + t * size, *sum = total + t * size;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) narrow(widen(a[i]) + widen(b[i]), sum + i);
    float scale = inverse_rms(sum, size, eps);
#pragma omp simd
    for (int64_t i = 0; i < size; ++i)
      narrow(rounded<T>(widen(sum[i]) * scale) * widen(weight[i]), out + i);
  }
}

constexpr int64_t kPiece = 256;

template <typename T>
void silu_mul(const T* gate_up, T* out, int64_t tokens, int64_t size) {
#pragma omp parallel for if (tokens * size > kWorthThreads)
  for (int64_t t = 0; t < tokens; ++t) {
    const T *gate = gate_up + 2 * t * size, *up = gate + size;
    for (int64_t from = 0; from < size; from += kPiece) {
      int64_t count = std::min(kPiece, size - from);
      float silu[kPiece];  // in one loop with the rounding, each of its cases divides again
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        float g = widen(gate[from + i]);
        silu[i] = g / (1.0f + exponential(std::min(-g, 87.0f)));
      }
#pragma omp simd
      for (int64_t i = 0; i < count; ++i)
        narrow(rounded<T>(silu[i]) * widen(up[from + i]), out + t * size + from + i);
    }
  }
}

// Softmax of each row over the columns it sees, in place; the others become zero. Row r is
// query r % queries and sees the columns below first_end + r % queries, the last `window` of
// them if that is not 0. A NaN or an infinity among them makes the row's weights NaN.
template <typename T>
void visible_softmax(T* scores, int64_t rows, int64_t columns, int64_t queries, int64_t first_end,
                     int64_t window) {
#pragma omp parallel for schedule(static) if (rows * columns > kWorthThreads)
  for (int64_t row = 0; row < rows; ++row) {
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
  }
}

template <typename T>
void norm_rope_write(const QkvArgs& args) {
  int64_t dim = args.head_dim, half = dim / 2, all = args.heads + 2 * args.kv_heads;
#pragma omp parallel for if (args.tokens * all * dim > kWorthThreads)
  for (int64_t t = 0; t < args.tokens; ++t) {
    const T* row = static_cast<const T*>(args.qkv) + t * all * dim;
    const T* cosines = static_cast<const T*>(args.cosines) + t * half;
    const T* sines = static_cast<const T*>(args.sines) + t * half;
    int64_t block = args.slots[t] / args.block_size, offset = args.slots[t] % args.block_size;
    std::vector<float> normed(dim);
    for (int64_t h = 0; h < args.heads + args.kv_heads; ++h) {
      const T* x = row + h * dim;
      int64_t kv_head = h - args.heads;
      T* out = kv_head < 0
                   ? static_cast<T*>(args.queries) + (t * args.heads + h) * dim
                   : static_cast<T*>(args.keys) +
                         ((block * args.kv_heads + kv_head) * args.block_size + offset) * dim;
      if (args.norm_weight) {
        const T* weight = static_cast<const T*>(args.norm_weight) + h * dim;
        float scale = inverse_rms(x, dim, args.eps);
        for (int64_t d = 0; d < dim; ++d)
          normed[d] = rounded<T>(rounded<T>(widen(x[d]) * scale) * widen(weight[d]));
      } else {
        for (int64_t d = 0; d < dim; ++d) normed[d] = widen(x[d]);
      }
      for (int64_t d = 0; d < half; ++d) {
        float a = normed[d], b = normed[half + d], c = widen(cosines[d]), s = widen(sines[d]);
        narrow(rounded<T>(a * c) - rounded<T>(b * s), out + d);
        narrow(rounded<T>(b * c) + rounded<T>(a * s), out + half + d);
      }
    }
    for (int64_t h = 0; h < args.kv_heads; ++h) {
      T* out = static_cast<T*>(args.values) +
               ((block * args.kv_heads + h) * args.block_size + offset) * dim;
      std::memcpy(out, row + (args.heads + args.kv_heads + h) * dim, dim * sizeof(T));
    }
  }
}

// Rows [kv_heads, tokens, head_dim] to their slots in 8 bits, as kernels/quantised_kv.py says.
template <typename T>
void write_int8(const T* rows, const int64_t* slots, int8_t* blocks, int64_t tokens,
                int64_t kv_heads, int64_t head_dim, int64_t block_size) {
#pragma omp parallel for if (tokens * kv_heads * head_dim > kWorthThreads)
  for (int64_t t = 0; t < tokens; ++t)
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
