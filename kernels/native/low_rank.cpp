// What adapters of low rank add to a linear map, row by row: y += up (down x).
//
// A row is computed by itself, with sums in single precision and in one order, whatever other rows
// and adapters are in the step. Each adapter has a line in a table of numbers, which
// kernels/low_rank.py makes once.

#include "low_rank.h"

#include "numbers.h"
#include "team.h"

namespace {

constexpr int64_t kPiece = 512;
constexpr int64_t kWorthNumbers = 1 << 13;  // of each rank

template <typename T>
float dot(const T* a, const T* b, int64_t size) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) sum += widen(a[i]) * widen(b[i]);
  return sum;
}

// One of the maps side by side: from its ranks to its outputs.
template <typename T>
void add_outputs(const T* up, const float* inner, int64_t rank, T* y, int64_t outputs) {
  for (int64_t from = 0; from < outputs; from += kPiece) {
    int64_t count = std::min(kPiece, outputs - from);
    float sums[kPiece] = {};
    for (int64_t r = 0; r < rank; ++r) {
      const T* line = up + r * outputs + from;
      float factor = inner[r];
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) sums[i] += factor * widen(line[i]);
    }
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) narrow(widen(y[from + i]) + sums[i], y + from + i);
  }
}

template <typename T>
void add_row(const LowRankArgs* args, int64_t place) {
  const LowRankLine* line = args->table + args->adapter_of[place];
  if (!line->down) return;
  int64_t row = args->rows[place];
  const T* x = static_cast<const T*>(args->x) + row * args->inputs;
  const T* down = static_cast<const T*>(line->down);
  thread_local std::vector<float> inner;
  inner.resize(line->ranks);
  for (int64_t r = 0; r < line->ranks; ++r) inner[r] = dot(down + r * args->inputs, x, args->inputs);
  for (int64_t i = 0; i < line->num_ups; ++i) {
    const LowRankUp& up = args->ups[line->first_up + i];
    T* y = static_cast<T*>(args->result) + row * args->outputs + up.first_output;
    add_outputs(static_cast<const T*>(up.matrix), inner.data() + up.first_rank, up.rank, y, up.outputs);
  }
}

template <typename T>
void add_low_rank(const LowRankArgs* args) {
  bool worth = args->count * (args->inputs + args->outputs) >= kWorthNumbers;
  team::each_of(args->count, worth, [=](int64_t place) { add_row<T>(args, place); });
}

}  // namespace

extern "C" {
void keepwarm_low_rank_bf16(const LowRankArgs* args) { add_low_rank<bf16>(args); }
void keepwarm_low_rank_f32(const LowRankArgs* args) { add_low_rank<float>(args); }
}
