// Decode attention over paged KV, and the small operations between matrix products, for
// CPUs. kernels/native_library.py compiles this file for the machine it runs on; where that
// is not possible the torch versions do the same work. Each function's specification is the
// torch reference of the same operation in kernels/*.py.
//
// A parallel loop's items do not depend on the number of threads, and a sequence's
// arithmetic does not depend on its neighbours in the batch.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__AVX512BF16__) && defined(__AVX512VL__) && defined(__AVX512BW__)
#include <immintrin.h>
#define HAVE_BF16_UNITS 1
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

template <typename T>
inline bool uses_units(int64_t head_dim) {
#ifdef HAVE_BF16_UNITS
  return sizeof(T) == 2 && head_dim % 32 == 0 && head_dim <= 256;
#else
  return head_dim < 0;
#endif
}

constexpr int64_t kSplit = 256;  // tokens of a work item; a fixed grid over positions
constexpr int64_t kChunk = 128;  // tokens between two rescalings
constexpr int64_t kStripe = 1024;  // kv_heads * head_dim of an item: a chunk stays in the L2 cache

}  // namespace

extern "C" {

struct AttendArgs {
  const void* queries;  // [tokens, heads, head_dim], rows query_stride apart
  const void* keys;     // [blocks, kv_heads, block_size, head_dim]
  const void* values;
  void* output;         // [tokens, heads, head_dim]
  const int32_t* block_tables;     // [sequences, table_stride]
  const int32_t* query_starts;     // [sequences + 1]
  const int32_t* context_lengths;  // [sequences]
  int64_t query_stride;
  int64_t table_stride;
  int64_t sequences;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t block_size;
  int64_t window;       // tokens a query sees; 0 = all
  int64_t max_queries;  // sequences with more query tokens are left alone
  float scale;
};
}

namespace {

// A stretch of one sequence's tokens for some of the kv heads, and where its result lies.
struct Item {
  int32_t sequence, first_head, heads;
  int64_t rows;        // query rows of each kv head
  int64_t begin, end;  // tokens
  int64_t partial;     // offset of [heads][rows][2 + head_dim]: maximum, sum, weighted values
};

template <typename T>
struct Work {
  const AttendArgs& args;
  const Item& item;
  const int32_t* table;
  int64_t group, num_queries, length, block_shift, rows;
  std::vector<T> queries;     // [heads][rows][head_dim]
  std::vector<float> scores;  // [heads][rows][kChunk]
  float* partial;

  Work(const AttendArgs& a, const Item& it, float* partials) : args(a), item(it), rows(it.rows) {
    group = a.heads / a.kv_heads;
    int64_t first = a.query_starts[it.sequence];
    num_queries = a.query_starts[it.sequence + 1] - first;
    length = a.context_lengths[it.sequence];
    block_shift = __builtin_ctzll(a.block_size);
    table = a.block_tables + it.sequence * a.table_stride;
    queries.resize(it.heads * rows * a.head_dim);
    scores.resize(it.heads * rows * kChunk);
    partial = partials + it.partial;
    const T* source = static_cast<const T*>(a.queries);
    for (int64_t head = 0; head < it.heads; ++head)
      for (int64_t row = 0; row < rows; ++row) {
        const T* from = source + (first + row / group) * a.query_stride +
                        ((it.first_head + head) * group + row % group) * a.head_dim;
        std::memcpy(query(head, row), from, a.head_dim * sizeof(T));
        float* state = sums(head, row) - 2;
        std::fill(state, state + 2 + a.head_dim, 0.0f);
        state[0] = -INFINITY;
      }
  }

  T* query(int64_t head, int64_t row) {
    return queries.data() + (head * rows + row) * args.head_dim;
  }
  float* score(int64_t head, int64_t row) { return scores.data() + (head * rows + row) * kChunk; }
  float* sums(int64_t head, int64_t row) {
    return partial + (head * rows + row) * (2 + args.head_dim) + 2;
  }

  // Where a token's key or value of the item's head lies.
  const T* at(const void* base, int64_t head, int64_t token) const {
    int64_t block = table[token >> block_shift], offset = token & (args.block_size - 1);
    int64_t row = ((block * args.kv_heads + item.first_head + head) << block_shift) + offset;
    return static_cast<const T*>(base) + row * args.head_dim;
  }

  // Tokens row sees: [low, high).
  int64_t high(int64_t row) const { return length - num_queries + row / group + 1; }
  int64_t low(int64_t row) const {
    return args.window > 0 ? std::max<int64_t>(0, high(row) - args.window) : 0;
  }

  void run() {
    bool units = uses_units<T>(args.head_dim);
    for (int64_t from = item.begin; from < item.end; from += kChunk) {
      int64_t to = std::min(from + kChunk, item.end);
      units ? compare_with_units(from, to) : compare(from, to);
      for (int64_t head = 0; head < item.heads; ++head)
        for (int64_t row = 0; row < rows; ++row) weigh(head, row, from, to);
      units ? mix_with_units(from, to) : mix(from, to);
    }
  }

  // Scores to weights relative to the row's running maximum; older sums are rescaled.
  void weigh(int64_t head, int64_t row, int64_t from, int64_t to) {
    float *weights = score(head, row), *sum_of = sums(head, row), *state = sum_of - 2;
    int64_t begin = std::min(std::max(from, low(row)), to) - from;
    int64_t end = std::max(std::min(to, high(row)) - from, begin);
    float best = -INFINITY;
    int bad = 0;
#pragma omp simd reduction(max : best) reduction(| : bad)
    for (int64_t i = begin; i < end; ++i) {
      bad |= weights[i] != weights[i];
      best = std::max(best, weights[i]);
    }
    best = bad ? NAN : std::max(best, state[0]);
    std::fill(weights, weights + begin, 0.0f);
    std::fill(weights + end, weights + kChunk, 0.0f);
    if (begin == end) return;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i) {
      weights[i] = rounded<T>(exponential(weights[i] - best));
      sum += weights[i];
    }
    float keep = state[0] == -INFINITY ? 0.0f : exponential(state[0] - best);
    state[0] = best;
    state[1] = state[1] * keep + sum;
    if (keep != 1.0f)
      for (int64_t d = 0; d < args.head_dim; ++d) sum_of[d] *= keep;
  }

  void compare(int64_t from, int64_t to) {
    int64_t dim = args.head_dim;
    for (int64_t token = from; token < to; ++token)
      for (int64_t head = 0; head < item.heads; ++head) {
        const T* key = at(args.keys, head, token);
        for (int64_t row = 0; row < rows; ++row) {
          const T* q = query(head, row);
          float sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t d = 0; d < dim; ++d) sum += widen(q[d]) * widen(key[d]);
          score(head, row)[token - from] = sum * args.scale;
        }
      }
  }

  void mix(int64_t from, int64_t to) {
    int64_t dim = args.head_dim;
    for (int64_t token = from; token < to; ++token)
      for (int64_t head = 0; head < item.heads; ++head) {
        const T* value = at(args.values, head, token);
        for (int64_t row = 0; row < rows; ++row) {
          float weight = score(head, row)[token - from];
          if (weight == 0.0f) continue;
          float* sum = sums(head, row);
#pragma omp simd
          for (int64_t d = 0; d < dim; ++d) sum[d] += weight * widen(value[d]);
        }
      }
  }

  void compare_with_units(int64_t from, int64_t to);
  void mix_with_units(int64_t from, int64_t to);
};

#ifdef HAVE_BF16_UNITS

constexpr int64_t kAhead = 32;  // tokens between asking for keys and reading them

inline void fetch(const bf16* from, int64_t count) {
  for (int64_t i = 0; i < count; i += 32)
    _mm_prefetch(reinterpret_cast<const char*>(from + i), _MM_HINT_T1);
}

inline __m512bh as_bf16(__m512i value) { return (__m512bh)value; }

// 16 tokens x 32 dimensions -> 16 registers, each a pair of dimensions of all 16 tokens.
inline void transpose_pairs(const bf16* const* rows, int64_t offset, __m512i* out) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(rows[i] + offset);
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

// Scores of 16 tokens for a few rows. Several partial sums a row hide the latency of the
// multiply-add.
template <int kRows>
inline void score_rows(const int32_t* queries, int64_t pairs, const __m512i* keys, float scale,
                       float* scores) {
  constexpr int kChains = kRows >= 4 ? 2 : 4;
  __m512 sums[kRows][kChains];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kChains; ++c) sums[r][c] = _mm512_setzero_ps();
  for (int64_t p = 0; p < pairs; p += kChains)
    for (int c = 0; c < kChains; ++c) {
      __m512bh key = as_bf16(_mm512_load_si512(keys + p + c));
      for (int r = 0; r < kRows; ++r) {
        __m512i query = _mm512_set1_epi32(queries[r * pairs + p + c]);
        sums[r][c] = _mm512_dpbf16_ps(sums[r][c], key, as_bf16(query));
      }
    }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 1; c < kChains; ++c) sums[r][0] = _mm512_add_ps(sums[r][0], sums[r][c]);
    _mm512_storeu_ps(scores + r * kChunk, _mm512_mul_ps(sums[r][0], _mm512_set1_ps(scale)));
  }
}

template <>
void Work<bf16>::compare_with_units(int64_t from, int64_t to) {
  int64_t dim = args.head_dim, pairs = dim / 2;
  alignas(64) __m512i turned[128];
  for (int64_t token = from; token < to; token += 16)
    for (int64_t head = 0; head < item.heads; ++head) {
      const bf16* keys[16];
      for (int64_t i = 0; i < 16; ++i) keys[i] = at(args.keys, head, std::min(token + i, to - 1));
      // The values are read after the chunk's keys: have them come meanwhile.
      fetch(at(args.values, head, token), 16 * dim);
      if (token + kAhead < item.end) fetch(at(args.keys, head, token + kAhead), 16 * dim);
      for (int64_t offset = 0; offset < dim; offset += 32)
        transpose_pairs(keys, offset, turned + offset / 2);
      for (int64_t row = 0; row < rows; row += 4) {
        const int32_t* q = reinterpret_cast<const int32_t*>(query(head, row));
        float* out = score(head, row) + token - from;
        switch (rows - row) {
          case 1: score_rows<1>(q, pairs, turned, args.scale, out); break;
          case 2: score_rows<2>(q, pairs, turned, args.scale, out); break;
          case 3: score_rows<3>(q, pairs, turned, args.scale, out); break;
          default: score_rows<4>(q, pairs, turned, args.scale, out);
        }
      }
    }
}

// Adds 32 dimensions of the chunk's values, by token pairs. Sums keep the order in which
// unpacking leaves the dimensions; finish() puts it right.
template <int kRows>
inline void mix_rows(const bf16* const* rows, int64_t tokens, const int32_t* weights,
                     int64_t offset, float* sums, int64_t stride) {
  __m512 low[kRows], high[kRows];
  for (int r = 0; r < kRows; ++r) {
    low[r] = _mm512_loadu_ps(sums + r * stride);
    high[r] = _mm512_loadu_ps(sums + r * stride + 16);
  }
  for (int64_t pair = 0; pair < tokens / 2; ++pair) {
    __m512i first = _mm512_loadu_si512(rows[2 * pair] + offset);
    __m512i second = _mm512_loadu_si512(rows[2 * pair + 1] + offset);
    __m512bh left = as_bf16(_mm512_unpacklo_epi16(first, second));
    __m512bh right = as_bf16(_mm512_unpackhi_epi16(first, second));
    for (int r = 0; r < kRows; ++r) {
      __m512bh weight = as_bf16(_mm512_set1_epi32(weights[r * (kChunk / 2) + pair]));
      low[r] = _mm512_dpbf16_ps(low[r], left, weight);
      high[r] = _mm512_dpbf16_ps(high[r], right, weight);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(sums + r * stride, low[r]);
    _mm512_storeu_ps(sums + r * stride + 16, high[r]);
  }
}

template <>
void Work<bf16>::mix_with_units(int64_t from, int64_t to) {
  int64_t dim = args.head_dim, stride = 2 + dim, tokens = (to - from + 1) & ~int64_t(1);
  const bf16* values[kChunk];
  int32_t weights[4 * kChunk / 2];
  for (int64_t head = 0; head < item.heads; ++head) {
    for (int64_t i = 0; i < tokens; ++i) values[i] = at(args.values, head, std::min(from + i, to - 1));
    for (int64_t row = 0; row < rows; row += 4) {
      int64_t count = std::min<int64_t>(4, rows - row);
      for (int64_t r = 0; r < count; ++r)
        for (int64_t i = 0; i < tokens; i += 32) {
          const float* weight = score(head, row + r) + i;
          _mm512_storeu_si512(weights + r * (kChunk / 2) + i / 2,
                              (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(weight + 16),
                                                           _mm512_loadu_ps(weight)));
        }
      for (int64_t offset = 0; offset < dim; offset += 32) {
        float* sum = sums(head, row) + offset;
        switch (count) {
          case 1: mix_rows<1>(values, tokens, weights, offset, sum, stride); break;
          case 2: mix_rows<2>(values, tokens, weights, offset, sum, stride); break;
          case 3: mix_rows<3>(values, tokens, weights, offset, sum, stride); break;
          default: mix_rows<4>(values, tokens, weights, offset, sum, stride);
        }
      }
    }
  }
}

#else

template <>
void Work<bf16>::compare_with_units(int64_t, int64_t) {}
template <>
void Work<bf16>::mix_with_units(int64_t, int64_t) {}

#endif

template <>
void Work<float>::compare_with_units(int64_t, int64_t) {}
template <>
void Work<float>::mix_with_units(int64_t, int64_t) {}

// Where dimension d of a sum lies.
inline int64_t place(int64_t d, bool units) {
  if (!units) return d;
  int64_t in_32 = d % 32, lane = in_32 / 8, in_lane = in_32 % 8;
  return d - in_32 + (in_lane / 4) * 16 + lane * 4 + in_lane % 4;
}

// Joins the stretches of one (sequence, heads).
template <typename T>
void finish(const AttendArgs& args, const Item* items, int64_t count, const float* partials) {
  int64_t dim = args.head_dim, group = args.heads / args.kv_heads, rows = items[0].rows;
  std::vector<float> sums(dim);
  bool units = uses_units<T>(dim);
  for (int64_t row = 0; row < items[0].heads * rows; ++row) {
    float best = -INFINITY, total = 0;
    bool bad = false;
    for (int64_t i = 0; i < count; ++i) {
      float maximum = partials[items[i].partial + row * (2 + dim)];
      bad = bad || maximum != maximum;
      best = std::max(best, maximum);
    }
    if (bad) best = NAN;
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int64_t i = 0; i < count; ++i) {
      const float* state = partials + items[i].partial + row * (2 + dim);
      if (state[0] == -INFINITY) continue;
      float share = exponential(state[0] - best);
      total += state[1] * share;
      for (int64_t d = 0; d < dim; ++d) sums[d] += state[2 + d] * share;
    }
    int64_t token = args.query_starts[items[0].sequence] + row % rows / group;
    int64_t head = (items[0].first_head + row / rows) * group + row % rows % group;
    T* out = static_cast<T*>(args.output) + (token * args.heads + head) * dim;
    for (int64_t d = 0; d < dim; ++d) narrow(sums[place(d, units)] / total, out + d);
  }
}

template <typename T>
void attend(const AttendArgs& args) {
  std::vector<Item> items;
  std::vector<int64_t> starts;  // first item of each (sequence, heads)
  int64_t partial_size = 0, group = args.heads / args.kv_heads;
  int64_t heads = std::max<int64_t>(1, std::min(args.kv_heads, kStripe / args.head_dim));
  for (int64_t s = 0; s < args.sequences; ++s) {
    int64_t queries = args.query_starts[s + 1] - args.query_starts[s];
    if (queries > args.max_queries) continue;
    int64_t length = args.context_lengths[s];
    int64_t first = args.window > 0 ? std::max<int64_t>(0, length - queries + 1 - args.window) : 0;
    for (int64_t head = 0; head < args.kv_heads; head += heads) {
      starts.push_back(items.size());
      for (int64_t split = first / kSplit; split * kSplit < length; ++split) {
        Item item;
        item.sequence = s, item.first_head = head;
        item.heads = std::min(heads, args.kv_heads - head), item.rows = queries * group;
        item.begin = std::max(first & ~int64_t(15), split * kSplit);
        item.end = std::min(length, (split + 1) * kSplit);
        item.partial = partial_size;
        partial_size += item.heads * item.rows * (2 + args.head_dim);
        items.push_back(item);
      }
    }
  }
  starts.push_back(items.size());
  std::vector<float> partials(partial_size);
  int64_t num_items = items.size(), num_outputs = int64_t(starts.size()) - 1;
#pragma omp parallel
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_items; ++i) Work<T>(args, items[i], partials.data()).run();
#pragma omp for schedule(static)
    for (int64_t o = 0; o < num_outputs; ++o)
      finish<T>(args, &items[starts[o]], starts[o + 1] - starts[o], partials.data());
  }
}

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

template <typename T>
void silu_mul(const T* gate_up, T* out, int64_t tokens, int64_t size) {
#pragma omp parallel for if (tokens * size > kWorthThreads)
  for (int64_t t = 0; t < tokens; ++t) {
    const T *gate = gate_up + 2 * t * size, *up = gate + size;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) {
      float g = widen(gate[i]);
      float silu = rounded<T>(g / (1.0f + exponential(std::min(-g, 87.0f))));
      narrow(silu * widen(up[i]), out + t * size + i);
    }
  }
}

}  // namespace

extern "C" {

struct QkvArgs {
  const void* qkv;          // [tokens, (heads + 2 * kv_heads) * head_dim]
  const void* norm_weight;  // [heads + kv_heads, head_dim], or null for no norm
  const void* cosines;      // [tokens, head_dim / 2]
  const void* sines;
  const int64_t* slots;     // [tokens]
  void* queries;            // [tokens, heads, head_dim], written
  void* keys;               // [blocks, kv_heads, block_size, head_dim], written
  void* values;
  int64_t tokens;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t block_size;
  float eps;
};
}

namespace {

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

}  // namespace

extern "C" {

void keepwarm_attend_bf16(const AttendArgs* args) { attend<bf16>(*args); }
void keepwarm_attend_f32(const AttendArgs* args) { attend<float>(*args); }

void keepwarm_norm_rope_write_bf16(const QkvArgs* args) { norm_rope_write<bf16>(*args); }
void keepwarm_norm_rope_write_f32(const QkvArgs* args) { norm_rope_write<float>(*args); }

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
}
