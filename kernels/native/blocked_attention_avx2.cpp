// Attention over paged KV in blocks (blocked_attention.h) in single precision, on processors with
// AVX2 and without units for bf16. Specification: paged_attention_reference in kernels/attention.py.
//
// Keys are widened and laid out in groups of 16 tokens with the dimensions one behind the other,
// values are widened where many rows read them. Of each 16 dimensions the even ones come first,
// then the odd ones: so two operations widen 16 numbers in bf16.

#include "blocked_attention.h"

#ifdef HAVE_AVX2_ALONE

namespace {

struct Scratch : CommonScratch {
  alignas(64) float keys[kTile * kMostDim];    // [groups][dimensions][16]
  alignas(64) float values[kTile * kMostDim];  // [tokens][dimensions]
  alignas(64) float scores[kStripe / 32][6][kTile];  // [heads][rows]; then the weights
  std::vector<float> queries;  // [rows][head_dim]
};

// Where a dimension lies among those laid out.
inline int64_t place(int64_t d) { return d - d % 16 + d % 2 * 8 + d % 16 / 2; }
inline const float* in_order(const float* sums, float* ordered, int64_t dim) {
  for (int64_t d = 0; d < dim; ++d) ordered[d] = sums[place(d)];
  return ordered;
}

// 16 numbers in pairs of 16 bits, and pairs as floats: the even ones and the odd ones.
inline __m256i load_pairs(const bf16* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
inline __m256i load_pairs(const int8* from) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
template <typename S>
inline void widen_pairs(__m256i pairs, __m256* even, __m256* odd) {
  if (sizeof(S) == 1) {
    *even = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(pairs, 16), 16));
    *odd = _mm256_cvtepi32_ps(_mm256_srai_epi32(pairs, 16));
  } else {
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000))));
  }
}

// Transposes 8 x 8 elements of 32 bits.
inline __attribute__((always_inline)) void transpose_8(const __m256i* rows, __m256i* columns) {
  __m256i a[8], b[8];
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    columns[i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x20);
    columns[4 + i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x31);
  }
}

// 2^x for x <= 0 to float precision (Cephes' exp2f); 0 below what a float holds. NaN stays NaN.
inline __m256 power_of_two(__m256 x) {
  __m256 some = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ);
  __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 part = _mm256_sub_ps(x, whole);
  __m256 p = _mm256_set1_ps(1.535336188e-4f);
  p = _mm256_fmadd_ps(p, part, _mm256_set1_ps(1.339887440e-3f));
  p = _mm256_fmadd_ps(p, part, _mm256_set1_ps(9.618437357e-3f));
  p = _mm256_fmadd_ps(p, part, _mm256_set1_ps(5.550332471e-2f));
  p = _mm256_fmadd_ps(p, part, _mm256_set1_ps(2.402264791e-1f));
  p = _mm256_fmadd_ps(p, part, _mm256_set1_ps(6.931472029e-1f));
  p = _mm256_fmadd_ps(p, part, _mm256_set1_ps(1.0f));
  __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
  __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  return _mm256_and_ps(_mm256_mul_ps(p, power), some);
}

// The sum of eight, in one order.
inline float sum_of(__m256 eight) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

// kCount rows of ``left`` by 16 columns of ``right``, whose rows lie ``stride`` apart, for kWide of
// them, ``apart`` each: scores of 16 tokens, or 16 dimensions of what the weights mix.
template <int kCount, int kWide>
inline __attribute__((always_inline)) void multiply(const float* left, int64_t left_stride,
                                                    const float* right, int64_t stride,
                                                    int64_t apart, int64_t count,
                                                    __m256 (*sums)[2 * kWide]) {
  for (int r = 0; r < kCount; ++r)
    for (int w = 0; w < 2 * kWide; ++w) sums[r][w] = _mm256_setzero_ps();
  for (int64_t i = 0; i < count; ++i) {
    __m256 columns[2 * kWide];
    for (int w = 0; w < 2 * kWide; ++w)
      columns[w] = _mm256_load_ps(right + i * stride + w / 2 * apart + w % 2 * 8);
    for (int r = 0; r < kCount; ++r) {
      __m256 factor = _mm256_broadcast_ss(left + r * left_stride + i);
      for (int w = 0; w < 2 * kWide; ++w)
        sums[r][w] = _mm256_fmadd_ps(factor, columns[w], sums[r][w]);
    }
  }
}

// The same of values where they lie, while what is read ``next`` comes.
template <int kCount, int kWide, typename S>
inline __attribute__((always_inline)) void multiply_in_place(const float* weights,
                                                             const S* const* values,
                                                             const S* const* next, int64_t offset,
                                                             int64_t count,
                                                             __m256 (*sums)[2 * kWide]) {
  for (int r = 0; r < kCount; ++r)
    for (int w = 0; w < 2 * kWide; ++w) sums[r][w] = _mm256_setzero_ps();
  for (int64_t i = 0; i < count; ++i) {
    __m256 columns[2 * kWide];
    for (int w = 0; w < kWide; ++w)
      widen_pairs<S>(load_pairs(values[i] + offset + 16 * w), columns + 2 * w, columns + 2 * w + 1);
    __builtin_prefetch(next[i] + offset, 0, 2);
    for (int r = 0; r < kCount; ++r) {
      __m256 factor = _mm256_broadcast_ss(weights + r * kTile + i);
      for (int w = 0; w < 2 * kWide; ++w)
        sums[r][w] = _mm256_fmadd_ps(factor, columns[w], sums[r][w]);
    }
  }
}

// What was summed before, by a share, and what a block adds.
template <int kVectors>
inline void keep_and_add(float* sum, float keep, const __m256* mixed) {
  for (int i = 0; i < kVectors; ++i) {
    __m256 before = _mm256_mul_ps(_mm256_loadu_ps(sum + 8 * i), _mm256_set1_ps(keep));
    _mm256_storeu_ps(sum + 8 * i, _mm256_add_ps(before, mixed[i]));
  }
}

template <typename S>
struct Work : ItemWork<Work<S>, S, Scratch> {
  using Base = ItemWork<Work<S>, S, Scratch>;
  using Base::args, Base::at, Base::count, Base::dim, Base::find_values, Base::head,
      Base::item, Base::padded, Base::scratch, Base::values;

  using Base::Base;

  void reserve(int64_t rows) { scratch.queries.resize(rows * dim); }
  void take_query(int64_t row, const bf16* from) {
    float* to = scratch.queries.data() + row * dim;
    for (int64_t d = 0; d < dim; ++d) to[place(d)] = widen(from[d]);
  }

  void take_block(int64_t from, int64_t to) {
    for (int64_t i = 0; i < padded; i += 16) {
      turn_keys(from, i, to, kTile, scratch.keys + i * dim);
    }
    find_values(from, to);
    for (int64_t i = 0; i < padded; ++i)
      for (int64_t d = 0; d < dim; d += 16) {
        __m256 even, odd;
        widen_pairs<S>(load_pairs(values[i] + d), &even, &odd);
        _mm256_store_ps(scratch.values + i * dim + d, even);
        _mm256_store_ps(scratch.values + i * dim + d + 8, odd);
      }
    Base::take_rows(from, to);
  }

  // The block for the few rows of some heads: the heads' keys lie one behind the other, and what is
  // read next comes meanwhile.
  template <int kCount>
  void take_thin(int64_t from, int64_t to) {
    constexpr int kWide = kCount < 4 ? 2 : 1;  // sums that do not wait for each other
    int64_t end = item.first_head + item.heads;
    for (int64_t i = 0; i < padded; i += 16 * kWide)
      for (head = item.first_head; head < end; ++head) {
        int64_t nth = head - item.first_head, groups = std::min<int64_t>(kWide, (padded - i) / 16);
        for (int64_t g = 0; g < groups; ++g)
          turn_keys(from, i + 16 * g, to, kAhead, scratch.keys + 16 * g * dim);
        float* scores = scratch.scores[nth][0] + i;
        groups == kWide ? score<kCount, kWide>(nth * count, scratch.keys, scores)
                        : score<kCount, 1>(nth * count, scratch.keys, scores);
      }
    for (head = item.first_head; head < end; ++head) {
      int64_t nth = head - item.first_head;
      const Row* rows = scratch.rows.data() + nth * count;
      const S* next[kTile];
      find_values(from, to);
      this->find(args.keys, std::min(from + kTile, item.end - 1), padded, item.end, next);
      float keep[kCount];
      for (int r = 0; r < kCount; ++r) keep[r] = weigh(scratch.scores[nth][r], rows[r], from, to);
      for (int64_t d = 0; d < dim; d += 16 * kWide) {
        __m256 mixed[kCount][2 * kWide];
        multiply_in_place<kCount, kWide>(scratch.scores[nth][0], values, next, d, padded, mixed);
        for (int r = 0; r < kCount; ++r)
          keep_and_add<2 * kWide>(rows[r].partial + 2 + d, keep[r], mixed[r]);
      }
    }
  }

  // The keys of 16 tokens, dimensions one behind the other. Tokens past the end repeat the last one,
  // here and among the values; they are never seen.
  void turn_keys(int64_t from, int64_t i, int64_t to, int64_t ahead, float* out) {
    const S* rows[16];
    this->find(args.keys, from + i, 16, to, rows);
    int64_t next = std::min(from + i + ahead, item.end - 1);
    const char* keys = reinterpret_cast<const char*>(at(args.keys, next));
    const char* values = reinterpret_cast<const char*>(at(args.values, from + i));
    if (sizeof(S) == 1)
      for (int64_t t = 0; t < 16; ++t)
        scratch.key_scales[head - item.first_head][i + t] = scale_of(rows[t], dim);
    for (int64_t offset = 0; offset < dim; offset += 16)
      for (int64_t half = 0; half < 16; half += 8) {
        __m256i pairs[8], turned[8];
        for (int t = 0; t < 8; ++t) {
          pairs[t] = load_pairs(rows[half + t] + offset);
          const char*& line = t % 2 ? values : keys;
          __builtin_prefetch(line, 0, 2);
          line += 32 * sizeof(S);
        }
        transpose_8(pairs, turned);
        for (int t = 0; t < 8; ++t) {
          __m256 even, odd;
          widen_pairs<S>(turned[t], &even, &odd);
          _mm256_store_ps(out + (offset + t) * 16 + half, even);
          _mm256_store_ps(out + (offset + 8 + t) * 16 + half, odd);
        }
      }
  }

  // Scores of kWide groups of 16 tokens, side by side.
  template <int kCount, int kWide>
  void score(int64_t row, const float* keys, float* scores) {
    __m256 sums[kCount][2 * kWide];
    const float* queries = scratch.queries.data() + row * dim;
    multiply<kCount, kWide>(queries, dim, keys, 16, 16 * dim, dim, sums);
    for (int r = 0; r < kCount; ++r)
      for (int w = 0; w < 2 * kWide; ++w) _mm256_store_ps(scores + r * kTile + 8 * w, sums[r][w]);
  }

  // The present block for kCount rows.
  template <int kCount>
  void take(int64_t row, int64_t from, int64_t to) {
    const Row* rows = scratch.rows.data() + row;
    if (!Base::seen(rows, kCount, from, to)) return;
    float* scores = scratch.scores[0][0];
    for (int64_t i = 0; i < padded; i += 16)
      score<kCount, 1>(row, scratch.keys + i * dim, scores + i);
    float keep[kCount];
    for (int r = 0; r < kCount; ++r) keep[r] = weigh(scores + r * kTile, rows[r], from, to);
    for (int64_t d = 0; d < dim; d += 16) {
      __m256 mixed[kCount][2];
      multiply<kCount, 1>(scores, kTile, scratch.values + d, dim, 0, padded, mixed);
      for (int r = 0; r < kCount; ++r) keep_and_add<2>(rows[r].partial + 2 + d, keep[r], mixed[r]);
    }
  }

  // Scores of a row to weights relative to its running maximum, in place; returns what of older sums
  // stays.
  float weigh(float* scores, const Row& row, int64_t from, int64_t to) {
    float* state = row.partial;
    int64_t begin = std::min(std::max(from, row.low), to) - from;
    int64_t end = std::max(std::min(to, row.high) - from, begin);
    std::fill(scores, scores + begin, -INFINITY);
    std::fill(scores + end, scores + padded, -INFINITY);
    __m256 most = _mm256_set1_ps(-INFINITY);
    for (int64_t i = 0; i < padded; i += 8) {
      __m256 score = _mm256_load_ps(scores + i);
      if (sizeof(S) == 1) {
        const float* scales = scratch.key_scales[head - item.first_head];
        score = _mm256_mul_ps(score, _mm256_load_ps(scales + i));
        _mm256_store_ps(scores + i, score);
      }
      most = _mm256_max_ps(score, most);  // passes NaN over; it gets into the sum below
    }
    alignas(32) float lanes[8];
    _mm256_store_ps(lanes, most);
    float scale = args.scale * kLog2E;
    float best = std::max(state[0], *std::max_element(lanes, lanes + 8) * scale);
    if (best == -INFINITY) {
      for (int64_t i = begin; i < end; ++i)
        if (scores[i] != scores[i]) state[1] = NAN;
      std::fill(scores, scores + padded, 0.0f);
      return 1.0f;
    }
    __m256 total = _mm256_setzero_ps();
    __m256 times = _mm256_set1_ps(scale), top = _mm256_set1_ps(best);
    for (int64_t i = 0; i < padded; i += 8) {
      __m256 weight = power_of_two(_mm256_fmsub_ps(_mm256_load_ps(scores + i), times, top));
      total = _mm256_add_ps(total, weight);
      if (sizeof(S) == 1) weight = _mm256_mul_ps(weight, _mm256_load_ps(scratch.value_scales + i));
      _mm256_store_ps(scores + i, weight);
    }
    float keep = state[0] == -INFINITY ? 0.0f : std::exp2(state[0] - best);
    state[0] = best;
    state[1] = state[1] * keep + sum_of(total);
    return keep;
  }
};

}  // namespace

extern "C" {

int keepwarm_has_attend_blocked() { return 1; }
void keepwarm_attend_blocked(const AttendArgs* args) {
  attend_in_blocks<Work<bf16>, Scratch>(*args, in_order);
}
void keepwarm_attend_blocked_int8(const AttendArgs* args) {
  attend_in_blocks<Work<int8>, Scratch>(*args, in_order);
}
}

#endif
