// What adapters of low rank add to a linear map: y += up (down x), row by row.
//
// A row's result is the same bits whatever other rows and adapters are in the step: its sums are in
// single precision, in lanes of fixed order, also where several rows of one adapter are taken
// together, so that its matrices are read once for them.

#include "low_rank.h"

#include "numbers.h"
#include "team.h"

namespace {

#ifdef __AVX512F__
constexpr int64_t kLanes = 16;
#else
constexpr int64_t kLanes = 8;
#endif
constexpr int64_t kTogether = 8;  // rows: their sums stay in registers
constexpr int64_t kWorthNumbers = 1 << 14;

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef uint16_t Halves __attribute__((vector_size(kLanes * sizeof(uint16_t))));
typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));

inline Floats load(const float* from) {
  Floats values;
  std::memcpy(&values, from, sizeof values);
  return values;
}
inline Floats load(const bf16* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  Words words = __builtin_convertvector(halves, Words) << 16;
  Floats values;
  std::memcpy(&values, &words, sizeof values);
  return values;
}

// The first of them, zeros behind.
template <typename T>
inline Floats load_some(const T* from, int64_t count) {
  T some[kLanes] = {};
  std::memcpy(some, from, count * sizeof(T));
  return load(some);
}

inline float sum_of(Floats values) {
  float sum = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) sum += values[lane];
  return sum;
}

// kRows rows x [kRows, stride] by one row of down; results are kRows numbers, ranks apart.
template <int kRows, typename T>
inline void dots(const T* down, const float* x, int64_t stride, int64_t inputs, float* inner, int64_t ranks) {
  Floats sums[kRows] = {};
  int64_t whole = inputs / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    Floats weights = load(down + i);
    for (int row = 0; row < kRows; ++row) sums[row] += weights * load(x + row * stride + i);
  }
  if (whole < inputs) {
    Floats weights = load_some(down + whole, inputs - whole);
    for (int row = 0; row < kRows; ++row) sums[row] += weights * load(x + row * stride + whole);
  }
  for (int row = 0; row < kRows; ++row) inner[row * ranks] = sum_of(sums[row]);
}

// Some neighbouring outputs of kRows rows; count is at most kLanes.
template <int kRows, bool kAll, typename T>
inline void add_lanes(const LowRankUp& up, int64_t from, int64_t count, const float* inner, int64_t ranks,
                      T** y) {
  const T* matrix = static_cast<const T*>(up.matrix) + from;
  Floats sums[kRows] = {};
  for (int64_t r = 0; r < up.rank; ++r) {
    const T* line = matrix + r * up.outputs;
    Floats weights = kAll ? load(line) : load_some(line, count);
    for (int row = 0; row < kRows; ++row) sums[row] += weights * inner[row * ranks + r];
  }
  for (int row = 0; row < kRows; ++row) {
    T* out = y[row] + up.first_output + from;
    float added[kLanes];
    std::memcpy(added, &sums[row], sizeof added);
    if (kAll) {
#pragma omp simd
      for (int64_t lane = 0; lane < kLanes; ++lane) narrow(widen(out[lane]) + added[lane], out + lane);
    } else {
      for (int64_t lane = 0; lane < count; ++lane) narrow(widen(out[lane]) + added[lane], out + lane);
    }
  }
}

template <int kRows, typename T>
void add_rows(const LowRankArgs* args, const LowRankLine& line, const int64_t* rows) {
  int64_t inputs = args->inputs, ranks = line.ranks;
  int64_t stride = (inputs + kLanes - 1) / kLanes * kLanes;
  thread_local std::vector<float> wide, inner;
  wide.assign(kRows * stride, 0.0f);
  inner.resize(kRows * ranks);
  T* y[kRows];
  for (int row = 0; row < kRows; ++row) {
    const T* x = static_cast<const T*>(args->x) + rows[row] * inputs;
    for (int64_t i = 0; i < inputs; ++i) wide[row * stride + i] = widen(x[i]);
    y[row] = static_cast<T*>(args->result) + rows[row] * args->outputs;
  }
  const T* down = static_cast<const T*>(line.down);
  for (int64_t r = 0; r < ranks; ++r)
    dots<kRows>(down + r * inputs, wide.data(), stride, inputs, inner.data() + r, ranks);
  for (int64_t i = 0; i < line.num_ups; ++i) {
    const LowRankUp& up = args->ups[line.first_up + i];
    const float* own = inner.data() + up.first_rank;
    int64_t whole = up.outputs / kLanes * kLanes;
    for (int64_t from = 0; from < whole; from += kLanes)
      add_lanes<kRows, true>(up, from, kLanes, own, ranks, y);
    if (whole < up.outputs) add_lanes<kRows, false>(up, whole, up.outputs - whole, own, ranks, y);
  }
}

template <typename T>
void add_low_rank(const LowRankArgs* args) {
  std::vector<int64_t> starts;  // of rows that are taken together
  for (int64_t at = 0; at < args->count;) {
    starts.push_back(at);
    int64_t end = at + 1, most = std::min(args->count, at + kTogether);
    while (end < most && args->adapter_of[end] == args->adapter_of[at]) ++end;
    at = end;
  }
  starts.push_back(args->count);
  bool worth = args->count * (args->inputs + args->outputs) >= kWorthNumbers;
  team::each_of(int64_t(starts.size()) - 1, worth, [&](int64_t piece) {
    int64_t begin = starts[piece], end = starts[piece + 1];
    const LowRankLine& line = args->table[args->adapter_of[begin]];
    if (!line.down) return;
    if (end - begin == kTogether) return add_rows<kTogether, T>(args, line, args->rows + begin);
    for (int64_t at = begin; at < end; ++at) add_rows<1, T>(args, line, args->rows + at);
  });
}

}  // namespace

extern "C" {
void keepwarm_low_rank_bf16(const LowRankArgs* args) { add_low_rank<bf16>(args); }
void keepwarm_low_rank_f32(const LowRankArgs* args) { add_low_rank<float>(args); }
}
