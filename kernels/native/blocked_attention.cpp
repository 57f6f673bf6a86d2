// Attention over paged KV by the units for bf16, in blocks of queries and of context that stay in
// the caches (FlashAttention-2, Dao 2023). Specification: paged_attention_reference in
// kernels/attention.py.
//
// A block of the context is laid out once for all query rows of a kv head: keys in groups of 16
// tokens with the pairs of dimensions one behind the other, values by pairs of tokens. Six rows at
// a time are compared with it, weighed and mixed, in registers and the first-level cache. Decodes
// whose contexts begin with the same blocks read those together.
//
// Work is split on a grid over each sequence's positions that depends on its own number of queries
// alone, and every row's sums are made in one order; so neither the number of threads nor the
// neighbours in the batch, shared blocks included, change a sequence's arithmetic.

#include <memory>
#include <unordered_map>

#include "paged_attention.h"

#ifdef HAVE_BF16_UNITS

namespace {

constexpr int64_t kTile = 128;       // tokens of a block of the context
constexpr int64_t kRows = 192;       // query rows of a kv head in an item, at most
constexpr int64_t kFewRows = 48;     // so few of a sequence are split finely, and share
constexpr int64_t kThinRows = 4;     // so few do not pay for laying values out
constexpr int64_t kStripe = 1024;    // kv_heads * head_dim of an item with few rows
constexpr int64_t kMostDim = 256;
constexpr int64_t kAhead = 32;       // tokens between asking for keys and reading them
constexpr float kLog2E = 1.44269504f;

// Tokens between two points of the grid, by the query rows of a kv head: more rows have more to
// join, and fill the threads without it.
inline int64_t split_tokens(int64_t rows) {
  return rows <= kFewRows ? 256 : rows <= kRows ? 1024 : int64_t(1) << 40;
}

// Some query rows of one sequence, and where their results lie: [kv_heads][splits][rows][2 +
// head_dim], maximum, sum and weighted values.
struct Part {
  int64_t sequence, first_row, rows, split, first_split, splits, partial;
  int64_t begin, end;  // the tokens that any of its rows sees
  int64_t whole;       // stretches of the grid that each of its rows sees all of
  int64_t shared;      // stretches from the first on that are computed together with other parts
};

// A stretch of context for some kv heads and the rows of parts that read the same blocks there.
struct Item {
  int64_t first_member, members, first_head, heads, index, begin, end;
};

struct Plan {
  std::vector<Part> parts;
  std::vector<Item> items;
  std::vector<int32_t> members;  // indices of parts, by item
  int64_t partial_size = 0;
};

struct Row {
  float* partial;
  int64_t low, high;  // the tokens that it sees: [low, high)
};

struct Scratch {
  alignas(64) __m512i keys[kTile / 16 * kMostDim / 2];    // [group / 4][dimensions / 2][group % 4]
  alignas(64) __m512i values[kTile / 2 * kMostDim / 16];  // [tokens / 2][dimensions / 16]
  alignas(64) float scores[kStripe / 32][6][kTile];  // [heads][rows]
  alignas(64) int32_t weights[6][kTile / 2];
  alignas(64) float key_scales[kStripe / 32][kTile];
  alignas(64) float value_scales[kTile];
  std::vector<bf16> queries;  // [rows][head_dim]
  std::vector<Row> rows;
};

// 2^x for x <= 0 to four digits, of which rounding to bf16 leaves less than three; 0 below what a
// float holds. NaN stays NaN.
inline __m512 power_of_two(__m512 x) {
  __mmask16 some = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 part = _mm512_sub_ps(x, whole);
  __m512 p = _mm512_set1_ps(9.61812911e-3f);
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(5.55041087e-2f));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(2.40226507e-1f));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(6.93147182e-1f));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(some, p, whole);
}

// Scores of kWide groups of 16 tokens for kCount rows; keys of kStep groups are side by side.
template <int kCount, int kWide, int kStep>
inline void score(const int32_t* queries, int64_t pairs, const __m512i* keys, float* scores) {
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

// What was summed before, by a share, and what a block adds.
inline void keep_and_add(float* sum, float keep, __m512 mixed) {
  __m512 before = _mm512_mul_ps(_mm512_loadu_ps(sum), _mm512_set1_ps(keep));
  _mm512_storeu_ps(sum, _mm512_add_ps(before, mixed));
}

// Adds the values of a block, each times its weight, to 16 * kWide dimensions of kCount rows.
template <int kCount, int kWide>
inline void mix(const int32_t* weights, int64_t pairs, const __m512i* values, int64_t stride,
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
struct Work {
  const AttendArgs& args;
  const Plan& plan;
  const Item& item;
  Scratch& scratch;
  float* partials;
  const int32_t* table;
  int64_t group, block_shift, dim, pairs, head, count = 0;
  int64_t padded = 0;  // tokens of the present block, a multiple of 16
  bool thin = false;
  const S* values[kTile];

  Work(const AttendArgs& a, const Plan& p, const Item& it, Scratch& s, float* out)
      : args(a), plan(p), item(it), scratch(s), partials(out) {
    group = a.heads / a.kv_heads, dim = a.head_dim, pairs = dim / 2;
    block_shift = __builtin_ctzll(a.block_size);
    table = a.block_tables + part(0).sequence * a.table_stride;
  }

  const Part& part(int64_t member) const {
    return plan.parts[plan.members[item.first_member + member]];
  }

  // The item's rows of the present head.
  void gather() {
    int64_t at = (head - item.first_head) * count, stride = 2 + dim;
    for (int64_t m = 0; m < item.members; ++m) {
      const Part& p = part(m);
      int64_t first = args.query_starts[p.sequence];
      int64_t num_queries = args.query_starts[p.sequence + 1] - first;
      int64_t seen = args.context_lengths[p.sequence] - num_queries + 1;
      const bf16* source = static_cast<const bf16*>(args.queries) + head * group * dim;
      float* partial = partials + p.partial + (head * p.splits + item.index) * p.rows * stride;
      for (int64_t row = 0; row < p.rows; ++row, ++at) {
        int64_t query = (p.first_row + row) / group, within = (p.first_row + row) % group;
        const bf16* from = source + (first + query) * args.query_stride + within * dim;
        std::memcpy(scratch.queries.data() + at * dim, from, dim * sizeof(bf16));
        float* state = partial + row * stride;
        std::fill(state, state + stride, 0.0f);
        state[0] = -INFINITY;
        int64_t high = seen + query;
        int64_t low = args.window > 0 ? std::max<int64_t>(0, high - args.window) : 0;
        scratch.rows[at] = {state, low, high};
      }
    }
  }

  // Where a token's key or value lies.
  const S* at(const void* base, int64_t token) const {
    int64_t block = table[token >> block_shift], offset = token & (args.block_size - 1);
    int64_t row = ((block * args.kv_heads + head) << block_shift) + offset;
    return static_cast<const S*>(base) + row * row_size<S>(dim);
  }

  void run() {
    int64_t end = item.first_head + item.heads;
    for (int64_t m = 0; m < item.members; ++m) count += part(m).rows;
    thin = count <= kThinRows;
    scratch.queries.resize(item.heads * count * dim);
    scratch.rows.resize(item.heads * count);
    for (head = item.first_head; head < end; ++head) gather();
    for (int64_t from = item.begin; from < item.end; from += kTile) {
      int64_t to = std::min(from + kTile, item.end);
      padded = (to - from + 15) & ~int64_t(15);
      if (thin) switch (count) {
          case 1: take_thin<1>(from, to); break;
          case 2: take_thin<2>(from, to); break;
          case 3: take_thin<3>(from, to); break;
          default: take_thin<4>(from, to);
        }
      else
        take_block(from, to);
    }
  }

  void take_block(int64_t from, int64_t to) {
    head = item.first_head;
    lay_out_keys(from, to);
    lay_out_values(from, to);
    for (int64_t row = 0; row < count; row += 6) switch (count - row) {
        case 1: take<1>(row, from, to); break;
        case 2: take<2>(row, from, to); break;
        case 3: take<3>(row, from, to); break;
        case 4: take<4>(row, from, to); break;
        case 5: take<5>(row, from, to); break;
        default: take<6>(row, from, to);
      }
  }

  // The block for the few rows of some heads. Nothing is used twice, so memory is what takes time:
  // the heads' keys lie one behind the other, and what is read next comes meanwhile.
  template <int kCount>
  void take_thin(int64_t from, int64_t to) {
    int64_t end = item.first_head + item.heads;
    for (int64_t i = 0; i < padded; i += 16)
      for (head = item.first_head; head < end; ++head) {
        fetch(args.values, from + i);
        if (from + i + kAhead < item.end) fetch(args.keys, from + i + kAhead);
        turn_keys<1>(from, i, to, scratch.keys);
        int64_t nth = head - item.first_head;
        const bf16* queries = scratch.queries.data() + nth * count * dim;
        const int32_t* q = reinterpret_cast<const int32_t*>(queries);
        score<kCount, 1, 1>(q, pairs, scratch.keys, scratch.scores[nth][0] + i);
      }
    for (head = item.first_head; head < end; ++head) {
      int64_t nth = head - item.first_head;
      const Row* rows = scratch.rows.data() + nth * count;
      find_values(from, to);
      float keep[kCount];
      float* sums[kCount];
      for (int r = 0; r < kCount; ++r) {
        keep[r] = weigh(scratch.scores[nth][r], r, rows[r], from, to);
        sums[r] = rows[r].partial + 2;
      }
      for (int64_t d = 0; d < dim; d += 64)
        d + 64 <= dim
            ? mix_in_place<kCount, 2>(scratch.weights[0], padded / 2, values, d, keep, sums)
            : mix_in_place<kCount, 1>(scratch.weights[0], padded / 2, values, d, keep, sums);
    }
  }

  // Always inlined: as a call it counts as having no effect, and the compiler drops it.
  __attribute__((always_inline)) void fetch(const void* base, int64_t token) const {
    const char* from = reinterpret_cast<const char*>(at(base, token));
    int64_t bytes = std::min<int64_t>(16, args.block_size) * row_size<S>(dim) * sizeof(S);
    for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(from + i, _MM_HINT_T1);
  }

  // The keys of 16 tokens, dimensions one behind the other, every kStep'th place. Tokens past the
  // end repeat the last one, here and among the values; they are never seen.
  template <int kStep>
  void turn_keys(int64_t from, int64_t i, int64_t to, __m512i* out) {
    const S* rows[16];
    for (int64_t t = 0; t < 16; ++t) {
      rows[t] = at(args.keys, std::min(from + i + t, to - 1));
      if (sizeof(S) == 1) scratch.key_scales[head - item.first_head][i + t] = scale_of(rows[t], dim);
    }
    for (int64_t offset = 0; offset < dim; offset += 32, out += 16 * kStep) {
      __m512i pairs_of_token[16], turned[16];
      for (int t = 0; t < 16; ++t) pairs_of_token[t] = load_32(rows[t] + offset);
      transpose(pairs_of_token, turned);
      for (int p = 0; p < 16; ++p) _mm512_store_si512(out + kStep * p, turned[p]);
    }
  }

  void lay_out_keys(int64_t from, int64_t to) {
    for (int64_t i = 0; i < padded; i += 16) {
      fetch(args.values, from + i);
      if (from + kTile + i < item.end) fetch(args.keys, from + kTile + i);
      turn_keys<4>(from, i, to, scratch.keys + i / 64 * pairs * 4 + i / 16 % 4);
    }
  }

  void find_values(int64_t from, int64_t to) {
    for (int64_t i = 0; i < padded; ++i) {
      values[i] = at(args.values, std::min(from + i, to - 1));
      if (sizeof(S) == 1) scratch.value_scales[i] = scale_of(values[i], dim);
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
  void take(int64_t row, int64_t from, int64_t to) {
    const Row* rows = scratch.rows.data() + row;
    bool seen = false;
    for (int r = 0; r < kCount; ++r) seen = seen || (rows[r].high > from && rows[r].low < to);
    if (!seen) return;
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
    for (int r = 0; r < kCount; ++r) {
      keep[r] = weigh(scratch.scores[0][r], r, rows[r], from, to);
      sums[r] = rows[r].partial + 2;
    }
    const int32_t* weights = scratch.weights[0];
    for (int64_t d = 0; d < dim; d += 64) {
      float* part[kCount];
      for (int r = 0; r < kCount; ++r) part[r] = sums[r] + d;
      const __m512i* values = scratch.values + d / 16;
      d + 64 <= dim ? mix<kCount, 4>(weights, padded / 2, values, dim / 16, keep, part)
                    : mix<kCount, 2>(weights, padded / 2, values, dim / 16, keep, part);
    }
  }

  // Scores of a row to weights relative to its running maximum; returns what of older sums stays.
  float weigh(float* scores, int at, const Row& row, int64_t from, int64_t to) {
    float* state = row.partial;
    int64_t begin = std::min(std::max(from, row.low), to) - from;
    int64_t end = std::max(std::min(to, row.high) - from, begin);
    std::fill(scores, scores + begin, -INFINITY);
    std::fill(scores + end, scores + padded, -INFINITY);
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (int64_t i = 0; i < padded; i += 16) {
      __m512 score = _mm512_load_ps(scores + i);
      if (sizeof(S) == 1) {
        score = _mm512_mul_ps(score, _mm512_load_ps(scratch.key_scales[head - item.first_head] + i));
        _mm512_store_ps(scores + i, score);
      }
      most = _mm512_max_ps(score, most);  // passes NaN over; it gets into the sum below
    }
    float scale = args.scale * kLog2E;
    float best = std::max(state[0], _mm512_reduce_max_ps(most) * scale);
    if (best == -INFINITY) {
      std::memset(scratch.weights[at], 0, padded * sizeof(bf16));
      for (int64_t i = begin; i < end; ++i)
        if (scores[i] != scores[i]) state[1] = NAN;
      return 1.0f;
    }
    __m512 total = _mm512_setzero_ps();
    __m512 times = _mm512_set1_ps(scale), top = _mm512_set1_ps(best);
    __m512bh ones = as_bf16(_mm512_set1_epi32(0x3f803f80));
    for (int64_t i = 0; i < padded; i += 32) {
      __m512 low = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(scores + i), times, top));
      __m512 high = _mm512_setzero_ps();
      if (i + 16 < padded)
        high = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(scores + i + 16), times, top));
      __m512bh both = _mm512_cvtne2ps_pbh(high, low);
      total = _mm512_dpbf16_ps(total, both, ones);
      if (sizeof(S) == 1) {
        low = _mm512_mul_ps(low, _mm512_load_ps(scratch.value_scales + i));
        if (i + 16 < padded)
          high = _mm512_mul_ps(high, _mm512_load_ps(scratch.value_scales + i + 16));
        both = _mm512_cvtne2ps_pbh(high, low);
      }
      _mm512_store_si512(scratch.weights[at] + i / 2, (__m512i)both);
    }
    float keep = state[0] == -INFINITY ? 0.0f : std::exp2(state[0] - best);
    state[0] = best;
    state[1] = state[1] * keep + _mm512_reduce_add_ps(total);
    return keep;
  }
};

// Joins the stretches of a part's rows of one kv head.
void finish(const AttendArgs& args, const Part& part, int64_t head, const float* partials) {
  int64_t dim = args.head_dim, group = args.heads / args.kv_heads, stride = 2 + dim;
  const float* first = partials + part.partial + head * part.splits * part.rows * stride;
  float sums[kMostDim];
  for (int64_t row = 0; row < part.rows; ++row) {
    float best = -INFINITY, total = 0;
    for (int64_t i = 0; i < part.splits; ++i)
      best = std::max(best, first[(i * part.rows + row) * stride]);
    std::fill(sums, sums + dim, 0.0f);
    for (int64_t i = 0; i < part.splits; ++i) {
      const float* state = first + (i * part.rows + row) * stride;
      if (state[0] == -INFINITY && state[1] == 0.0f) continue;
      float share = std::exp2(state[0] - best);
      total += state[1] * share;
      for (int64_t d = 0; d < dim; ++d) sums[d] += state[2 + d] * share;
    }
    int64_t r = part.first_row + row, token = args.query_starts[part.sequence] + r / group;
    bf16* out = static_cast<bf16*>(args.output) +
                (token * args.heads + head * group + r % group) * dim;
    for (int64_t d = 0; d < dim; ++d) narrow(sums[d] / total, out + d);
  }
}

// The items of a stretch for the members from first_member on: of each kv head, or of some together
// where there are few rows.
void add_items(const AttendArgs& args, Plan& plan, int64_t first_member, int64_t index,
               int64_t begin, int64_t end) {
  int64_t members = plan.members.size() - first_member, rows = 0;
  for (int64_t m = first_member; m < first_member + members; ++m)
    rows += plan.parts[plan.members[m]].rows;
  int64_t heads = rows > kThinRows ? 1 : std::max<int64_t>(1, kStripe / args.head_dim);
  for (int64_t head = 0; head < args.kv_heads; head += heads)
    plan.items.push_back({first_member, members, head, std::min(heads, args.kv_heads - head),
                          index, begin, end});
}

// A sequence's rows, the last ones first: they see most and take longest.
void add_parts(const AttendArgs& args, Plan& plan, int64_t sequence) {
  int64_t group = args.heads / args.kv_heads;
  int64_t queries = args.query_starts[sequence + 1] - args.query_starts[sequence];
  int64_t before = args.context_lengths[sequence] - queries, all = queries * group;
  for (int64_t first = (all - 1) / kRows * kRows; first >= 0; first -= kRows) {
    Part part = {};
    part.sequence = sequence, part.first_row = first, part.rows = std::min(kRows, all - first);
    part.split = split_tokens(all);
    int64_t low = args.window > 0 ? before + first / group + 1 - args.window : 0;
    part.begin = std::max<int64_t>(0, low) & ~int64_t(15);
    part.end = before + (first + part.rows - 1) / group + 1;
    part.first_split = part.begin / part.split;
    part.splits = (part.end + part.split - 1) / part.split - part.first_split;
    part.whole = args.window > 0 ? 0 : (before + first / group + 1) / part.split;
    part.partial = plan.partial_size;
    plan.partial_size += args.kv_heads * part.splits * part.rows * (2 + args.head_dim);
    plan.parts.push_back(part);
  }
}

// Parts of few rows by the one before them whose context begins with the same block, and how many
// stretches they have in common with it; that one is the first of each.
using Sharings = std::vector<std::vector<int32_t>>;

Sharings find_sharings(const AttendArgs& args, Plan& plan) {
  Sharings sharings;
  std::unordered_map<int32_t, size_t> by_first_block;
  for (size_t index = 0; index < plan.parts.size(); ++index) {
    Part& part = plan.parts[index];
    if (part.split != split_tokens(1) || !part.whole || args.block_size > part.split) continue;
    const int32_t* table = args.block_tables + part.sequence * args.table_stride;
    auto [found, fresh] = by_first_block.try_emplace(table[0], sharings.size());
    if (fresh) sharings.emplace_back();
    std::vector<int32_t>& sharing = sharings[found->second];
    if (!fresh) {
      Part& leader = plan.parts[sharing[0]];
      const int32_t* theirs = args.block_tables + leader.sequence * args.table_stride;
      int64_t blocks = part.split / args.block_size, most = std::min(part.whole, leader.whole);
      while (part.shared < most && std::equal(table + part.shared * blocks,
                                              table + (part.shared + 1) * blocks,
                                              theirs + part.shared * blocks))
        ++part.shared;
      if (!part.shared) continue;
      leader.shared = std::max(leader.shared, part.shared);
    }
    sharing.push_back(index);
  }
  return sharings;
}

Plan make_plan(const AttendArgs& args) {
  Plan plan;
  for (int64_t s = 0; s < args.sequences; ++s)
    if (args.query_starts[s + 1] > args.query_starts[s]) add_parts(args, plan, s);  // no padding
  for (const std::vector<int32_t>& sharing : find_sharings(args, plan)) {
    const Part& leader = plan.parts[sharing[0]];
    for (int64_t i = 0; i < leader.shared; ++i) {
      int64_t first = plan.members.size(), rows = 0, at = i * leader.split;
      for (int32_t index : sharing) {
        const Part& part = plan.parts[index];
        if (part.shared <= i) continue;
        if (rows + part.rows > kRows) {
          add_items(args, plan, first, i, at, at + leader.split);
          first = plan.members.size(), rows = 0;
        }
        plan.members.push_back(index), rows += part.rows;
      }
      add_items(args, plan, first, i, at, at + leader.split);
    }
  }
  for (size_t index = 0; index < plan.parts.size(); ++index) {
    const Part& part = plan.parts[index];
    for (int64_t i = part.shared; i < part.splits; ++i) {
      int64_t at = (part.first_split + i) * part.split;
      plan.members.push_back(index);
      add_items(args, plan, plan.members.size() - 1, i, std::max(part.begin, at),
                std::min(part.end, at + part.split));
    }
  }
  return plan;
}

template <typename S>
void attend(const AttendArgs& args) {
  Plan plan = make_plan(args);
  std::unique_ptr<float[]> partials(new float[plan.partial_size]);
  int64_t num_items = plan.items.size(), num_results = plan.parts.size() * args.kv_heads;
#pragma omp parallel
  {
    static thread_local Scratch scratch;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_items; ++i)
      Work<S>(args, plan, plan.items[i], scratch, partials.get()).run();
#pragma omp for schedule(static)
    for (int64_t i = 0; i < num_results; ++i)
      finish(args, plan.parts[i / args.kv_heads], i % args.kv_heads, partials.get());
  }
}

}  // namespace

extern "C" {

int keepwarm_has_attend_blocked() { return !wide_is_faster(); }
void keepwarm_attend_blocked(const AttendArgs* args) { attend<bf16>(*args); }
void keepwarm_attend_blocked_int8(const AttendArgs* args) { attend<int8>(*args); }
}

#else

extern "C" {

int keepwarm_has_attend_blocked() { return 0; }
void keepwarm_attend_blocked(const AttendArgs*) {}
void keepwarm_attend_blocked_int8(const AttendArgs*) {}
}

#endif
