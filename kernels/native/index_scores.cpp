// Scores by which queries choose tokens. Specification: chosen_slots_reference in
// kernels/token_choice.py.
//
// A product's sum is made number by number, a score's head by head, for each token in a lane of its own:
// so neither the rows nor the tokens beside it change a score's bits.

#include "index_scores.h"
#include "numbers.h"
#include "team.h"

namespace {

constexpr int64_t kStretch = 128;  // tokens of a piece of work
constexpr int64_t kRows = 8;       // rows of one
#ifdef __AVX512F__
constexpr int64_t kLanes = 16;  // tokens side by side, as many as a register has room for
#else
constexpr int64_t kLanes = 8;
#endif
constexpr int kHeads = 8;  // heads whose sums are made at once, so that none waits for another
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

// What is above 0 of products, NaN among it, times the heads' weights, added to the scores.
template <int kCount>
inline void add_heads(const float* queries, const float* weights, const Lanes* keys, int64_t dim,
                      Lanes& scores) {
  Lanes sums[kCount] = {}, none = {};
  for (int64_t d = 0; d < dim; ++d) {
    Lanes key = keys[d];
#pragma GCC unroll 8
    for (int h = 0; h < kCount; ++h) sums[h] += queries[h * dim + d] * key;
  }
  for (int h = 0; h < kCount; ++h) scores += weights[h] * (sums[h] < none ? none : sums[h]);
}

template <typename T>
void score(const IndexScoresArgs& args, int64_t first_row, int64_t from) {
  int64_t dim = args.dim, rows = std::min(kRows, args.rows - first_row);
  int64_t last_seen = args.first_seen + first_row + rows - 1;
  int64_t to = std::min(from + kStretch, args.tokens), end = std::min(to, last_seen);
  for (int64_t row = first_row; row < first_row + rows; ++row)
    std::fill(args.scores + row * args.tokens + from, args.scores + row * args.tokens + to, -INFINITY);
  std::vector<float> room(dim * kLanes + kLanes);
  uintptr_t place = reinterpret_cast<uintptr_t>(room.data());
  Lanes* keys = reinterpret_cast<Lanes*>((place + sizeof(Lanes) - 1) & ~(sizeof(Lanes) - 1));
  for (int64_t token = from; token < end; token += kLanes) {
    int64_t count = std::min(kLanes, end - token);
    for (int64_t i = 0; i < kLanes; ++i) {
      int64_t slot = args.slots[token + std::min(i, count - 1)];
      const T* key = static_cast<const T*>(args.keys) + slot * args.key_stride;
      for (int64_t d = 0; d < dim; ++d) keys[d][i] = widen(key[d]);
    }
    for (int64_t row = first_row; row < first_row + rows; ++row) {
      const float* queries = args.queries + row * args.heads * dim;
      const float* weights = args.weights + row * args.heads;
      Lanes scores = {};
      int64_t head = 0;
      for (; head + kHeads <= args.heads; head += kHeads)
        add_heads<kHeads>(queries + head * dim, weights + head, keys, dim, scores);
      for (; head < args.heads; ++head)
        add_heads<1>(queries + head * dim, weights + head, keys, dim, scores);
      int64_t seen = std::min(count, args.first_seen + row - token);
      for (int64_t i = 0; i < seen; ++i) args.scores[row * args.tokens + token + i] = scores[i];
    }
  }
}

template <typename T>
void score_all(const IndexScoresArgs& args) {
  int64_t groups = (args.rows + kRows - 1) / kRows;
  int64_t stretches = (args.tokens + kStretch - 1) / kStretch;
  team::each_of(groups * stretches, true, [&](int64_t piece) {
    score<T>(args, piece % groups * kRows, piece / groups * kStretch);
  });
}

}  // namespace

extern "C" {
void keepwarm_index_scores_bf16(const IndexScoresArgs* args) { score_all<bf16>(*args); }
void keepwarm_index_scores_f32(const IndexScoresArgs* args) { score_all<float>(*args); }
}
