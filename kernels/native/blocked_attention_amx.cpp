// Attention over paged KV by the matrix unit (Intel AMX), in blocks (blocked_attention.h).
// Specification: paged_attention_reference in kernels/attention.py.
//
// A tile is 16 rows of 64 bytes. Many rows: 16 at a time, times keys of 16 tokens that are turned
// once for all of them; what is known of the 16 lies in one vector, and their sums lie in tiles until
// the last block, so that little is done by row. Few rows: keys lie as the unit wants its left side,
// so nothing is turned but the queries, once. Either way a score is the same sum in the same order.
// Values are laid out by pairs of tokens; unpacking leaves dimensions 0 to 3, 8 to 11, 16 to 19 and
// 24 to 27 of 32 in the first half, and so do the sums lie until the end.

#include "matrix_unit.h"

#include "blocked_attention_bf16.h"

#ifdef HAVE_MATRIX_UNIT

namespace {

// Tiles: the first four are sums; of few rows two are, and the fourth holds their weights.
constexpr int kWeights = 3, kLeft = 4, kRight = 5, kFewRight = 6, kFewSums = 7;

static_assert(16 <= kStripe / 32 * kThinRows);

constexpr int64_t kAsked = 4;  // so many portions of 2 KiB or so cover the memory's answer

struct alignas(64) Line {
  float numbers[16];
};

// 16 rows of an item: the tokens that any of them sees, and those that all see.
struct Group {
  int64_t low, high, whole_low, whole_high;
  bool begun;
};

// Joins each of 16 vectors into one number.
template <typename Join>
inline __m512 across(const __m512* rows, Join join) {
  __m512 pairs[8], fours[4];
  for (int i = 0; i < 8; ++i)
    pairs[i] = join(_mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]),
                    _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]));
  for (int i = 0; i < 4; ++i) {
    __m512d left = _mm512_castps_pd(pairs[2 * i]), right = _mm512_castps_pd(pairs[2 * i + 1]);
    fours[i] = join(_mm512_castpd_ps(_mm512_unpacklo_pd(left, right)),
                    _mm512_castpd_ps(_mm512_unpackhi_pd(left, right)));
  }
  auto halves = [&](__m512 left, __m512 right) {
    return join(_mm512_shuffle_f32x4(left, right, 0x88), _mm512_shuffle_f32x4(left, right, 0xdd));
  };
  return halves(halves(fours[0], fours[1]), halves(fours[2], fours[3]));
}

// What is in the left tile by 16 columns, added to sums.
template <int kSums>
inline void add_product(const __m512i* right, int64_t stride) {
  load<kRight>(right, stride);
  multiply<kSums, kLeft, kRight>();
}

// Eight tiles, the last two of which are 16 bytes wide.
struct Tiles : TilesInUse {
  static TileConfig config() {
    TileConfig all;
    all.row_bytes[kFewRight] = all.row_bytes[kFewSums] = 16;
    return all;
  }
  // For few rows: as many of weights and of sums in the first tiles.
  static TileConfig thin() {
    TileConfig all = config();
    all.rows[0] = all.rows[1] = all.rows[kWeights] = kThinRows;
    return all;
  }
  Tiles() : TilesInUse(config()) {}
};

struct Scratch : CommonScratch {
  alignas(64) __m512i keys[kTile / 16 * kMostDim / 2];    // [tokens / 16][dimensions / 2]
  alignas(64) __m512i values[kTile / 2 * kMostDim / 16];  // [tokens / 2][dimensions / 16]
  alignas(64) float scores[kStripe / 32][kThinRows][kTile];  // [heads][rows], or of many rows
  alignas(64) int32_t few[kStripe / 2][kThinRows];  // few queries: [heads][dimensions / 2][rows]
  alignas(64) int32_t few_weights[kStripe / 32][kThinRows][kTile / 2];
  alignas(64) float few_mixed[kStripe / 16][kThinRows][16];  // [heads][dimensions / 16][rows]
  alignas(64) bf16 widened[16 * kMostDim];
  std::vector<bf16> queries;  // [rows][head_dim]
  std::vector<Group> groups;  // of many rows, by 16, as are the next ones
  std::vector<Line> best, totals;
  std::vector<Line> sums;  // [groups][dimensions / 16][rows]
};

template <typename S>
struct Work : Bf16Work<Work<S>, S, Scratch> {
  using Base = Bf16Work<Work<S>, S, Scratch>;
  using Base::args, Base::at, Base::count, Base::dim, Base::fetch, Base::find_values, Base::head,
      Base::item, Base::padded, Base::scratch, Base::values;
  using Unit = Tiles;

  using Base::Base;

  void reserve(int64_t rows) { scratch.queries.resize(((rows + 15) & ~int64_t(15)) * dim); }
  void take_query(int64_t row, const bf16* from) {
    std::memcpy(scratch.queries.data() + row * dim, from, dim * sizeof(bf16));
  }

  void take_block(int64_t from, int64_t to) {
    if (from == item.begin) begin_groups();
    for (int64_t i = 0; i < padded; i += 16) {
      if (from + kTile + i < item.end) fetch(args.keys, from + kTile + i);
      Base::template turn_keys<1>(from, i, to, scratch.keys + i * dim / 32);
    }
    lay_out_values(from, to, padded);
    for (size_t g = 0; g < scratch.groups.size(); ++g) {
      const Group& group = scratch.groups[g];
      if (group.high > from && group.low < to) take_group(g, from, to);
    }
    if (to == item.end) end_groups();
  }

  void begin_groups() {
    int64_t groups = (count + 15) / 16;
    scratch.groups.clear();
    Line none;
    std::fill(none.numbers, none.numbers + 16, -INFINITY);
    scratch.best.assign(groups, none);
    scratch.totals.assign(groups, Line{});
    scratch.sums.resize(groups * dim);
    for (int64_t row = 0; row < count; ++row) {
      const Row& seen = scratch.rows[row];
      if (row % 16 == 0) scratch.groups.push_back({seen.low, seen.high, seen.low, seen.high, false});
      Group& group = scratch.groups.back();
      group.low = std::min(group.low, seen.low), group.high = std::max(group.high, seen.high);
      group.whole_low = std::max(group.whole_low, seen.low);
      group.whole_high = std::min(group.whole_high, seen.high);
    }
  }

  void end_groups() {
    for (int64_t row = 0; row < count; ++row) {
      int64_t g = row / 16, r = row % 16;
      if (!scratch.groups[g].begun) continue;
      float* partial = scratch.rows[row].partial;
      partial[0] = scratch.best[g].numbers[r], partial[1] = scratch.totals[g].numbers[r];
      for (int64_t d = 0; d < dim / 16; ++d)
        std::memcpy(partial + 2 + 16 * d, &scratch.sums[g * dim + 16 * d + r], sizeof(Line));
    }
  }

  // The block for 16 rows, or for those that there are.
  void take_group(int64_t g, int64_t from, int64_t to) {
    Group& group = scratch.groups[g];
    int64_t some = std::min<int64_t>(16, count - 16 * g);
    const Row* rows = scratch.rows.data() + 16 * g;
    float (*scores)[kTile] = scratch.scores[0];
    score(16 * g, scores[0]);
    if (from < group.whole_low || to > group.whole_high || to - from < padded)
      for (int64_t r = 0; r < some; ++r) hide(scores[r], rows[r], from, to);
    __m512 before = _mm512_load_ps(scratch.best[g].numbers);
    __m512 scale = _mm512_set1_ps(args.scale * kLog2E);
    __m512 best = _mm512_max_ps(_mm512_mul_ps(largest_of(scores, some), scale), before);
    _mm512_store_ps(scratch.best[g].numbers, best);
    __mmask16 nothing = _mm512_cmp_ps_mask(best, _mm512_set1_ps(-INFINITY), _CMP_EQ_OQ);
    alignas(64) float top[16];  // nothing seen: all weights are 0
    _mm512_store_ps(top, _mm512_maskz_mov_ps(~nothing, best));
    __m512 weights[16];
    for (int r = 0; r < 16; ++r) weights[r] = _mm512_setzero_ps();
    for (int64_t r = 0; r < some; ++r)
      weights[r] = Base::exponentials(scores[r], reinterpret_cast<int32_t*>(scores[r]),
                                      args.scale * kLog2E, top[r]);
    __m512 total = across(weights, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
    if (group.begun) {
      __m512 keep = keep_of(g, before, best, some);
      total = _mm512_fmadd_ps(_mm512_load_ps(scratch.totals[g].numbers), keep, total);
    }
    _mm512_store_ps(scratch.totals[g].numbers, total);
    for (int64_t d = 0; d < dim / 16; d += 4)
      dim / 16 - d >= 4 ? mix_values<4>(g, d) : mix_values<2>(g, d);
    group.begun = true;
  }

  // What a row does not see becomes the smallest there is.
  void hide(float* scores, const Row& row, int64_t from, int64_t to) const {
    int64_t begin = std::min(std::max(from, row.low), to) - from;
    int64_t end = std::max(std::min(to, row.high) - from, begin);
    std::fill(scores, scores + begin, -INFINITY);
    std::fill(scores + end, scores + padded, -INFINITY);
  }

  // The largest score of each row, NaN passed over: it gets into the sum.
  __m512 largest_of(float (*scores)[kTile], int64_t some) {
    __m512 most[16];
    for (int r = 0; r < 16; ++r) most[r] = _mm512_set1_ps(-INFINITY);
    for (int64_t r = 0; r < some; ++r)
      for (int64_t i = 0; i < padded; i += 16) {
        __m512 score = _mm512_load_ps(scores[r] + i);
        if (sizeof(S) == 1) {
          score = _mm512_mul_ps(score, _mm512_load_ps(scratch.key_scales[0] + i));
          _mm512_store_ps(scores[r] + i, score);
        }
        most[r] = _mm512_max_ps(score, most[r]);
      }
    return across(most, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
  }

  // What of older sums stays, by row; the sums that change are scaled.
  __m512 keep_of(int64_t g, __m512 before, __m512 best, int64_t some) {
    alignas(64) float keep[16];
    _mm512_store_ps(keep, _mm512_sub_ps(before, best));
    uint32_t higher = _mm512_cmp_ps_mask(before, best, _CMP_NEQ_UQ) & ((1u << some) - 1);
    __mmask16 others = ~higher;
    for (; higher; higher &= higher - 1) {
      int r = __builtin_ctz(higher);
      keep[r] = std::exp2(keep[r]);
      for (int64_t d = 0; d < dim / 16; ++d) {
        float* sums = scratch.sums[g * dim + 16 * d + r].numbers;
        _mm512_store_ps(sums, _mm512_mul_ps(_mm512_load_ps(sums), _mm512_set1_ps(keep[r])));
      }
    }
    return _mm512_mask_mov_ps(_mm512_load_ps(keep), others, _mm512_set1_ps(1.0f));
  }

  // Scores of the block for 16 rows.
  void score(int64_t row, float* scores) {
    const bf16* queries = scratch.queries.data() + row * dim;
    int64_t groups = padded / 16, pairs = dim / 2, g = 0;
    for (; g + 4 <= groups; g += 4) {
      zero<0>(), zero<1>(), zero<2>(), zero<3>();
      const __m512i* keys = scratch.keys + g * pairs;
      for (int64_t d = 0; d < dim; d += 32, keys += 16) {
        load<kLeft>(queries + d, dim * sizeof(bf16));
        add_product<0>(keys, 64), add_product<1>(keys + pairs, 64);
        add_product<2>(keys + 2 * pairs, 64), add_product<3>(keys + 3 * pairs, 64);
      }
      float* out = scores + 16 * g;
      store<0>(out, kTile * 4), store<1>(out + 16, kTile * 4);
      store<2>(out + 32, kTile * 4), store<3>(out + 48, kTile * 4);
    }
    for (; g < groups; ++g) {
      zero<0>();
      for (int64_t d = 0; d < dim; d += 32) {
        load<kLeft>(queries + d, dim * sizeof(bf16));
        add_product<0>(scratch.keys + g * pairs + d / 2, 64);
      }
      store<0>(scores + 16 * g, kTile * 4);
    }
  }

  // The block for the few rows of some heads: keys and values in the order of memory.
  template <int kCount>
  void take_thin(int64_t from, int64_t to) {
    int64_t end = item.first_head + item.heads, dims = dim / 16;
    if (from == item.begin) turn_queries();
    Unit::use(Unit::thin());
    for (int64_t i = 0; i < padded; i += 16)
      for (head = item.first_head; head < end; ++head) {
        int64_t nth = head - item.first_head, stride = dim * sizeof(bf16);
        const char* next = ahead(from, i / 16 * item.heads + nth);
        const bf16* keys = keys_of(from, i, to);
        zero<kFewSums>();
        for (int64_t d = 0; d < dim; d += 32) {
          ask(next, portion_bytes() / (dim / 32));
          load<kLeft>(keys + d, stride);
          load<kFewRight>(scratch.few[(nth * dim + d) / 2], 16);
          multiply<kFewSums, kLeft, kFewRight>();
        }
        alignas(64) float by_token[16][4];
        store<kFewSums>(by_token, 16);
        put_scores(by_token, scratch.scores[nth], i);
      }
    float keep[kStripe / 32][kThinRows];
    for (head = item.first_head; head < end; ++head) {
      int64_t nth = head - item.first_head;
      if (sizeof(S) == 1) find_values(from, to);  // for their scales
      Base::template weigh<kCount>(scratch.scores[nth], scratch.few_weights[nth],
                                   scratch.rows.data() + nth * count, from, to, keep[nth]);
      for (int64_t r = 0; r < kCount; ++r)  // what was summed before, as of many rows
        for (int64_t d = 0; d < dims; ++d)
          keep_some(scratch.rows[nth * count + r].partial + 2 + 16 * d, keep[nth][r],
                    scratch.few_mixed[nth * dims + d][r]);
    }
    for (int64_t i = 0; i < padded; i += 32)
      for (head = item.first_head; head < end; ++head) {
        int64_t nth = head - item.first_head;
        int64_t before = (padded + i) / 16 * item.heads + 2 * nth;
        const char* next[2] = {ahead(from, before), ahead(from, before + 1)};
        lay_out_values(from + i, std::min(to, from + i + 32), std::min<int64_t>(32, padded - i), next);
        load<kWeights>(scratch.few_weights[nth][0] + i / 2, kTile * sizeof(bf16));
        for (int64_t d = 0; d < dims; d += 2) {
          float(*sums)[kThinRows][16] = scratch.few_mixed + nth * dims + d;
          load<0>(sums[0], 64), load<1>(sums[1], 64);
          load<kRight>(scratch.values + d, dims * 64), multiply<0, kWeights, kRight>();
          load<kRight>(scratch.values + d + 1, dims * 64), multiply<1, kWeights, kRight>();
          store<0>(sums[0], 64), store<1>(sums[1], 64);
        }
      }
    for (int64_t nth = 0; nth < item.heads; ++nth)
      for (int64_t r = 0; r < kCount; ++r) {
        float* sums = scratch.rows[nth * count + r].partial + 2;
        for (int64_t d = 0; d < dims; ++d)
          std::memcpy(sums + 16 * d, scratch.few_mixed[nth * dims + d][r], sizeof(Line));
      }
    Unit::use(Unit::config());
  }

  // Of few rows a portion is the keys or values of 16 tokens for a head. A block's keys are read block
  // by block of the pool, then its values, two portions of a head at a time.
  int64_t portion_bytes() const { return 16 * row_size<S>(dim) * int64_t(sizeof(S)); }

  // Where the portion lies that is read kAsked behind the nth of the block that begins at ``from``;
  // null behind the last one.
  const char* ahead(int64_t from, int64_t nth) const {
    int64_t n = nth + kAsked, of_each = padded / 16 * item.heads;
    if (n >= 2 * of_each) {
      n -= 2 * of_each, from += kTile;
      of_each = (std::min(kTile, item.end - from) + 15) / 16 * item.heads;
      if (n >= of_each) return nullptr;
    }
    bool values = n >= of_each;
    if (values) n -= of_each;
    int64_t two = n / 2, token = values ? two / item.heads * 32 + n % 2 * 16 : n / item.heads * 16;
    int64_t of_head = item.first_head + (values ? two % item.heads : n % item.heads);
    if (from + token >= item.end) return nullptr;
    return reinterpret_cast<const char*>(at(values ? args.values : args.keys, from + token, of_head));
  }

  // Asks for a share of a portion. Evenly: of many lines asked for at once most are not brought.
  static __attribute__((always_inline)) void ask(const char*& next, int64_t bytes) {
    if (!next) return;
    for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(next + i, _MM_HINT_T1);
    next += bytes;
  }

  // Scores of 16 tokens by token to scores by row.
  static void put_scores(const float (*by_token)[4], float (*scores)[kTile], int64_t at) {
    __m512 part[4];
    for (int i = 0; i < 4; ++i) part[i] = _mm512_load_ps(by_token[4 * i]);
    const __m512i even = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(2));
    __m512 first = _mm512_permutex2var_ps(part[0], even, part[1]);  // rows 0 and 1 of tokens 0 to 7
    __m512 second = _mm512_permutex2var_ps(part[2], even, part[3]);
    _mm512_store_ps(scores[0] + at, _mm512_shuffle_f32x4(first, second, 0x44));
    _mm512_store_ps(scores[1] + at, _mm512_shuffle_f32x4(first, second, 0xee));
    first = _mm512_permutex2var_ps(part[0], odd, part[1]);
    second = _mm512_permutex2var_ps(part[2], odd, part[3]);
    _mm512_store_ps(scores[2] + at, _mm512_shuffle_f32x4(first, second, 0x44));
    _mm512_store_ps(scores[3] + at, _mm512_shuffle_f32x4(first, second, 0xee));
  }

  void turn_queries() {
    for (int64_t nth = 0; nth < item.heads; ++nth)
      for (int64_t row = 0; row < kThinRows; ++row) {
        const bf16* from = scratch.queries.data() + (nth * count + std::min(row, count - 1)) * dim;
        const int32_t* pairs = reinterpret_cast<const int32_t*>(from);
        for (int64_t p = 0; p < dim / 2; ++p) scratch.few[nth * dim / 2 + p][row] = pairs[p];
      }
  }

  // The keys of 16 tokens of the present head, [16][head_dim] in bf16: where they lie if they lie so.
  // What is read of tokens past the end is never seen: a score depends on one token alone.
  const bf16* keys_of(int64_t from, int64_t i, int64_t to) {
    if (sizeof(S) == sizeof(bf16) && args.block_size % 16 == 0)
      return reinterpret_cast<const bf16*>(at(args.keys, from + i));
    for (int64_t t = 0; t < 16; ++t) {
      const S* row = at(args.keys, std::min(from + i + t, to - 1));
      if (sizeof(S) == 1) scratch.key_scales[head - item.first_head][i + t] = scale_of(row, dim);
      for (int64_t d = 0; d < dim; d += 32)
        _mm512_storeu_si512(scratch.widened + t * dim + d, load_32(row + d));
    }
    return scratch.widened;
  }

  // By pairs of tokens, in steps of 32; tokens past the end repeat the last one. For each 16 a portion
  // that is read later may be asked for.
  void lay_out_values(int64_t from, int64_t to, int64_t tokens, const char** next = nullptr) {
    tokens == padded ? find_values(from, to) : Base::find_values(from, to, tokens);
    int64_t dims = dim / 16, share = portion_bytes() / (dim / 4);
    for (int64_t i = 0; i < tokens; i += 2) {
      __m512i* out = scratch.values + i / 2 * dims;
      for (int64_t offset = 0; offset < dim; offset += 32) {
        if (next) ask(next[i / 16], share);
        __m512i a = load_32(values[i] + offset), b = load_32(values[i + 1] + offset);
        _mm512_store_si512(out + offset / 16, _mm512_unpacklo_epi16(a, b));
        _mm512_store_si512(out + offset / 16 + 1, _mm512_unpackhi_epi16(a, b));
      }
    }
    if (tokens % 32) std::memset(scratch.values + tokens / 2 * dims, 0, 8 * dims * 64);
  }

  // A share of 16 sums.
  static void keep_some(const float* sums, float keep, float* out) {
    _mm512_store_ps(out, _mm512_mul_ps(_mm512_loadu_ps(sums), _mm512_set1_ps(keep)));
  }

  // Adds the values by the weights of 16 rows, which lie where their scores did, to 16 * kWide
  // dimensions of their sums, from 16 * d on.
  template <int kWide>
  void mix_values(int64_t g, int64_t d) {
    Line* sums = scratch.sums.data() + g * dim + 16 * d;
    if (scratch.groups[g].begun) {
      load<0>(sums, 64), load<1>(sums + 16, 64);
      if (kWide == 4) load<2>(sums + 32, 64), load<3>(sums + 48, 64);
    } else {
      zero<0>(), zero<1>();
      if (kWide == 4) zero<2>(), zero<3>();
    }
    int64_t stride = dim / 16 * sizeof(__m512i);
    for (int64_t i = 0; i < padded; i += 32) {
      load<kLeft>(scratch.scores[0][0] + i / 2, kTile * sizeof(float));
      const __m512i* right = scratch.values + i / 2 * (dim / 16) + d;
      add_product<0>(right, stride), add_product<1>(right + 1, stride);
      if (kWide == 4) add_product<2>(right + 2, stride), add_product<3>(right + 3, stride);
    }
    store<0>(sums, 64), store<1>(sums + 16, 64);
    if (kWide == 4) store<2>(sums + 32, 64), store<3>(sums + 48, 64);
  }
};

// Sums in the order of dimensions: of 32, the first 16 lie as unpacking left them.
inline const float* in_order(const float* sums, float* ordered, int64_t dim) {
  const __m512i lower = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i upper = _mm512_add_epi32(lower, _mm512_set1_epi32(8));
  for (int64_t d = 0; d < dim; d += 32) {
    __m512 first = _mm512_load_ps(sums + d), second = _mm512_load_ps(sums + d + 16);
    _mm512_store_ps(ordered + d, _mm512_permutex2var_ps(first, lower, second));
    _mm512_store_ps(ordered + d + 16, _mm512_permutex2var_ps(first, upper, second));
  }
  return ordered;
}

}  // namespace

extern "C" {

void keepwarm_attend_matrix(const AttendArgs* args) {
  attend_in_blocks<Work<bf16>, Scratch>(*args, in_order);
}
void keepwarm_attend_matrix_int8(const AttendArgs* args) {
  attend_in_blocks<Work<int8>, Scratch>(*args, in_order);
}
}

#else

extern "C" {

void keepwarm_attend_matrix(const AttendArgs*) {}
void keepwarm_attend_matrix_int8(const AttendArgs*) {}
}

#endif
