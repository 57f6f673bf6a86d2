// Attention over paged KV by the matrix unit (Intel AMX), in blocks (blocked_attention.h).
// Specification: paged_attention_reference in kernels/attention.py.
//
// A tile is 16 rows of 64 bytes. Many rows: 16 at a time, times keys of 16 tokens that are turned
// once for all of them. Few rows: keys lie as the unit wants its left side, so nothing is turned but
// the queries, once. Either way a score is the same sum in the same order. Values are laid out by
// pairs of tokens; unpacking leaves dimensions 0 to 3, 8 to 11, 16 to 19 and 24 to 27 of 32 in the
// first half, and so do the sums lie until the end.

#include "matrix_unit.h"

#include "blocked_attention_bf16.h"

#ifdef HAVE_MATRIX_UNIT

namespace {

// Tiles: the first four are sums; of few rows two are, and the fourth holds their weights.
constexpr int kWeights = 3, kLeft = 4, kRight = 5, kFewRight = 6, kFewSums = 7;

constexpr int64_t kTogether = 16;  // rows: what is at work stays in the first-level cache
static_assert(kTogether % 16 == 0 && kTogether <= kStripe / 32 * kThinRows);

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
  alignas(64) int32_t weights[kTogether][kTile / 2];
  alignas(64) float mixed[kMostDim / 16][kTogether][16];  // [dimensions / 16][rows]
  alignas(64) int32_t few[kStripe / 2][kThinRows];  // few queries: [heads][dimensions / 2][rows]
  alignas(64) int32_t few_weights[kStripe / 32][kThinRows][kTile / 2];
  alignas(64) float few_mixed[kStripe / 16][kThinRows][16];  // [heads][dimensions / 16][rows]
  alignas(64) bf16 widened[16 * kMostDim];
  std::vector<bf16> queries;  // [rows][head_dim]
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
    for (int64_t i = 0; i < padded; i += 16) {
      if (from + kTile + i < item.end) fetch(args.keys, from + kTile + i);
      Base::template turn_keys<1>(from, i, to, scratch.keys + i * dim / 32);
    }
    lay_out_values(from, to, padded);
    for (int64_t row = 0; row < count; row += kTogether) {
      int64_t some = std::min(kTogether, count - row);
      const Row* rows = scratch.rows.data() + row;
      if (!Base::seen(rows, some, from, to)) continue;
      float* scores = scratch.scores[0][0];
      for (int64_t r = 0; r < some; r += 16) score(row + r, scores + r * kTile);
      mix(rows, some, scores, from, to);
    }
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
        ask_behind(at(args.keys, from + i));
        const bf16* keys = keys_of(from, i, to);
        zero<kFewSums>();
        for (int64_t d = 0; d < dim; d += 32) {
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
    }
    for (int64_t i = 0; i < padded; i += 32)
      for (head = item.first_head; head < end; ++head) {
        int64_t nth = head - item.first_head;
        ask_behind(at(args.values, from + i));
        if (i + 16 < padded) ask_behind(at(args.values, from + i + 16));
        lay_out_values(from + i, std::min(to, from + i + 32), std::min<int64_t>(32, padded - i));
        load<kWeights>(scratch.few_weights[nth][0] + i / 2, kTile * sizeof(bf16));
        for (int64_t d = 0; d < dims; d += 2) {
          float(*sums)[kThinRows][16] = scratch.few_mixed + nth * dims + d;
          if (i) load<0>(sums[0], 64), load<1>(sums[1], 64);
          else zero<0>(), zero<1>();
          load<kRight>(scratch.values + d, dims * 64), multiply<0, kWeights, kRight>();
          load<kRight>(scratch.values + d + 1, dims * 64), multiply<1, kWeights, kRight>();
          store<0>(sums[0], 64), store<1>(sums[1], 64);
        }
      }
    for (int64_t nth = 0; nth < item.heads; ++nth)
      for (int64_t r = 0; r < kCount; ++r) {
        float* sums = scratch.rows[nth * count + r].partial + 2;
        for (int64_t d = 0; d < dims; ++d)
          keep_and_add(sums + 16 * d, keep[nth][r], scratch.few_mixed[nth * dims + d][r]);
      }
    Unit::use(Unit::config());
  }

  // Asks for what lies behind 16 keys or values: those of the next head, or of the next tokens.
  __attribute__((always_inline)) void ask_behind(const S* from) const {
    int64_t bytes = 16 * row_size<S>(dim) * int64_t(sizeof(S));
    const char* next = reinterpret_cast<const char*>(from) + bytes;
    for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(next + i, _MM_HINT_T0);
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

  // By pairs of tokens, in steps of 32; tokens past the end repeat the last one.
  void lay_out_values(int64_t from, int64_t to, int64_t tokens) {
    tokens == padded ? find_values(from, to) : Base::find_values(from, to, tokens);
    int64_t dims = dim / 16;
    for (int64_t i = 0; i < tokens; i += 2) {
      __m512i* out = scratch.values + i / 2 * dims;
      for (int64_t offset = 0; offset < dim; offset += 32) {
        __m512i a = load_32(values[i] + offset), b = load_32(values[i + 1] + offset);
        _mm512_store_si512(out + offset / 16, _mm512_unpacklo_epi16(a, b));
        _mm512_store_si512(out + offset / 16 + 1, _mm512_unpackhi_epi16(a, b));
      }
    }
    if (tokens % 32) std::memset(scratch.values + tokens / 2 * dims, 0, 8 * dims * 64);
  }

  template <int kCount>
  void weigh(float (*scores)[kTile], int64_t row, const Row* rows, int64_t from, int64_t to,
             float* keep) {
    Base::template weigh<kCount>(scores + row, scratch.weights + row, rows + row, from, to,
                                 keep + row);
  }

  // Softmax of scores [rows][kTile], and the values by it.
  void mix(const Row* rows, int64_t some, float* scores, int64_t from, int64_t to) {
    float keep[kTogether];
    float (*by_row)[kTile] = reinterpret_cast<float (*)[kTile]>(scores);
    int64_t row = 0;
    for (; row + 4 <= some; row += 4) weigh<4>(by_row, row, rows, from, to, keep);
    for (; row < some; ++row) weigh<1>(by_row, row, rows, from, to, keep);
    int64_t dims = dim / 16;
    for (int64_t r = 0; r < some; r += 16)
      for (int64_t d = 0; d < dims; d += 4)
        dims - d >= 4 ? mix_values<4>(r, d) : mix_values<2>(r, d);
    for (int64_t r = 0; r < some; ++r) {
      float* sums = rows[r].partial + 2;
      for (int64_t d = 0; d < dims; ++d) keep_and_add(sums + 16 * d, keep[r], scratch.mixed[d][r]);
    }
  }

  // What was summed before, by a share, and what a block adds.
  static void keep_and_add(float* sum, float keep, const float* mixed) {
    __m512 before = _mm512_mul_ps(_mm512_loadu_ps(sum), _mm512_set1_ps(keep));
    _mm512_storeu_ps(sum, _mm512_add_ps(before, _mm512_load_ps(mixed)));
  }

  // Weights of 16 rows by 16 * kWide dimensions of the values, from 16 * d on.
  template <int kWide>
  void mix_values(int64_t row, int64_t d) {
    int64_t stride = dim / 16 * sizeof(__m512i);
    zero<0>(), zero<1>();
    if (kWide == 4) zero<2>(), zero<3>();
    for (int64_t i = 0; i < padded; i += 32) {
      load<kLeft>(scratch.weights[row] + i / 2, kTile * sizeof(bf16));
      const __m512i* right = scratch.values + i / 2 * (dim / 16) + d;
      add_product<0>(right, stride), add_product<1>(right + 1, stride);
      if (kWide == 4) add_product<2>(right + 2, stride), add_product<3>(right + 3, stride);
    }
    store<0>(scratch.mixed[d][row], 64), store<1>(scratch.mixed[d + 1][row], 64);
    if (kWide == 4)
      store<2>(scratch.mixed[d + 2][row], 64), store<3>(scratch.mixed[d + 3][row], 64);
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
