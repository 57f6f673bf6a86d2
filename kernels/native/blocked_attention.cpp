// Attention over paged KV by the units for bf16, in blocks (blocked_attention.h). Specification:
// paged_attention_reference in kernels/attention.py.
//
// Keys are laid out in groups of 16 tokens with the pairs of dimensions one behind the other, values
// by pairs of tokens.

#include "blocked_attention_bf16.h"
#include "matrix_unit.h"

#ifdef HAVE_BF16_UNITS

namespace {

struct Scratch : CommonScratch {
  alignas(64) __m512i keys[kTile / 16 * kMostDim / 2];    // [group / 4][dimensions / 2][group % 4]
  alignas(64) __m512i values[kTile / 2 * kMostDim / 16];  // [tokens / 2][dimensions / 16]
  alignas(64) float scores[kStripe / 32][6][kTile];  // [heads][rows]
  alignas(64) int32_t weights[6][kTile / 2];
  std::vector<bf16> queries;  // [rows][head_dim]
};

// The compiler is told what to inline: left alone it makes calls of the loops over registers, and one
// function of all the ways through a block.
#define INLINED inline __attribute__((always_inline))
#define APART __attribute__((noinline))

// Scores of kWide groups of 16 tokens for kCount rows; keys of kStep groups are side by side.
template <int kCount, int kWide, int kStep>
INLINED void score(const int32_t* queries, int64_t pairs, const __m512i* keys, float* scores) {
  __m512 sums[kCount][kWide];
  for (int r = 0; r < kCount; ++r)
    for (int g = 0; g < kWide; ++g) sums[r][g] = _mm512_setzero_ps();
  for (int64_t p = 0; p < pairs; ++p) {
    __m512bh key[kWide];
    for (int g = 0; g < kWide; ++g) key[g] = as_bf16(_mm512_load_si512(keys + kStep * p + g));
    for (int r = 0; r < kCount; ++r) {
      __m512bh query = as_bf16(_mm512_set1_epi32(queries[r * pairs + p]));
      for (int g = 0; g < kWide; ++g) sums[r][g] = _mm512_dpbf16_ps(sums[r][g], key[g], query);
    }
  }
  for (int r = 0; r < kCount; ++r)
    for (int g = 0; g < kWide; ++g) _mm512_store_ps(scores + r * kTile + 16 * g, sums[r][g]);
}

// Scores of 16 tokens for kCount rows, while keys from ``next`` on are asked for.
template <int kCount>
INLINED void score_and_ask(const int32_t* queries, int64_t pairs, const __m512i* keys, float* scores,
                           const char* next, int64_t step) {
  __m512 sums[kCount];
  for (int r = 0; r < kCount; ++r) sums[r] = _mm512_setzero_ps();
  for (int64_t p = 0; p < pairs; ++p, next += step) {
    _mm_prefetch(next, _MM_HINT_T0);
    __m512bh key = as_bf16(_mm512_load_si512(keys + p));
    for (int r = 0; r < kCount; ++r)
      sums[r] = _mm512_dpbf16_ps(sums[r], key, as_bf16(_mm512_set1_epi32(queries[r * pairs + p])));
  }
  for (int r = 0; r < kCount; ++r) _mm512_store_ps(scores + r * kTile, sums[r]);
}

// What was summed before, by a share, and what a block adds.
inline void keep_and_add(float* sum, float keep, __m512 mixed) {
  __m512 before = _mm512_mul_ps(_mm512_loadu_ps(sum), _mm512_set1_ps(keep));
  _mm512_storeu_ps(sum, _mm512_add_ps(before, mixed));
}

// Adds the values of a block, each times its weight, to 16 * kWide dimensions of kCount rows.
template <int kCount, int kWide>
INLINED void mix(const int32_t* weights, int64_t pairs, const __m512i* values, int64_t stride,
                const float* keep, float* const* sums) {
  __m512 mixed[kCount][kWide];
  for (int r = 0; r < kCount; ++r)
    for (int g = 0; g < kWide; ++g) mixed[r][g] = _mm512_setzero_ps();
  for (int64_t p = 0; p < pairs; ++p) {
    __m512bh value[kWide];
    for (int g = 0; g < kWide; ++g) value[g] = as_bf16(_mm512_load_si512(values + p * stride + g));
    for (int r = 0; r < kCount; ++r) {
      __m512bh weight = as_bf16(_mm512_set1_epi32(weights[r * (kTile / 2) + p]));
      for (int g = 0; g < kWide; ++g) mixed[r][g] = _mm512_dpbf16_ps(mixed[r][g], value[g], weight);
    }
  }
  for (int r = 0; r < kCount; ++r)
    for (int g = 0; g < kWide; ++g) keep_and_add(sums[r] + 16 * g, keep[r], mixed[r][g]);
}

// The same for 32 * kParts dimensions of values where they lie: the sums are put into order at the
// end, since unpacking leaves dimensions 0 to 3, 8 to 11, 16 to 19 and 24 to 27 in one half.
template <int kCount, int kParts, typename S>
inline void mix_in_place(const int32_t* weights, int64_t pairs, const S* const* values,
                         int64_t offset, const float* keep, float* const* sums) {
  __m512 low[kCount][kParts], high[kCount][kParts];
  for (int r = 0; r < kCount; ++r)
    for (int g = 0; g < kParts; ++g) low[r][g] = high[r][g] = _mm512_setzero_ps();
  for (int64_t p = 0; p < pairs; ++p) {
    __m512bh left[kParts], right[kParts];
    for (int g = 0; g < kParts; ++g) {
      __m512i first = load_32(values[2 * p] + offset + 32 * g);
      __m512i second = load_32(values[2 * p + 1] + offset + 32 * g);
      left[g] = as_bf16(_mm512_unpacklo_epi16(first, second));
      right[g] = as_bf16(_mm512_unpackhi_epi16(first, second));
    }
    for (int r = 0; r < kCount; ++r) {
      __m512bh weight = as_bf16(_mm512_set1_epi32(weights[r * (kTile / 2) + p]));
      for (int g = 0; g < kParts; ++g) {
        low[r][g] = _mm512_dpbf16_ps(low[r][g], left[g], weight);
        high[r][g] = _mm512_dpbf16_ps(high[r][g], right[g], weight);
      }
    }
  }
  const __m512i lower = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i upper = _mm512_add_epi32(lower, _mm512_set1_epi32(8));
  for (int r = 0; r < kCount; ++r)
    for (int g = 0; g < kParts; ++g) {
      float* sum = sums[r] + offset + 32 * g;
      keep_and_add(sum, keep[r], _mm512_permutex2var_ps(low[r][g], lower, high[r][g]));
      keep_and_add(sum + 16, keep[r], _mm512_permutex2var_ps(low[r][g], upper, high[r][g]));
    }
}

template <typename S>
struct Work : Bf16Work<Work<S>, S, Scratch> {
  using Base = Bf16Work<Work<S>, S, Scratch>;
  using Base::args, Base::count, Base::dim, Base::fetch, Base::find_values, Base::head, Base::item,
      Base::padded, Base::scratch, Base::values;
  int64_t pairs = dim / 2;

  using Base::Base;

  void reserve(int64_t rows) { scratch.queries.resize(rows * dim); }
  void take_query(int64_t row, const bf16* from) {
    std::memcpy(scratch.queries.data() + row * dim, from, dim * sizeof(bf16));
  }

  void take_block(int64_t from, int64_t to) {
    lay_out_keys(from, to);
    lay_out_values(from, to);
    Base::take_rows(from, to);
  }

  // The block for the few rows of some heads. Nothing is used twice, so memory is what takes time:
  // the heads' keys lie one behind the other, and what is read next comes meanwhile.
  template <int kCount>
  APART void take_thin(int64_t from, int64_t to) {
    int64_t end = item.first_head + item.heads, step = Base::ask_step();
    for (int64_t i = 0; i < padded; i += 16)
      for (head = item.first_head; head < end; ++head) {
        Base::template turn_keys<1>(from, i, to, scratch.keys);
        int64_t nth = head - item.first_head;
        const bf16* queries = scratch.queries.data() + nth * count * dim;
        const int32_t* q = reinterpret_cast<const int32_t*>(queries);
        const S* next = Base::at(args.keys, std::min(from + i + 16, item.end - 1));
        score_and_ask<kCount>(q, pairs, scratch.keys, scratch.scores[nth][0] + i,
                              reinterpret_cast<const char*>(next), step);
      }
    for (head = item.first_head; head < end; ++head) {
      int64_t nth = head - item.first_head;
      const Row* rows = scratch.rows.data() + nth * count;
      find_values(from, to);
      float keep[kCount];
      float* sums[kCount];
      Base::template weigh<kCount>(scratch.scores[nth], scratch.weights, rows, from, to, keep);
      for (int r = 0; r < kCount; ++r) sums[r] = rows[r].partial + 2;
      for (int64_t d = 0; d < dim; d += 64)
        d + 64 <= dim
            ? mix_in_place<kCount, 2>(scratch.weights[0], padded / 2, values, d, keep, sums)
            : mix_in_place<kCount, 1>(scratch.weights[0], padded / 2, values, d, keep, sums);
    }
  }

  void lay_out_keys(int64_t from, int64_t to) {
    for (int64_t i = 0; i < padded; i += 16) {
      if (from + kTile + i < item.end) fetch(args.keys, from + kTile + i);
      Base::template turn_keys<4>(from, i, to, scratch.keys + i / 64 * pairs * 4 + i / 16 % 4);
    }
  }

  void lay_out_values(int64_t from, int64_t to) {
    find_values(from, to);
    alignas(64) int16_t order[32];
    for (int i = 0; i < 16; ++i) order[2 * i] = i, order[2 * i + 1] = 32 + i;
    __m512i lower = _mm512_load_si512(order);
    __m512i upper = _mm512_add_epi16(lower, _mm512_set1_epi16(16));
    for (int64_t i = 0; i < padded; i += 2) {
      __m512i* out = scratch.values + i / 2 * (dim / 16);
      for (int64_t offset = 0; offset < dim; offset += 32) {
        __m512i a = load_32(values[i] + offset), b = load_32(values[i + 1] + offset);
        out[offset / 16] = _mm512_permutex2var_epi16(a, lower, b);
        out[offset / 16 + 1] = _mm512_permutex2var_epi16(a, upper, b);
      }
    }
  }

  // The present block for kCount rows.
  template <int kCount>
  APART void take(int64_t row, int64_t from, int64_t to) {
    const Row* rows = scratch.rows.data() + row;
    if (!Base::seen(rows, kCount, from, to)) return;
    const int32_t* q = reinterpret_cast<const int32_t*>(scratch.queries.data() + row * dim);
    int64_t groups = padded / 16, g = 0;
    for (; g + 4 <= groups; g += 4)
      score<kCount, 4, 4>(q, pairs, scratch.keys + g * pairs, scratch.scores[0][0] + 16 * g);
    for (; g < groups; ++g) {
      const __m512i* keys = scratch.keys + (g & ~int64_t(3)) * pairs + g % 4;
      score<kCount, 1, 4>(q, pairs, keys, scratch.scores[0][0] + 16 * g);
    }
    float keep[kCount];
    float* sums[kCount];
    Base::template weigh<kCount>(scratch.scores[0], scratch.weights, rows, from, to, keep);
    for (int r = 0; r < kCount; ++r) sums[r] = rows[r].partial + 2;
    const int32_t* weights = scratch.weights[0];
    for (int64_t d = 0; d < dim; d += 64) {
      float* part[kCount];
      for (int r = 0; r < kCount; ++r) part[r] = sums[r] + d;
      const __m512i* values = scratch.values + d / 16;
      d + 64 <= dim ? mix<kCount, 4>(weights, padded / 2, values, dim / 16, keep, part)
                    : mix<kCount, 2>(weights, padded / 2, values, dim / 16, keep, part);
    }
  }
};

}  // namespace

extern "C" {

int keepwarm_has_attend_blocked() { return keepwarm_has_matrix_unit() || !wide_is_faster(); }
void keepwarm_attend_blocked(const AttendArgs* args) {
  if (keepwarm_has_matrix_unit()) return keepwarm_attend_matrix(args);
  attend_in_blocks<Work<bf16>, Scratch>(*args, as_they_lie);
}
void keepwarm_attend_blocked_int8(const AttendArgs* args) {
  if (keepwarm_has_matrix_unit()) return keepwarm_attend_matrix_int8(args);
  attend_in_blocks<Work<int8>, Scratch>(*args, as_they_lie);
}
}

#elif !defined(HAVE_AVX2_ALONE)

extern "C" {

int keepwarm_has_attend_blocked() { return 0; }
void keepwarm_attend_blocked(const AttendArgs*) {}
void keepwarm_attend_blocked_int8(const AttendArgs*) {}
}

#endif
