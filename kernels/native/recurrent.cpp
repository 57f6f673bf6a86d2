// The small operations around the gated delta rule, each in one pass. Specifications: the torch
// references in kernels/delta_shaping.py, kernels/kimi_shaping.py, kernels/gated_norm.py,
// kernels/ring_write.py and kernels/conv_windows.py.
//
// A token's numbers are made from its own row alone, in one order: no bit depends on what else is in
// the step, or on threads.

#include "recurrent.h"

#include "numbers.h"
#include "team.h"

namespace {

// Below this many numbers, each of which takes an exponential, a second thread costs more than it saves.
constexpr int64_t kWorthNumbers = 1 << 13;
constexpr int64_t kWorthCopies = 1 << 16;  // and of those that are only copied
constexpr int64_t kPiece = 256;
constexpr float kLeastLength = 1e-6f;  // kernels/delta_shaping.py
constexpr float kLinear = 20.0f;       // above it softplus is its argument, as in torch

template <typename T>
void silu_row(const T* x, float* out, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = silu(widen(x[i]));
}

void to_length(float* row, int64_t size, float length) {
  float inverse = 1.0f / std::sqrt(sum_of_squares(row, size) + kLeastLength);
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) row[i] = row[i] * inverse * length;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
inline float softplus(float x) { return x > kLinear ? x : std::log1p(std::exp(x)); }

// The same for many numbers at a time: log(1 + e) as 2 artanh(e / (2 + e)), of e = exp(-|x|), in a series
// whose first term left out is below 1e-8 of the sum.
inline float softplus_in_vectors(float x) {
  float e = exponential(-std::fabs(x)), s = e / (2.0f + e), square = s * s;
  float sum = 1.0f / 15;
  sum = sum * square + 1.0f / 13;
  sum = sum * square + 1.0f / 11;
  sum = sum * square + 1.0f / 9;
  sum = sum * square + 1.0f / 7;
  sum = sum * square + 1.0f / 5;
  sum = sum * square + 1.0f / 3;
  sum = sum * square + 1.0f;
  return (x > 0 ? x : 0.0f) + 2.0f * s * sum;
}

template <typename T>
void shape_token(const DeltaShapingArgs* args, int64_t token) {
  int64_t keys = args->key_heads * args->key_dim, values = args->value_heads * args->value_dim;
  const T* row = static_cast<const T*>(args->convolved) + token * (2 * keys + values);
  float *queries = args->queries + token * keys, *own_keys = args->keys + token * keys;
  silu_row(row, queries, keys);
  silu_row(row + keys, own_keys, keys);
  silu_row(row + 2 * keys, args->values + token * values, values);
  float scale = float(1.0 / std::sqrt(double(args->key_dim)));
  for (int64_t h = 0; h < args->key_heads; ++h) {
    to_length(queries + h * args->key_dim, args->key_dim, scale);
    to_length(own_keys + h * args->key_dim, args->key_dim, 1.0f);
  }
  const T* paces = static_cast<const T*>(args->paces) + token * 2 * args->value_heads;
  for (int64_t h = 0; h < args->value_heads; ++h) {
    int64_t at = token * args->value_heads + h;
    args->betas[at] = sigmoid(widen(paces[h]));
    args->decays[at] = -args->rates[h] * softplus(widen(paces[args->value_heads + h]) + args->bias[h]);
  }
}

template <typename T>
void shape(const DeltaShapingArgs* args) {
  int64_t numbers = 2 * args->key_heads * args->key_dim + args->value_heads * args->value_dim;
  bool worth = args->tokens * numbers >= kWorthNumbers;
  team::each_of(args->tokens, worth, [=](int64_t token) { shape_token<T>(args, token); });
}

template <typename T>
void shape_kimi_token(const KimiShapingArgs* args, int64_t token) {
  int64_t size = args->heads * args->head_dim, at = token * size;
  const T* row = static_cast<const T*>(args->convolved) + 3 * at;
  silu_row(row, args->queries + at, size);
  silu_row(row + size, args->keys + at, size);
  silu_row(row + 2 * size, args->values + at, size);
  const T* steps = static_cast<const T*>(args->steps) + token * args->steps_stride;
  const T* betas = static_cast<const T*>(args->said_betas) + token * args->betas_stride;
  float scale = float(1.0 / std::sqrt(double(args->head_dim)));
  for (int64_t h = 0; h < args->heads; ++h) {
    int64_t first = h * args->head_dim;
    to_length(args->queries + at + first, args->head_dim, scale);
    to_length(args->keys + at + first, args->head_dim, 1.0f);
    args->betas[token * args->heads + h] = sigmoid(widen(betas[h]));
    float pace = -args->rates[h];
    const float* bias = args->bias;
    float* decays = args->decays + at;
#pragma omp simd
    for (int64_t k = first; k < first + args->head_dim; ++k)
      decays[k] = pace * softplus_in_vectors(widen(steps[k]) + bias[k]);
  }
}

template <typename T>
void shape_kimi(const KimiShapingArgs* args) {
  bool worth = args->tokens * 4 * args->heads * args->head_dim >= kWorthNumbers;
  team::each_of(args->tokens, worth, [=](int64_t token) { shape_kimi_token<T>(args, token); });
}

template <typename T>
void gate_row(const T* gates, float* weights, int64_t count, bool by_sigmoid) {
  if (!by_sigmoid) return silu_row(gates, weights, count);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) weights[i] = 1.0f / (1.0f + exponential(std::min(-widen(gates[i]), 87.0f)));
}

template <typename T>
void gated_norm_token(const GatedNormArgs* args, int64_t token) {
  int64_t size = args->size;
  for (int64_t h = 0; h < args->heads; ++h) {
    int64_t at = (token * args->heads + h) * size;
    const float* mixed = args->mixed + at;
    const T* gates = static_cast<const T*>(args->gates) + token * args->gate_stride + h * size;
    T* out = static_cast<T*>(args->output) + at;
    float scale = 1.0f / std::sqrt(sum_of_squares(mixed, size) / float(size) + args->eps);
    for (int64_t from = 0; from < size; from += kPiece) {
      int64_t count = std::min(kPiece, size - from);
      float weights[kPiece];  // in one loop with the rounding, each of its cases divides again
      gate_row(gates + from, weights, count, args->by_sigmoid != 0);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i)
        narrow(mixed[from + i] * scale * args->weight[from + i] * weights[i], out + from + i);
    }
  }
}

template <typename T>
void gated_norm(const GatedNormArgs* args) {
  bool worth = args->tokens * args->heads * args->size >= kWorthNumbers;
  team::each_of(args->tokens, worth, [=](int64_t token) { gated_norm_token<T>(args, token); });
}

bool within(int64_t number, int64_t end) { return 0 <= number && number < end; }

// Whether every row has a place; else nothing is written.
bool write_ring(const RingWriteArgs& args) {
  for (int64_t i = 0; i < args.count; ++i)
    if (!within(args.ring_of[i], args.rings_count) || !within(args.place[i], args.ring) ||
        !within(args.token[i], args.tokens))
      return false;
  for (int64_t i = 0; i < args.count; ++i)
    std::memcpy(args.rings + args.ring_of[i] * args.ring_stride + args.place[i] * args.place_stride,
                args.rows + args.token[i] * args.row_size, args.row_size);
  return true;
}

// What stays is further back in a window than where it goes: rows are moved oldest first.
template <typename T>
void move_window(const WindowArgs* args, int64_t sequence, int64_t layer) {
  int64_t count = args->counts[sequence], channels = args->channels, before = args->before;
  if (count == 0) return;
  float* window = args->windows + args->slots[sequence] * args->slot_stride + layer * before * channels;
  const T* ring = static_cast<const T*>(args->rings) +
                  (args->ring_of[sequence] * args->layers + layer) * args->ring * channels;
  for (int64_t i = 0; i < before; ++i) {
    float* out = window + i * channels;
    int64_t behind = count - before + i;  // tokens from the committed position on
    if (behind < 0) {
      std::memcpy(out, window + (count + i) * channels, channels * sizeof(float));
      continue;
    }
    const T* row = ring + (args->committed[sequence] + behind) % args->ring * channels;
    for (int64_t c = 0; c < channels; ++c) out[c] = widen(row[c]);
  }
}

// Whether all of them are there; else nothing is moved.
template <typename T>
bool move_windows(const WindowArgs* args) {
  for (int64_t i = 0; i < args->sequences; ++i)
    if (!within(args->slots[i], args->slots_count) || !within(args->ring_of[i], args->rings_count) ||
        args->committed[i] < 0 || args->counts[i] < 0)
      return false;
  int64_t pieces = args->sequences * args->layers;
  bool worth = pieces * args->before * args->channels >= kWorthCopies;
  team::each_of(pieces, worth, [=](int64_t piece) {
    move_window<T>(args, piece / args->layers, piece % args->layers);
  });
  return true;
}

}  // namespace

extern "C" {

void keepwarm_delta_shaping_bf16(const DeltaShapingArgs* args) { shape<bf16>(args); }
void keepwarm_delta_shaping_f32(const DeltaShapingArgs* args) { shape<float>(args); }
void keepwarm_kimi_shaping_bf16(const KimiShapingArgs* args) { shape_kimi<bf16>(args); }
void keepwarm_kimi_shaping_f32(const KimiShapingArgs* args) { shape_kimi<float>(args); }
void keepwarm_gated_norm_bf16(const GatedNormArgs* args) { gated_norm<bf16>(args); }
void keepwarm_gated_norm_f32(const GatedNormArgs* args) { gated_norm<float>(args); }

bool keepwarm_move_windows_bf16(const WindowArgs* args) { return move_windows<bf16>(args); }
bool keepwarm_move_windows_f32(const WindowArgs* args) { return move_windows<float>(args); }

// As many of some writes as were made: those behind the first one with a place that is not there are not.
int64_t keepwarm_ring_write(const RingWriteArgs* writes, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (!write_ring(writes[i])) return i;
  return count;
}
}
