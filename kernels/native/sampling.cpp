// One token per row of logits. Specification: kernels/masked_sampling.py, whose law is in whole
// numbers, so that what is drawn here is what is drawn there.

#include "numbers.h"

namespace {

struct SampleArgs {
  const void* logits;
  const int32_t* masks;  // [rows, words], or null
  const bool* masked;
  const float* scales;
  const int64_t *top_k, *top_p, *least_mass, *bits;
  int64_t* tokens;
  int64_t rows, vocab, stride, words;
};

constexpr int64_t kNoToken = -1, kNotFinite = -2;
constexpr int kPlaces = 24, kMassBits = 40, kShareBits = 53;
constexpr float kFarthest = kMassBits + 1;
constexpr int kBucketPlaces = 20;
constexpr int kBuckets = ((kMassBits + 1) << (kPlaces - kBucketPlaces)) + 1;
constexpr int64_t kWorthThreads = 1 << 14;

// Floor of whole * share * 2^-53.
inline int64_t share_of(int64_t whole, int64_t share) {
  return int64_t((unsigned __int128)(whole) * (unsigned __int128)(share) >> kShareBits);
}

inline int64_t mass_of(int32_t distance) {
  int64_t place = distance & ((1 << kPlaces) - 1);
  int64_t power = -1014583;
  power = ((power * place) >> kPlaces) + 9884650;
  power = ((power * place) >> kPlaces) - 59375086;
  power = ((power * place) >> kPlaces) + 257891465;
  power = ((power * place) >> kPlaces) - 744257403;
  power = ((power * place) >> kPlaces) + (int64_t(1) << 30);
  return (power << (kMassBits - 30)) >> (distance >> kPlaces);
}

struct Scratch {
  std::vector<int32_t> distances, some;
  std::vector<int64_t> mass;
};

// The largest distance that is kept when the nearest tokens of `wanted` mass together are.
int32_t reach(const Scratch& row, int64_t wanted, std::vector<int32_t>* some) {
  int64_t sums[kBuckets] = {};
  for (size_t i = 0; i < row.mass.size(); ++i)
    sums[row.distances[i] >> kBucketPlaces] += row.mass[i];
  int32_t bucket = 0;
  int64_t before = 0;
  while (before + sums[bucket] < wanted) before += sums[bucket++];
  some->clear();
  for (size_t i = 0; i < row.mass.size(); ++i)
    if (row.distances[i] >> kBucketPlaces == bucket && row.mass[i])
      some->push_back(row.distances[i]);
  std::sort(some->begin(), some->end());
  for (int32_t distance : *some)
    if ((before += mass_of(distance)) >= wanted) return distance;
  return some->back();
}

int64_t draw(Scratch& row, int64_t vocab, int64_t top_k, int64_t top_p, int64_t least_mass,
             int64_t bits) {
  int32_t* distances = row.distances.data();
  int64_t* mass = row.mass.data();
  if (top_k) {
    row.some = row.distances;
    std::nth_element(row.some.begin(), row.some.begin() + (top_k - 1), row.some.end());
    int32_t limit = row.some[top_k - 1];
    for (int64_t i = 0; i < vocab; ++i) mass[i] = distances[i] > limit ? 0 : mass[i];
  }
  if (top_p) {
    int64_t total = 0;
    for (int64_t i = 0; i < vocab; ++i) total += mass[i];
    int32_t limit = reach(row, std::max<int64_t>(share_of(total, top_p), 1), &row.some);
    for (int64_t i = 0; i < vocab; ++i) mass[i] = distances[i] > limit ? 0 : mass[i];
  }
  int64_t total = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    mass[i] = mass[i] < least_mass ? 0 : mass[i];
    total += mass[i];
  }
  int64_t target = share_of(total, bits), upto = 0;
  for (int64_t i = 0; i < vocab; ++i)
    if ((upto += mass[i]) > target) return i;
  return kNoToken;  // cannot be: the best token has mass
}

template <typename T>
int64_t sample(const SampleArgs& args, int64_t r, Scratch& row) {
  const T* logits = static_cast<const T*>(args.logits) + r * args.stride;
  const int32_t* words = args.masks && args.masked[r] ? args.masks + r * args.words : nullptr;
  int64_t vocab = args.vocab;
  auto allowed = [&](int64_t i) {
    return !words || (i / 32 < args.words && words[i / 32] >> (i % 32) & 1);
  };
  T sum = 0;  // of zeros, unless a logit is not finite
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < vocab; ++i) sum += logits[i] * T(0);
  if (!(sum == 0)) return kNotFinite;
  int64_t first = -1;
  T best = 0;
  if (words) {
    for (int64_t i = 0; i < vocab; ++i)
      if (allowed(i) && (first < 0 || logits[i] > best)) best = logits[first = i];
    if (first < 0) return kNoToken;
  } else {
    best = logits[0];
#pragma omp simd reduction(max : best)
    for (int64_t i = 0; i < vocab; ++i) best = std::max(best, logits[i]);
  }
  float scale = args.scales[r];
  if (scale == 0) {
    for (first = 0; !(logits[first] == best && allowed(first));) ++first;
    return first;
  }
  row.distances.resize(vocab);
  row.mass.resize(vocab);
  int32_t* distances = row.distances.data();
  int64_t* mass = row.mass.data();
#pragma omp simd
  for (int64_t i = 0; i < vocab; ++i) {
    float far = float(best - logits[i]) * scale;
    distances[i] = int32_t(std::min(std::max(far, 0.0f), kFarthest) * float(1 << kPlaces));
  }
  if (words)
    for (int64_t i = 0; i < vocab; ++i)
      if (!allowed(i)) distances[i] = int32_t(kFarthest) << kPlaces;
#pragma omp simd
  for (int64_t i = 0; i < vocab; ++i) mass[i] = mass_of(distances[i]);
  return draw(row, vocab, args.top_k[r], args.top_p[r], args.least_mass[r], args.bits[r]);
}

template <typename T>
void sample_rows(const SampleArgs& args) {
#pragma omp parallel if (args.rows > 1 && args.rows * args.vocab > kWorthThreads)
  {
    Scratch row;
#pragma omp for schedule(dynamic)
    for (int64_t r = 0; r < args.rows; ++r) args.tokens[r] = sample<T>(args, r, row);
  }
}

}  // namespace

extern "C" {

void keepwarm_sample_f32(const SampleArgs* args) { sample_rows<float>(*args); }
void keepwarm_sample_f64(const SampleArgs* args) { sample_rows<double>(*args); }
}
