// Attention of few query tokens over paged KV. Specification: paged_attention_reference in
// kernels/attention.py.
//
// Work is split on a fixed grid over each sequence's positions, so neither the number of
// threads nor the neighbours in the batch change a sequence's arithmetic.

#include "paged_attention.h"
#include "team.h"

namespace {

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
constexpr int64_t kAhead = 32;   // tokens between asking for keys and values and reading them
constexpr int64_t kStripe = 1024;  // kv_heads * head_dim of an item: a chunk stays in the L2 cache

}  // namespace

namespace {

// A stretch of one sequence's tokens for some of the kv heads, and where its result lies.
struct Item {
  int32_t sequence, first_head, heads;
  int64_t rows;        // query rows of each kv head
  int64_t begin, end;  // tokens
  int64_t partial;     // offset of [heads][rows][2 + head_dim]: maximum, sum, weighted values
};

// T: queries and output; S: keys and values as they are kept.
template <typename T, typename S>
struct Work {
  const AttendArgs& args;
  const Item& item;
  const int32_t* table;
  int64_t group, num_queries, length, block_shift, rows;
  std::vector<T> queries;     // [heads][rows][head_dim]
  std::vector<float> wide_queries;  // the same
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
    wide_queries.resize(queries.size());
    for (size_t i = 0; i < queries.size(); ++i) wide_queries[i] = widen(queries[i]);
  }

  T* query(int64_t head, int64_t row) {
    return queries.data() + (head * rows + row) * args.head_dim;
  }
  float* score(int64_t head, int64_t row) { return scores.data() + (head * rows + row) * kChunk; }
  float* sums(int64_t head, int64_t row) {
    return partial + (head * rows + row) * (2 + args.head_dim) + 2;
  }

  // Where a token's key or value of the item's head lies.
  const S* at(const void* base, int64_t head, int64_t token) const {
    int64_t block = table[token >> block_shift], offset = token & (args.block_size - 1);
    int64_t row = ((block * args.kv_heads + item.first_head + head) << block_shift) + offset;
    return static_cast<const S*>(base) + row * args.row_stride;
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

  // Four tokens at a time, widened once for all rows, so that their sums do not wait for each other.
  // Behind the last one it is taken again and what comes of it is dropped: each token's sum is made
  // in one way.
  void compare(int64_t from, int64_t to) {
    int64_t dim = args.head_dim;
    std::vector<float> room(4 * dim);
    for (int64_t head = 0; head < item.heads; ++head)
      for (int64_t token = from; token < to; token += 4) {
        fetch(args.keys, head, token + kAhead);
        float scales[4];
        const float* keys[4];
        for (int64_t i = 0; i < 4; ++i) {
          const S* key = at(args.keys, head, std::min(token + i, to - 1));
          scales[i] = args.scale * scale_of(key, dim);
          keys[i] = widened(key, &room[i * dim]);
        }
        const float *k0 = keys[0], *k1 = keys[1], *k2 = keys[2], *k3 = keys[3];
        for (int64_t row = 0; row < rows; ++row) {
          const float* q = wide_queries.data() + (head * rows + row) * dim;
          float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
          for (int64_t d = 0; d < dim; ++d) {
            s0 += q[d] * k0[d];
            s1 += q[d] * k1[d];
            s2 += q[d] * k2[d];
            s3 += q[d] * k3[d];
          }
          float sums[4] = {s0, s1, s2, s3}, *scores = score(head, row) + (token - from);
          for (int64_t i = 0; i < std::min<int64_t>(4, to - token); ++i)
            scores[i] = sums[i] * scales[i];
        }
      }
  }

  // Four tokens at a time where a row sees all of them: its sums are read and written once. What a
  // row does not see may hold anything.
  void mix(int64_t from, int64_t to) {
    int64_t dim = args.head_dim;
    std::vector<float> room(4 * dim);
    for (int64_t head = 0; head < item.heads; ++head)
      for (int64_t token = from; token < to; token += 4) {
        fetch(args.values, head, token + kAhead);
        int64_t count = std::min<int64_t>(4, to - token);
        const float* values[4];
        float scales[4];
        for (int64_t i = 0; i < count; ++i) {
          const S* value = at(args.values, head, token + i);
          scales[i] = scale_of(value, dim);
          values[i] = widened(value, &room[i * dim]);
        }
        for (int64_t row = 0; row < rows; ++row) {
          const float* weights = score(head, row) + (token - from);
          float* sum = sums(head, row);
          bool all = count == 4;
          for (int64_t i = 0; i < count; ++i) all = all && weights[i] != 0.0f;
          if (!all) {
            for (int64_t i = 0; i < count; ++i)
              if (weights[i] != 0.0f) add(sum, weights[i] * scales[i], values[i]);
            continue;
          }
          const float *v0 = values[0], *v1 = values[1], *v2 = values[2], *v3 = values[3];
          float w0 = weights[0] * scales[0], w1 = weights[1] * scales[1];
          float w2 = weights[2] * scales[2], w3 = weights[3] * scales[3];
#pragma omp simd
          for (int64_t d = 0; d < dim; ++d) {
            float one = sum[d] + w0 * v0[d];
            one += w1 * v1[d];
            one += w2 * v2[d];
            sum[d] = one + w3 * v3[d];
          }
        }
      }
  }

  // Has four tokens' keys or values on their way, if the item has them.
  inline __attribute__((always_inline)) void fetch(const void* base, int64_t head,
                                                   int64_t token) const {
    if (token + 4 > item.end) return;
    const char* line = reinterpret_cast<const char*>(at(base, head, token));
    int64_t bytes = 4 * args.row_stride * int64_t(sizeof(S));
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(line + i);
  }

  void add(float* sum, float weight, const float* value) {
#pragma omp simd
    for (int64_t d = 0; d < args.head_dim; ++d) sum[d] += weight * value[d];
  }

  // A key or value as floats, in ``room`` where it is kept otherwise.
  const float* widened(const float* from, float*) const { return from; }
  template <typename N>
  const float* widened(const N* from, float* room) const {
#pragma omp simd
    for (int64_t d = 0; d < args.head_dim; ++d) room[d] = widen(from[d]);
    return room;
  }

  void compare_with_units(int64_t from, int64_t to);
  void mix_with_units(int64_t from, int64_t to);
};

#ifdef HAVE_BF16_UNITS

inline void fetch(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64)
    _mm_prefetch(static_cast<const char*>(from) + i, _MM_HINT_T1);
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

// The same in single precision, where that is faster.
template <int kRows>
inline void score_rows_wide(const float* queries, int64_t dim, const __m512i* keys, float scale,
                            float* scores) {
  __m512 even[kRows], odd[kRows];
  for (int r = 0; r < kRows; ++r) even[r] = odd[r] = _mm512_setzero_ps();
  for (int64_t p = 0; p < dim / 2; ++p) {
    __m512i both = _mm512_load_si512(keys + p);
    __m512 first = even_floats(both), second = odd_floats(both);
    for (int r = 0; r < kRows; ++r) {
      even[r] = _mm512_fmadd_ps(first, _mm512_set1_ps(queries[r * dim + 2 * p]), even[r]);
      odd[r] = _mm512_fmadd_ps(second, _mm512_set1_ps(queries[r * dim + 2 * p + 1]), odd[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    __m512 sum = _mm512_add_ps(even[r], odd[r]);
    _mm512_storeu_ps(scores + r * kChunk, _mm512_mul_ps(sum, _mm512_set1_ps(scale)));
  }
}

template <typename S>
void compare_units(Work<bf16, S>& work, int64_t from, int64_t to) {
  const AttendArgs& args = work.args;
  int64_t dim = args.head_dim, pairs = dim / 2, rows = work.rows;
  int64_t fetched = 16 * args.row_stride * sizeof(S);
  alignas(64) __m512i turned[128];
  bool wide = wide_is_faster();
  std::vector<float> wide_queries(wide ? work.queries.size() : 0);
  for (size_t i = 0; i < wide_queries.size(); ++i) wide_queries[i] = widen(work.queries[i]);
  for (int64_t token = from; token < to; token += 16)
    for (int64_t head = 0; head < work.item.heads; ++head) {
      const S* keys[16];
      alignas(64) float scales[16];
      for (int64_t i = 0; i < 16; ++i) {
        keys[i] = work.at(args.keys, head, std::min(token + i, to - 1));
        scales[i] = scale_of(keys[i], dim);
      }
      // The values are read after the chunk's keys: have them come meanwhile.
      fetch(work.at(args.values, head, token), fetched);
      if (token + kAhead < work.item.end) fetch(work.at(args.keys, head, token + kAhead), fetched);
      for (int64_t offset = 0; offset < dim; offset += 32) {
        __m512i pairs_of_token[16];
        for (int i = 0; i < 16; ++i) pairs_of_token[i] = load_32(keys[i] + offset);
        transpose(pairs_of_token, turned + offset / 2);
      }
      for (int64_t row = 0; row < rows; row += 4) {
        const int32_t* q = reinterpret_cast<const int32_t*>(work.query(head, row));
        float* out = work.score(head, row) + token - from;
        if (wide) {
          const float* w = wide_queries.data() + (head * rows + row) * dim;
          switch (rows - row) {
            case 1: score_rows_wide<1>(w, dim, turned, args.scale, out); break;
            case 2: score_rows_wide<2>(w, dim, turned, args.scale, out); break;
            case 3: score_rows_wide<3>(w, dim, turned, args.scale, out); break;
            default: score_rows_wide<4>(w, dim, turned, args.scale, out);
          }
        } else switch (rows - row) {
          case 1: score_rows<1>(q, pairs, turned, args.scale, out); break;
          case 2: score_rows<2>(q, pairs, turned, args.scale, out); break;
          case 3: score_rows<3>(q, pairs, turned, args.scale, out); break;
          default: score_rows<4>(q, pairs, turned, args.scale, out);
        }
        if (sizeof(S) > 1) continue;
        for (int64_t r = 0; r < std::min<int64_t>(4, rows - row); ++r) {
          __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(out + r * kChunk), _mm512_load_ps(scales));
          _mm512_storeu_ps(out + r * kChunk, scaled);
        }
      }
    }
}

// Adds 32 dimensions of the chunk's values, by token pairs. Sums keep the order in which
// unpacking leaves the dimensions; finish() puts it right.
template <int kRows, typename S>
inline void mix_rows(const S* const* rows, int64_t tokens, const int32_t* weights,
                     int64_t offset, float* sums, int64_t stride) {
  __m512 low[kRows], high[kRows];
  for (int r = 0; r < kRows; ++r) {
    low[r] = _mm512_loadu_ps(sums + r * stride);
    high[r] = _mm512_loadu_ps(sums + r * stride + 16);
  }
  for (int64_t pair = 0; pair < tokens / 2; ++pair) {
    __m512i first = load_32(rows[2 * pair] + offset);
    __m512i second = load_32(rows[2 * pair + 1] + offset);
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

// The same in single precision, for 32 * kParts dimensions: even ones first, then the odd ones.
template <int kRows, int kParts, typename S>
inline void mix_rows_wide(const S* const* rows, int64_t tokens, const float* weights,
                          int64_t offset, float* sums, int64_t stride) {
  __m512 even[kParts][kRows], odd[kParts][kRows];
  for (int p = 0; p < kParts; ++p)
    for (int r = 0; r < kRows; ++r) {
      even[p][r] = _mm512_loadu_ps(sums + r * stride + 32 * p);
      odd[p][r] = _mm512_loadu_ps(sums + r * stride + 32 * p + 16);
    }
  for (int64_t token = 0; token < tokens; ++token)
    for (int p = 0; p < kParts; ++p) {
      __m512i both = load_32(rows[token] + offset + 32 * p);
      __m512 first = even_floats(both), second = odd_floats(both);
      for (int r = 0; r < kRows; ++r) {
        __m512 weight = _mm512_set1_ps(weights[r * kChunk + token]);
        even[p][r] = _mm512_fmadd_ps(first, weight, even[p][r]);
        odd[p][r] = _mm512_fmadd_ps(second, weight, odd[p][r]);
      }
    }
  for (int p = 0; p < kParts; ++p)
    for (int r = 0; r < kRows; ++r) {
      _mm512_storeu_ps(sums + r * stride + 32 * p, even[p][r]);
      _mm512_storeu_ps(sums + r * stride + 32 * p + 16, odd[p][r]);
    }
}

template <int kParts, typename S>
inline void mix_rows_wide(int64_t count, const S* const* rows, int64_t tokens,
                          const float* weights, int64_t offset, float* sums, int64_t stride) {
  switch (count) {
    case 1: mix_rows_wide<1, kParts>(rows, tokens, weights, offset, sums, stride); break;
    case 2: mix_rows_wide<2, kParts>(rows, tokens, weights, offset, sums, stride); break;
    case 3: mix_rows_wide<3, kParts>(rows, tokens, weights, offset, sums, stride); break;
    default: mix_rows_wide<4, kParts>(rows, tokens, weights, offset, sums, stride);
  }
}

template <typename S>
void mix_units_wide(Work<bf16, S>& work, int64_t from, int64_t to) {
  int64_t rows = work.rows, dim = work.args.head_dim, stride = 2 + dim, tokens = to - from;
  const S* values[kChunk];
  for (int64_t head = 0; head < work.item.heads; ++head) {
    float* weights = work.score(head, 0);
    for (int64_t i = 0; i < tokens; ++i) values[i] = work.at(work.args.values, head, from + i);
    if (sizeof(S) == 1)
      for (int64_t i = 0; i < tokens; ++i) {
        float scale = scale_of(values[i], dim);
        for (int64_t row = 0; row < rows; ++row) weights[row * kChunk + i] *= scale;
      }
    for (int64_t row = 0; row < rows; row += 4) {
      int64_t count = std::min<int64_t>(4, rows - row);
      for (int64_t offset = 0; offset < dim;) {
        float *sums = work.sums(head, row) + offset, *of_rows = weights + row * kChunk;
        if (dim - offset >= 64) {
          mix_rows_wide<2>(count, values, tokens, of_rows, offset, sums, stride);
          offset += 64;
        } else {
          mix_rows_wide<1>(count, values, tokens, of_rows, offset, sums, stride);
          offset += 32;
        }
      }
    }
  }
}

template <typename S>
void mix_units(Work<bf16, S>& work, int64_t from, int64_t to) {
  const AttendArgs& args = work.args;
  int64_t rows = work.rows, dim = args.head_dim, stride = 2 + dim, tokens = (to - from + 1) & ~int64_t(1);
  const S* values[kChunk];
  float scales[kChunk] = {};
  int32_t weights[4 * kChunk / 2];
  for (int64_t head = 0; head < work.item.heads; ++head) {
    for (int64_t i = 0; i < tokens; ++i) {
      values[i] = work.at(args.values, head, std::min(from + i, to - 1));
      scales[i] = scale_of(values[i], dim);
    }
    for (int64_t row = 0; row < rows; row += 4) {
      int64_t count = std::min<int64_t>(4, rows - row);
      for (int64_t r = 0; r < count; ++r)
        for (int64_t i = 0; i < tokens; i += 32) {
          const float *weight = work.score(head, row + r) + i, *scale = scales + i;
          __m512 low = _mm512_loadu_ps(weight), high = _mm512_loadu_ps(weight + 16);
          if (sizeof(S) == 1) {
            low = _mm512_mul_ps(low, _mm512_loadu_ps(scale));
            high = _mm512_mul_ps(high, _mm512_loadu_ps(scale + 16));
          }
          _mm512_storeu_si512(weights + r * (kChunk / 2) + i / 2,
                              (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
      for (int64_t offset = 0; offset < dim; offset += 32) {
        float* sum = work.sums(head, row) + offset;
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

#endif

template <typename T, typename S>
void Work<T, S>::compare_with_units(int64_t from, int64_t to) {
#ifdef HAVE_BF16_UNITS
  if constexpr (std::is_same_v<T, bf16>) compare_units(*this, from, to);
#endif
}

template <typename T, typename S>
void Work<T, S>::mix_with_units(int64_t from, int64_t to) {
#ifdef HAVE_BF16_UNITS
  if constexpr (std::is_same_v<T, bf16>)
    wide_is_faster() ? mix_units_wide(*this, from, to) : mix_units(*this, from, to);
#endif
}

// Where dimension d of a sum lies.
inline int64_t place(int64_t d, bool units) {
  if (!units) return d;
  int64_t in_32 = d % 32, lane = in_32 / 8, in_lane = in_32 % 8;
#ifdef HAVE_BF16_UNITS
  if (wide_is_faster()) return d - in_32 + in_32 % 2 * 16 + in_32 / 2;
#endif
  return d - in_32 + (in_lane / 4) * 16 + lane * 4 + in_lane % 4;
}

// Joins the stretches of one (sequence, heads).
template <typename T>
void finish(const AttendArgs& args, const Item* items, int64_t count, const float* partials) {
  int64_t dim = args.head_dim, group = args.heads / args.kv_heads, rows = items[0].rows;
  std::vector<float> sums(dim);
  bool units = uses_units<T>(dim);
  for (int64_t row = 0; row < items[0].heads * rows; ++row) {
    int64_t head = (items[0].first_head + row / rows) * group + row % rows % group;
    float sink = args.sinks ? args.sinks[head] : -INFINITY;
    float best = sink, total = 0;
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
    if (args.sinks) total += exponential(sink - best);
    T* out = static_cast<T*>(args.output) + (token * args.heads + head) * dim;
    for (int64_t d = 0; d < dim; ++d) narrow(sums[place(d, units)] / total, out + d);
  }
}

template <typename T, typename S>
void attend(const AttendArgs& args) {
  std::vector<Item> items;
  std::vector<int64_t> starts;  // first item of each (sequence, heads)
  int64_t partial_size = 0, group = args.heads / args.kv_heads;
  int64_t heads = std::max<int64_t>(1, std::min(args.kv_heads, kStripe / args.head_dim));
  for (int64_t s = 0; s < args.sequences; ++s) {
    int64_t queries = args.query_starts[s + 1] - args.query_starts[s];
    if (queries < 1 || queries > args.max_queries) continue;  // padding has none
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
  team::Queue queue(num_items);
  team::run([&](int64_t) {
    queue.work([&](int64_t i) { Work<T, S>(args, items[i], partials.data()).run(); });
  });
  team::each_of(num_outputs, true, [&](int64_t o) {
    finish<T>(args, &items[starts[o]], starts[o + 1] - starts[o], partials.data());
  });
}

}  // namespace

extern "C" {

void keepwarm_attend_bf16(const AttendArgs* args) { attend<bf16, bf16>(*args); }
void keepwarm_attend_f32(const AttendArgs* args) { attend<float, float>(*args); }
void keepwarm_attend_bf16_int8(const AttendArgs* args) { attend<bf16, int8>(*args); }
void keepwarm_attend_f32_int8(const AttendArgs* args) { attend<float, int8>(*args); }
}
