// What attention in blocks (blocked_attention.h) by the units for bf16 and by the matrix unit have in
// common: how keys are turned, and the softmax.

#pragma once

#include "blocked_attention.h"

#ifdef HAVE_BF16_UNITS

namespace {

// 2^x for x <= 0 to four digits, of which rounding to bf16 leaves less than three; NaN stays NaN.
inline __m512 power_of_two(__m512 x) {
  __m512 part = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // 0 of -infinity
  __m512 p = _mm512_set1_ps(7.80245364e-2f);
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(2.26067200e-1f));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(6.95833504e-1f));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(9.99925256e-1f));
  return _mm512_scalef_ps(p, x);  // times two to the largest whole number up to x
}

// ``Scratch`` has ``weights`` [rows][tokens / 2] in pairs.
template <typename Units, typename S, typename Scratch>
struct Bf16Work : ItemWork<Units, S, Scratch> {
  using Base = ItemWork<Units, S, Scratch>;
  using Base::args, Base::at, Base::dim, Base::head, Base::item, Base::padded, Base::scratch;

  using Base::Base;

  // The keys of 16 tokens, dimensions one behind the other, every kStep'th place, while their values
  // are asked for: evenly, since of many asked for at once most are not brought. Tokens past the end
  // repeat the last one, here and among the values; they are never seen.
  template <int kStep>
  void turn_keys(int64_t from, int64_t i, int64_t to, __m512i* out) {
    const S* rows[16];
    Base::find_16(args.keys, from + i, to, rows);
    if (sizeof(S) == 1)
      for (int64_t t = 0; t < 16; ++t)
        scratch.key_scales[head - item.first_head][i + t] = scale_of(rows[t], dim);
    const char* values = reinterpret_cast<const char*>(at(args.values, from + i));
    int64_t step = Base::ask_step();
    for (int64_t offset = 0; offset < dim; offset += 32, out += 16 * kStep) {
      __m512i pairs_of_token[16], turned[16];
      for (int t = 0; t < 16; ++t, values += step) {
        _mm_prefetch(values, _MM_HINT_T1);
        pairs_of_token[t] = load_32(rows[t] + offset);
      }
      transpose(pairs_of_token, turned);
      for (int p = 0; p < 16; ++p) _mm512_store_si512(out + kStep * p, turned[p]);
    }
  }

  // Scores of some rows to weights relative to their running maxima; ``keep`` is what of older sums
  // stays. One thing is done for all rows before the next: each waits for itself otherwise.
  template <int kCount>
  void weigh(float (*scores)[kTile], int32_t (*weights)[kTile / 2], const Row* rows, int64_t from,
             int64_t to, float* keep) {
    float scale = args.scale * kLog2E, best[kCount];
    __m512 totals[kCount];
    for (int r = 0; r < kCount; ++r)
      best[r] = std::max(rows[r].partial[0], largest(scores[r], rows[r], from, to) * scale);
    for (int r = 0; r < kCount; ++r) {
      float top = best[r] == -INFINITY ? 0.0f : best[r];  // nothing seen: all weights are 0
      totals[r] = exponentials(scores[r], weights[r], scale, top);
    }
    for (int r = 0; r < kCount; ++r) {
      float* state = rows[r].partial;
      keep[r] = state[0] == best[r] ? 1.0f : std::exp2(state[0] - best[r]);  // 0 at first
      state[0] = best[r];
      state[1] = state[1] * keep[r] + _mm512_reduce_add_ps(totals[r]);
    }
  }

  // The largest score that a row sees, NaN passed over: it gets into the sum. What the row does not
  // see becomes the smallest there is.
  float largest(float* scores, const Row& row, int64_t from, int64_t to) {
    int64_t begin = std::min(std::max(from, row.low), to) - from;
    int64_t end = std::max(std::min(to, row.high) - from, begin);
    if (begin) std::fill(scores, scores + begin, -INFINITY);
    if (end < padded) std::fill(scores + end, scores + padded, -INFINITY);
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (int64_t i = 0; i < padded; i += 16) {
      __m512 score = _mm512_load_ps(scores + i);
      if (sizeof(S) == 1) {
        score = _mm512_mul_ps(score, _mm512_load_ps(scratch.key_scales[head - item.first_head] + i));
        _mm512_store_ps(scores + i, score);
      }
      most = _mm512_max_ps(score, most);
    }
    return _mm512_reduce_max_ps(most);
  }

  // 2^(score * scale - top) of each score, in pairs; returns their sums.
  __m512 exponentials(const float* scores, int32_t* weights, float scale, float top) {
    __m512 total = _mm512_setzero_ps(), times = _mm512_set1_ps(scale), less = _mm512_set1_ps(top);
    __m512bh ones = as_bf16(_mm512_set1_epi32(0x3f803f80));
    for (int64_t i = 0; i < padded; i += 32) {
      __m512 low = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(scores + i), times, less));
      __m512 high = _mm512_setzero_ps();
      if (i + 16 < padded)
        high = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(scores + i + 16), times, less));
      __m512bh both = _mm512_cvtne2ps_pbh(high, low);
      total = _mm512_dpbf16_ps(total, both, ones);
      if (sizeof(S) == 1) {
        low = _mm512_mul_ps(low, _mm512_load_ps(scratch.value_scales + i));
        if (i + 16 < padded)
          high = _mm512_mul_ps(high, _mm512_load_ps(scratch.value_scales + i + 16));
        both = _mm512_cvtne2ps_pbh(high, low);
      }
      _mm512_store_si512(weights + i / 2, (__m512i)both);
    }
    return total;
  }
};

}  // namespace

#endif
