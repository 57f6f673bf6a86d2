// The gated delta rule: chunks of up to 64 tokens cut at absolute multiples, any number of sequences.
//
// A chunk reads its matrix for all of its tokens together; the small triangular system between them is
// solved row by row. Where each number of a key decays on its own, keys are decayed token by token, as the
// matrix would be: by factors of at most 1, of which none is made of more than one logarithm, so that none
// can overflow or has lost its digits in a sum. Sums are in one order whatever else is in the step, and matrices are taken on by
// one function wherever that is asked for: a step that begins at a multiple of 64 has the bits of one
// that came by there.

#include "gated_delta.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "numbers.h"
#include "team.h"

namespace {

constexpr int64_t kChunk = 64;
constexpr int64_t kFold = 32;
constexpr int64_t kRows = 4;
constexpr int64_t kWorthNumbers = 1 << 15;
constexpr float kForgotten = -87.0f;  // a logarithm below it leaves nothing: numbers.h, exponential

#ifdef __AVX512F__
constexpr int64_t kWide = 16;
constexpr int kAcross = 8;
constexpr int kPiece = 4;
#else
constexpr int64_t kWide = 8;
constexpr int kAcross = 4;
constexpr int kPiece = 2;
#endif
typedef float Wide __attribute__((vector_size(kWide * sizeof(float)), aligned(4)));

Wide load(const float* from) {
  Wide values;
  std::memcpy(&values, from, sizeof(values));
  return values;
}
void store(const Wide& values, float* to) { std::memcpy(to, &values, sizeof(values)); }

// A matrix within others: rows stride apart.
struct Rows {
  const float* at;
  int64_t stride;
};

// c[r][.] = scale * c[r][.] + sum over j of a[r][j] * b[j][.], for kCount rows and some vectors.
template <int kCount, int kVectors>
void tile(Rows a, Rows b, float* c, int64_t c_stride, int64_t inner, float scale) {
  Wide sums[kCount][kVectors];
  for (int r = 0; r < kCount; ++r)
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = scale == 0 ? Wide{} : scale * load(c + r * c_stride + v * kWide);
  for (int64_t j = 0; j < inner; ++j) {
    Wide row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = load(b.at + j * b.stride + v * kWide);
    for (int r = 0; r < kCount; ++r) {
      float factor = a.at[r * a.stride + j];
      for (int v = 0; v < kVectors; ++v) sums[r][v] += factor * row[v];
    }
  }
  for (int r = 0; r < kCount; ++r)
    for (int v = 0; v < kVectors; ++v) store(sums[r][v], c + r * c_stride + v * kWide);
}

template <int kVectors>
void tile_of(int64_t count, Rows a, Rows b, float* c, int64_t c_stride, int64_t inner, float scale) {
  switch (count) {
    case 1: return tile<1, kVectors>(a, b, c, c_stride, inner, scale);
    case 2: return tile<2, kVectors>(a, b, c, c_stride, inner, scale);
    case 3: return tile<3, kVectors>(a, b, c, c_stride, inner, scale);
    default: return tile<4, kVectors>(a, b, c, c_stride, inner, scale);
  }
}

// The same of [rows, columns]. Each number is one sum in the order of j. For a, of which all is small:
// c is gone through once, row by row.
void add_to(Rows a, Rows b, float* c, int64_t c_stride, int64_t rows, int64_t columns, int64_t inner,
            float scale);

// Where b is large: it is gone through in pieces that stay in the nearest cache, or, for the one or two
// rows of a decode, once.
void multiply(Rows a, Rows b, float* c, int64_t c_stride, int64_t rows, int64_t columns, int64_t inner,
              float scale) {
  int64_t column = 0;
  if (rows == 2)
    for (; column + kAcross * kWide <= columns; column += kAcross * kWide)
      tile<2, kAcross>(a, {b.at + column, b.stride}, c + column, c_stride, inner, scale);
  for (; column + kPiece * kWide <= columns; column += kPiece * kWide)
    for (int64_t r = 0; r < rows; r += kRows)
      tile_of<kPiece>(std::min(kRows, rows - r), {a.at + r * a.stride, a.stride}, {b.at + column, b.stride},
                      c + r * c_stride + column, c_stride, inner, scale);
  for (; column + kWide <= columns; column += kWide)
    for (int64_t r = 0; r < rows; r += kRows)
      tile_of<1>(std::min(kRows, rows - r), {a.at + r * a.stride, a.stride}, {b.at + column, b.stride},
                 c + r * c_stride + column, c_stride, inner, scale);
  for (; column < columns; ++column)
    for (int64_t r = 0; r < rows; ++r) {
      float sum = scale == 0 ? 0.0f : scale * c[r * c_stride + column];
      for (int64_t j = 0; j < inner; ++j)
        sum += a.at[r * a.stride + j] * b.at[j * b.stride + column];
      c[r * c_stride + column] = sum;
    }
}

void add_to(Rows a, Rows b, float* c, int64_t c_stride, int64_t rows, int64_t columns, int64_t inner,
            float scale) {
  for (int64_t r = 0; r < rows; r += kRows)
    multiply({a.at + r * a.stride, a.stride}, b, c + r * c_stride, c_stride, std::min(kRows, rows - r),
             columns, inner, scale);
}

// Rows of one head, of tokens in a row.
struct Factors {
  Rows keys, corrected, decays;
  bool by_channel;
};

// What a token leaves of numbers before it.
inline float kept_of(float decay) { return decay < kForgotten ? 0.0f : exponential(decay); }

void kept_of_row(const float* decays, float* kept, int64_t size) {
#pragma omp simd
  for (int64_t k = 0; k < size; ++k) kept[k] = kept_of(decays[k]);
}

void times(const float* factors, float* row, int64_t size) {
#pragma omp simd
  for (int64_t k = 0; k < size; ++k) row[k] *= factors[k];
}

// A decay that leaves nothing forgets what was there, whatever it was.
void scale_by(float factor, float* row, int64_t size) {
  if (factor == 0) return void(std::memset(row, 0, size * sizeof(float)));
  for (int64_t v = 0; v < size; ++v) row[v] *= factor;
}

// fold by channel: what the tokens behind each have left of its key, from the last one on.
void fold_by_channel(const Factors& factors, int64_t count, int64_t key_dim, int64_t value_dim,
                     float* matrix, float* weighted) {
  thread_local std::vector<float> own;
  own.resize(2 * key_dim);
  float *left = own.data(), *kept = left + key_dim;
  std::fill(left, left + key_dim, 1.0f);
  for (int64_t i = count - 1; i >= 0; --i) {
    const float* key = factors.keys.at + i * factors.keys.stride;
    for (int64_t k = 0; k < key_dim; ++k) weighted[k * kFold + i] = left[k] * key[k];
    kept_of_row(factors.decays.at + i * factors.decays.stride, kept, key_dim);
    times(kept, left, key_dim);
  }
  for (int64_t k = 0; k < key_dim; ++k) scale_by(left[k], matrix + k * value_dim, value_dim);
  add_to({weighted, kFold}, factors.corrected, matrix, value_dim, key_dim, value_dim, count, 1);
}

// Takes a matrix behind count tokens, at most kFold; weighted has room for key_dim * kFold numbers.
void fold(const Factors& factors, int64_t count, int64_t key_dim, int64_t value_dim, float* matrix,
          float* weighted) {
  if (factors.by_channel) return fold_by_channel(factors, count, key_dim, value_dim, matrix, weighted);
  float reach[kFold], last = 0;
  for (int64_t i = 0; i < count; ++i) reach[i] = last += factors.decays.at[i * factors.decays.stride];
  for (int64_t i = 0; i < count; ++i) {
    float weight = std::exp(last - reach[i]);
    const float* key = factors.keys.at + i * factors.keys.stride;
    for (int64_t k = 0; k < key_dim; ++k) weighted[k * kFold + i] = weight * key[k];
  }
  // a decay that leaves nothing still has to forget what was there
  float kept = std::exp(last);
  add_to({weighted, kFold}, factors.corrected, matrix, value_dim, key_dim, value_dim, count, kept);
}

struct Scratch {
  std::vector<float> state, transposed, weighted, rows, known, found;
};

Scratch& scratch(int64_t key_dim, int64_t value_dim) {
  thread_local Scratch own;
  own.state.resize(key_dim * value_dim);
  own.transposed.resize(key_dim * kChunk);
  own.weighted.resize(key_dim * kFold);
  own.rows.resize(2 * kChunk * key_dim);
  own.known.resize(2 * kChunk * value_dim);
  own.found.resize(kChunk * value_dim);
  return own;
}

// A chunk's rows of one head lie close together here: in what is given they are whole tokens apart,
// which is often one place of the nearest cache for all of them.
void gather(const DeltaArgs* args, int64_t first, int64_t count, int64_t key_head, Scratch& own) {
  int64_t key_dim = args->key_dim, stride = args->key_heads * key_dim;
  const float* keys = args->keys + first * stride + key_head * key_dim;
  const float* queries = args->queries + first * stride + key_head * key_dim;
  float* rows = own.rows.data();
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(rows + i * key_dim, keys + i * stride, key_dim * sizeof(float));
    std::memcpy(rows + (count + i) * key_dim, queries + i * stride, key_dim * sizeof(float));
  }
  for (int64_t k = 0; k < key_dim; ++k)
    for (int64_t i = 0; i < count; ++i) own.transposed[k * kChunk + i] = rows[i * key_dim + k];
}

// The products of row i, each by what the decays behind its key have left.
void weigh(const float* reach, int64_t i, float* products) {
  for (int64_t j = 0; j <= i; ++j) products[j] *= exponential(reach[i] - reach[j]);
}

// Keys of a chunk, a column each, as far as its tokens have come, and what each token leaves of them.
struct Held {
  std::vector<float> keys, kept, reached;
};

Held& held_of(int64_t key_dim) {
  thread_local Held own;
  own.keys.resize(key_dim * kChunk);
  own.kept.resize(kChunk * key_dim);
  own.reached.resize(2 * kChunk * key_dim);
  return own;
}

// What each token leaves, and keys and queries by what all up to theirs have left of the matrix.
void reach_back(const DeltaArgs* args, int64_t first, int64_t count, int64_t head, const float* rows,
                Held& held) {
  int64_t key_dim = args->key_dim, stride = args->value_heads * key_dim;
  const float* decays = args->decays + first * stride + head * key_dim;
  thread_local std::vector<float> reach;
  reach.assign(key_dim, 1.0f);
  std::memcpy(held.reached.data(), rows, 2 * count * key_dim * sizeof(float));
  for (int64_t i = 0; i < count; ++i) {
    float* kept = held.kept.data() + i * key_dim;
    kept_of_row(decays + i * stride, kept, key_dim);
    times(kept, reach.data(), key_dim);
    times(reach.data(), held.reached.data() + i * key_dim, key_dim);
    times(reach.data(), held.reached.data() + (count + i) * key_dim, key_dim);
  }
  std::fill(held.keys.begin(), held.keys.end(), 0.0f);
}

// The products of token i: keys before it decay once more, its own is taken up.
void products_of(const float* key, const float* query, int64_t key_dim, int64_t i, Held& held,
                 float* between, float* seen) {
  const float* kept = held.kept.data() + i * key_dim;
  int64_t columns = std::min(kChunk, (i + kWide) / kWide * kWide);
  for (int64_t k = 0; k < key_dim; ++k) {
    float* row = held.keys.data() + k * kChunk;
    for (int64_t j = 0; j < columns; ++j) row[j] *= kept[k];
    row[i] = key[k];
  }
  Rows keys{held.keys.data(), kChunk};
  multiply({key, key_dim}, keys, between, kChunk, 1, columns, key_dim, 0);
  multiply({query, key_dim}, keys, seen, kChunk, 1, columns, key_dim, 0);
}

// Mixes the tokens of one chunk for one head; own.rows and own.found have its keys and corrected values.
void chunk(const DeltaArgs* args, int64_t first, int64_t count, int64_t head, const float* matrix,
           Scratch& own) {
  int64_t key_dim = args->key_dim, value_dim = args->value_dim;
  int64_t value_stride = args->value_heads * value_dim, value_at = first * value_stride + head * value_dim;
  gather(args, first, count, head / (args->value_heads / args->key_heads), own);
  const float* keys = own.rows.data();
  const float* queries = keys + count * key_dim;
  const bool corrects = args->betas != nullptr, by_channel = args->by_channel != 0;
  const float* betas = corrects ? args->betas + first * args->value_heads + head : nullptr;
  float *known = own.known.data(), *mixed = known + count * value_dim, *found = own.found.data();
  Held& held = held_of(by_channel ? key_dim : 0);
  if (by_channel) reach_back(args, first, count, head, keys, held);
  // the matrix is gone through once for keys and queries
  if (corrects)
    multiply({by_channel ? held.reached.data() : keys, key_dim}, {matrix, value_dim}, known, value_dim, 2 * count, value_dim, key_dim, 0);
  else
    multiply({queries, key_dim}, {matrix, value_dim}, mixed, value_dim, count, value_dim, key_dim, 0);
  Rows transposed{own.transposed.data(), kChunk}, above{found, value_dim};
  float reach[kChunk], last = 0;
  const float* decays = args->decays + first * args->value_heads + head;
  for (int64_t i = 0; !by_channel && i < count; ++i) reach[i] = last += decays[i * args->value_heads];
  // in groups of rows: all that earlier groups have to do with them by tiles, the rest row by row
  float between[kRows * kChunk], seen[kRows * kChunk];
  for (int64_t low = 0; low < count; low += kRows) {
    int64_t rows = std::min(kRows, count - low);
    int64_t columns = std::min(kChunk, (low + rows + kWide - 1) / kWide * kWide);
    if (corrects && !by_channel)
      multiply({keys + low * key_dim, key_dim}, transposed, between, kChunk, rows, columns, key_dim, 0);
    if (!by_channel)
      multiply({queries + low * key_dim, key_dim}, transposed, seen, kChunk, rows, columns, key_dim, 0);
    float *out = found + low * value_dim, *mix = mixed + low * value_dim;
    for (int64_t r = 0; r < rows; ++r) {
      if (by_channel) {
        int64_t at = (low + r) * key_dim;
        products_of(keys + at, queries + at, key_dim, low + r, held, between + r * kChunk, seen + r * kChunk);
        continue;
      }
      if (corrects) weigh(reach, low + r, between + r * kChunk);
      weigh(reach, low + r, seen + r * kChunk);
      float before = std::exp(reach[low + r]);
      if (corrects) scale_by(before, known + (low + r) * value_dim, value_dim);
      scale_by(before, mix + r * value_dim, value_dim);
    }
    if (corrects) multiply({between, kChunk}, above, out, value_dim, rows, value_dim, low, 0);
    multiply({seen, kChunk}, above, mix, value_dim, rows, value_dim, low, 1);
    Rows group{out, value_dim};
    for (int64_t r = 0; r < rows; ++r, out += value_dim, mix += value_dim) {
      const float* value = args->values + value_at + (low + r) * value_stride;
      const float* before = known + (low + r) * value_dim;
      if (corrects) {
        float beta = betas[(low + r) * args->value_heads];
        multiply({between + r * kChunk + low, 0}, group, out, value_dim, 1, value_dim, r, 1);
        for (int64_t v = 0; v < value_dim; ++v) out[v] = beta * (value[v] - before[v] - out[v]);
      } else {
        std::memcpy(out, value, value_dim * sizeof(float));
      }
      multiply({seen + r * kChunk + low, 0}, group, mix, value_dim, 1, value_dim, r + 1, 1);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(args->corrected + value_at + i * value_stride, found + i * value_dim, value_dim * sizeof(float));
    std::memcpy(args->mixed + value_at + i * value_stride, mixed + i * value_dim, value_dim * sizeof(float));
  }
}

// One sequence's tokens for one head.
void sequence(const DeltaArgs* args, int64_t number, int64_t head) {
  int64_t key_dim = args->key_dim, value_dim = args->value_dim, size = key_dim * value_dim;
  Scratch& own = scratch(key_dim, value_dim);
  const float* matrix = args->matrices + args->slots[number] * args->slot_stride + head * size;
  int64_t start = args->starts[number], end = args->starts[number + 1];
  int64_t at = args->positions[number] - start;  // what a token's place lacks to its position
  int64_t decay_size = args->by_channel ? key_dim : 1, decay_stride = args->value_heads * decay_size;
  int64_t handed = args->handed_at[number] ? start + args->handed_at[number] : -1;
  for (int64_t low = start; low < end;) {
    auto factors = [&](int64_t token) {
      return Factors{{own.rows.data() + (token - low) * key_dim, key_dim},
                     {own.found.data() + (token - low) * value_dim, value_dim},
                     {args->decays + (token * args->value_heads + head) * decay_size, decay_stride},
                     args->by_channel != 0};
    };
    int64_t high = std::min(end, low + kChunk - (at + low) % kChunk);
    chunk(args, low, high - low, head, matrix, own);
    bool hands = low < handed && handed <= high;
    if (high == end && !hands) break;
    for (int64_t from = low; from < high;) {
      int64_t to = std::min(high, from + kFold - (at + from) % kFold);
      if (from < handed && handed <= to) {
        float* out = args->handed + (args->handed_to[number] * args->value_heads + head) * size;
        std::memcpy(out, matrix, size * sizeof(float));
        fold(factors(from), handed - from, key_dim, value_dim, out, own.weighted.data());
      }
      if (matrix != own.state.data()) {
        std::memcpy(own.state.data(), matrix, size * sizeof(float));
        matrix = own.state.data();
      }
      fold(factors(from), to - from, key_dim, value_dim, own.state.data(), own.weighted.data());
      from = to;
    }
    low = high;
  }
}

// Copies one head's factors out of its ring, and folds them.
void fold_ring(const DeltaFoldArgs* args, int64_t number, int64_t layer, int64_t head) {
  int64_t key_dim = args->key_dim, value_dim = args->value_dim;
  int64_t key_head = head / (args->value_heads / args->key_heads), count = args->counts[number];
  if (count == 0) return;
  thread_local std::vector<float> own;
  int64_t decay_size = args->by_channel ? key_dim : 1;
  own.resize(kFold * (key_dim + value_dim + decay_size) + key_dim * kFold);
  float* keys = own.data();
  float* corrected = keys + kFold * key_dim;
  float* decays = corrected + kFold * value_dim;
  int64_t ring = (args->rings[number] * args->layers + layer) * args->ring;
  for (int64_t i = 0; i < count; ++i) {
    int64_t place = ring + (args->committed[number] + i) % args->ring;
    std::memcpy(keys + i * key_dim, args->keys + (place * args->key_heads + key_head) * key_dim,
                key_dim * sizeof(float));
    std::memcpy(corrected + i * value_dim,
                args->corrected + (place * args->value_heads + head) * value_dim,
                value_dim * sizeof(float));
    std::memcpy(decays + i * decay_size, args->decays + (place * args->value_heads + head) * decay_size,
                decay_size * sizeof(float));
  }
  float* matrix = args->matrices + args->slots[number] * args->slot_stride +
                  (layer * args->value_heads + head) * key_dim * value_dim;
  fold({{keys, key_dim}, {corrected, value_dim}, {decays, decay_size}, args->by_channel != 0}, count, key_dim,
       value_dim, matrix, decays + kFold * decay_size);
}

}  // namespace

extern "C" {

void keepwarm_gated_delta(const DeltaArgs* args) {
  int64_t pieces = args->sequences * args->value_heads;
  bool worth = pieces * args->key_dim * args->value_dim >= kWorthNumbers;
  team::each_of(pieces, worth, [=](int64_t piece) {
    int64_t number = piece / args->value_heads, head = piece % args->value_heads;
    // right before its matrix is read: it comes from memory once
    if (args->due != nullptr) fold_ring(args->due, number, args->layer, head);
    sequence(args, number, head);
  });
}

void keepwarm_delta_fold(const DeltaFoldArgs* args) {
  int64_t heads = args->layers * args->value_heads, pieces = args->sequences * heads;
  bool worth = pieces * args->key_dim * args->value_dim >= kWorthNumbers;
  team::each_of(pieces, worth, [=](int64_t piece) {
    int64_t within = piece % heads;
    fold_ring(args, piece / heads, within / args->value_heads, within % args->value_heads);
  });
}

}  // extern "C"
