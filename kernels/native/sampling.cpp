// One token per row of logits. Specification: kernels/masked_sampling.py, whose law is in whole
// numbers, so that what is drawn here is what is drawn there.

#include "numbers.h"
#include "team.h"

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
constexpr int64_t kBlock = 1024;  // tokens, whole words of a mask

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

#ifdef HAVE_BF16_UNITS
// The same of 8 distances in 64 bits. Every factor fits into 32, of which the processor makes products
// faster than of 64.
inline __m512i masses_of_8(__m512i distances) {
  __m512i place = _mm512_and_si512(distances, _mm512_set1_epi64((1 << kPlaces) - 1));
  __m512i power = _mm512_set1_epi64(-1014583);
  for (int64_t next : {9884650, -59375086, 257891465, -744257403, 1 << 30}) {
    power = _mm512_srai_epi64(_mm512_mul_epi32(power, place), kPlaces);
    power = _mm512_add_epi64(power, _mm512_set1_epi64(next));
  }
  power = _mm512_slli_epi64(power, kMassBits - 30);
  return _mm512_srlv_epi64(power, _mm512_srli_epi64(distances, kPlaces));
}
#endif

// Masses of distances.
void masses_of(const int32_t* distances, int64_t count, int64_t* mass) {
  int64_t i = 0;
#ifdef HAVE_BF16_UNITS
  for (; i + 8 <= count; i += 8) {
    __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(distances + i));
    _mm512_storeu_si512(mass + i, masses_of_8(_mm512_cvtepi32_epi64(some)));
  }
#endif
#pragma omp simd
  for (int64_t at = i; at < count; ++at) mass[at] = mass_of(distances[at]);
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

// What is drawn from: logits of one row, of which a mask may allow some.
template <typename T>
struct Row {
  const T* logits;
  const int32_t* words;  // or null
  int64_t vocab, num_words;

  bool allowed(int64_t i) const {
    return !words || (i / 32 < num_words && words[i / 32] >> (i % 32) & 1);
  }
  // The mask of the 32 tokens from `first` on.
  uint32_t word(int64_t first) const {
    if (!words) return ~uint32_t(0);
    return first / 32 < num_words ? uint32_t(words[first / 32]) : 0;
  }
};

template <typename T>
inline int32_t distance_of(T logit, T best, float scale) {
  float far = float(best - logit) * scale;
  return int32_t(std::min(std::max(far, 0.0f), kFarthest) * float(1 << kPlaces));
}

// Whether all logits are finite, and the best one.
template <typename T>
bool finite_and_best(const T* logits, int64_t vocab, T* best) {
  T sum = 0, most = logits[0];  // the sum is one of zeros, unless a logit is not finite
#pragma omp simd reduction(+ : sum) reduction(max : most)
  for (int64_t i = 0; i < vocab; ++i) {
    sum += logits[i] * T(0);
    most = logits[i] > most ? logits[i] : most;  // std::max here is computed one by one
  }
  *best = most;
  return sum == 0;
}

#ifdef HAVE_BF16_UNITS
bool finite_and_best(const float* logits, int64_t vocab, float* best) {
  __m512 sums[4], most[4];
  for (int k = 0; k < 4; ++k) sums[k] = _mm512_setzero_ps(), most[k] = _mm512_set1_ps(logits[0]);
  int64_t i = 0;
  auto take = [&](int k, __m512 some) {
    sums[k] = _mm512_fmadd_ps(some, _mm512_setzero_ps(), sums[k]);
    most[k] = _mm512_max_ps(most[k], some);
  };
  for (; i + 64 <= vocab; i += 64)
    for (int k = 0; k < 4; ++k) take(k, _mm512_loadu_ps(logits + i + 16 * k));
  for (; i < vocab; i += 16)
    take(0, _mm512_mask_loadu_ps(most[0], left_of(vocab, i), logits + i));
  for (int k = 1; k < 4; ++k)
    sums[0] = _mm512_add_ps(sums[0], sums[k]), most[0] = _mm512_max_ps(most[0], most[k]);
  *best = _mm512_reduce_max_ps(most[0]);
  return _mm512_reduce_add_ps(sums[0]) == 0;
}
#endif

// The best logit that is allowed; false where none is.
template <typename T>
bool best_of(const Row<T>& row, T* best) {
  bool found = false;
  for (int64_t first = 0; first < row.vocab; first += 32) {
    uint32_t word = row.word(first);
    int64_t count = std::min<int64_t>(32, row.vocab - first);
    if (count < 32) word &= (uint32_t(1) << count) - 1;
    for (; word; word &= word - 1) {
      T logit = row.logits[first + __builtin_ctz(word)];
      if (!found || logit > *best) *best = logit;
      found = true;
    }
  }
  return found;
}

#ifdef HAVE_BF16_UNITS
bool best_of(const Row<float>& row, float* best) {
  __m512 most = _mm512_set1_ps(-INFINITY);
  __mmask16 any = 0;
  for (int64_t at = 0; at < row.vocab; at += 16) {
    __mmask16 some = left_of(row.vocab, at) & (row.word(at & ~int64_t(31)) >> (at & 16));
    most = _mm512_mask_max_ps(most, some, most, _mm512_maskz_loadu_ps(some, row.logits + at));
    any |= some;
  }
  if (any) *best = _mm512_reduce_max_ps(most);
  return any;
}
#endif

// Masses of `count` <= kBlock tokens from `first` on, into `mass`; returns their sum.
template <typename T>
int64_t masses(const Row<T>& row, int64_t first, int64_t count, T best, float scale,
               int64_t least_mass, int64_t* mass) {
  const T* logits = row.logits + first;
  int64_t sum = 0;
  if (!row.words) {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) {
      int64_t found = mass_of(distance_of(logits[i], best, scale));
      mass[i] = found < least_mass ? 0 : found;
      sum += mass[i];
    }
    return sum;
  }
  for (int64_t at = 0; at < count; at += 32) {
    uint32_t word = row.word(first + at);
    int64_t some = std::min<int64_t>(32, count - at);
    if (!word) {
      std::fill_n(mass + at, some, 0);
      continue;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < some; ++i) {
      int64_t found = mass_of(distance_of(logits[at + i], best, scale));
      mass[at + i] = (word >> i & 1) && found >= least_mass ? found : 0;
      sum += mass[at + i];
    }
  }
  return sum;
}

#ifdef HAVE_BF16_UNITS
// The same for logits in single precision.
int64_t masses(const Row<float>& row, int64_t first, int64_t count, float best, float scale,
               int64_t least_mass, int64_t* mass) {
  const __m512 nearest = _mm512_set1_ps(best), times = _mm512_set1_ps(scale);
  const __m512i least = _mm512_set1_epi64(least_mass);
  __m512i sum = _mm512_setzero_si512();
  for (int64_t at = 0; at < count; at += 16) {
    __mmask16 some = left_of(count, at) & (row.word((first + at) & ~int64_t(31)) >> (at & 16));
    __m512 logits = _mm512_maskz_loadu_ps(left_of(count, at), row.logits + first + at);
    __m512 far = _mm512_mul_ps(_mm512_sub_ps(nearest, logits), times);
    far = _mm512_min_ps(_mm512_max_ps(far, _mm512_setzero_ps()), _mm512_set1_ps(kFarthest));
    __m512i distances = _mm512_cvttps_epi32(_mm512_mul_ps(far, _mm512_set1_ps(1 << kPlaces)));
    for (int half = 0; half < 2; ++half, some >>= 8) {
      __m256i eight = half ? _mm512_extracti64x4_epi64(distances, 1)
                           : _mm512_castsi512_si256(distances);
      __m512i found = masses_of_8(_mm512_cvtepi32_epi64(eight));
      found = _mm512_maskz_mov_epi64(_mm512_mask_cmpge_epi64_mask(some, found, least), found);
      _mm512_storeu_si512(mass + at + 8 * half, found);
      sum = _mm512_add_epi64(sum, found);
    }
  }
  return _mm512_reduce_add_epi64(sum);
}
#endif

// A draw that looks at no token's rank: masses are summed up by blocks, and those of the block that
// has the token are computed once more. So nothing as long as the vocabulary is written.
template <typename T>
int64_t draw_unranked(const Row<T>& row, T best, float scale, int64_t least_mass, int64_t bits,
                      std::vector<int64_t>* sums) {
  int64_t mass[kBlock];
  int64_t total = 0;
  sums->clear();
  for (int64_t first = 0; first < row.vocab; first += kBlock) {
    int64_t count = std::min(kBlock, row.vocab - first);
    sums->push_back(masses(row, first, count, best, scale, least_mass, mass));
    total += sums->back();
  }
  int64_t target = share_of(total, bits), upto = 0, block = 0;
  while (upto + (*sums)[block] <= target) upto += (*sums)[block++];
  int64_t first = block * kBlock;
  masses(row, first, std::min(kBlock, row.vocab - first), best, scale, least_mass, mass);
  int64_t i = 0;
  while ((upto += mass[i]) <= target) ++i;
  return first + i;
}

template <typename T>
int64_t sample(const SampleArgs& args, int64_t r, Scratch& scratch) {
  const T* logits = static_cast<const T*>(args.logits) + r * args.stride;
  const int32_t* words = args.masks && args.masked[r] ? args.masks + r * args.words : nullptr;
  int64_t vocab = args.vocab;
  Row<T> row{logits, words, vocab, args.words};
  T best;
  if (!finite_and_best(logits, vocab, &best)) return kNotFinite;
  if (words && !best_of(row, &best)) return kNoToken;
  float scale = args.scales[r];
  if (scale == 0) {
    int64_t first = 0;
    while (!(logits[first] == best && row.allowed(first))) ++first;
    return first;
  }
  int64_t top_k = args.top_k[r], top_p = args.top_p[r], least_mass = args.least_mass[r];
  if (!top_k && !top_p)
    return draw_unranked(row, best, scale, least_mass, args.bits[r], &scratch.mass);
  scratch.distances.resize(vocab);
  scratch.mass.resize(vocab);
  int32_t* distances = scratch.distances.data();
  int64_t* mass = scratch.mass.data();
#pragma omp simd
  for (int64_t i = 0; i < vocab; ++i) distances[i] = distance_of(logits[i], best, scale);
  if (words)
    for (int64_t i = 0; i < vocab; ++i)
      if (!row.allowed(i)) distances[i] = int32_t(kFarthest) << kPlaces;
  masses_of(distances, vocab, mass);
  return draw(scratch, vocab, top_k, top_p, least_mass, args.bits[r]);
}

template <typename T>
void sample_rows(const SampleArgs& args) {
  team::each_of(args.rows, args.rows * args.vocab > kWorthThreads, [&](int64_t r) {
    static thread_local Scratch scratch;
    args.tokens[r] = sample<T>(args, r, scratch);
  });
}

}  // namespace

extern "C" {

void keepwarm_sample_f32(const SampleArgs* args) { sample_rows<float>(*args); }
void keepwarm_sample_f64(const SampleArgs* args) { sample_rows<double>(*args); }
}
