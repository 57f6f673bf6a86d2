// Products with tiled weights (linear.h) for processors without units for bf16: weights are widened
// in registers and multiplied in single precision, sixteen outputs in two registers of eight.

#include "linear.h"

#ifdef HAVE_AVX2_ALONE

namespace {

// The sixteen outputs of a tile.
struct Lanes {
  __m256 low, high;
};

inline Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Lanes load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }

inline void add_product(Lanes& sum, const Lanes& weight, float input) {
  __m256 all = _mm256_set1_ps(input);
  sum.low = _mm256_fmadd_ps(weight.low, all, sum.low);
  sum.high = _mm256_fmadd_ps(weight.high, all, sum.high);
}

inline Lanes scaled(const Lanes& sum, const Lanes& scale) {
  return {_mm256_mul_ps(sum.low, scale.low), _mm256_mul_ps(sum.high, scale.high)};
}

inline void store(const LinearArgs& args, int64_t tile, int64_t row, const Lanes& sums) {
  alignas(32) float values[kTile];
  _mm256_store_ps(values, sums.low);
  _mm256_store_ps(values + 8, sums.high);
  int64_t count = std::min(kTile, args.outputs - tile * kTile);
  bf16* out = static_cast<bf16*>(args.output) + row * args.outputs + tile * kTile;
  for (int64_t i = 0; i < count; ++i) narrow(values[i], out + i);
}

// How a kind of weights is read: the inputs that lie together, and each one's sixteen weights.

struct Bf16 {
  static constexpr int kBits = 16;
  static constexpr int kTogether = 2, kBytes = 32;
  __m256i low, high;
  Bf16(const LinearArgs& args, int64_t tile, int64_t k) {
    auto from = reinterpret_cast<const __m256i*>(static_cast<const char*>(args.weights) +
                                                 (tile * args.inputs + k) * 32);
    low = _mm256_loadu_si256(from);
    high = _mm256_loadu_si256(from + 1);
  }
  Lanes weights(int i) const {
    if (i == 0)
      return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)),
              _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
    __m256i upper = _mm256_set1_epi32(int(0xffff0000));
    return {_mm256_castsi256_ps(_mm256_and_si256(low, upper)),
            _mm256_castsi256_ps(_mm256_and_si256(high, upper))};
  }
  static Lanes finished(const LinearArgs&, int64_t, const Lanes& sum) { return sum; }
};

struct Int8 {
  static constexpr int kBits = 8;
  static constexpr int kTogether = 1, kBytes = 16;
  Lanes wide;
  Int8(const LinearArgs& args, int64_t tile, int64_t k) {
    auto from = static_cast<const int8_t*>(args.weights) + (tile * args.inputs + k) * kTile;
    __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    wide = {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(both)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(both, 8)))};
  }
  Lanes weights(int) const { return wide; }
  static Lanes finished(const LinearArgs& args, int64_t tile, const Lanes& sum) {
    return scaled(sum, load(args.scales + tile * kTile));
  }
};

struct Int4 {
  static constexpr int kBits = 4;
  static constexpr int kTogether = 8, kBytes = 8;
  __m256i low, high;
  Lanes scale;
  Int4(const LinearArgs& args, int64_t tile, int64_t k) {
    auto from = reinterpret_cast<const __m256i*>(static_cast<const char*>(args.weights) +
                                                 (tile * args.inputs + k) * 8);
    low = _mm256_loadu_si256(from);
    high = _mm256_loadu_si256(from + 1);
    int64_t groups = args.inputs / args.group;
    scale = load(args.scales + (tile * groups + k / args.group) * kTile);
  }
  Lanes weights(int i) const {
    int shift = i % 2 * 16 + i / 2 * 4;
    return scaled({less_eight(_mm256_srli_epi32(low, shift)),
                   less_eight(_mm256_srli_epi32(high, shift))}, scale);
  }
  static __m256 less_eight(__m256i nibbles) {
    __m256i value = _mm256_and_si256(nibbles, _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(value, _mm256_set1_epi32(8)));
  }
  static Lanes finished(const LinearArgs&, int64_t, const Lanes& sum) { return sum; }
};

// Sixteen registers hold the sums of six rows and a tile, of three and two, or of one and four.
template <typename Weights>
struct Kind {
  using Input = float;
  static constexpr int kBits = Weights::kBits;
  static constexpr int kMaxRows = 6;
  static constexpr int most_rows(int tiles) { return tiles == 1 ? kMaxRows : tiles == 2 ? 3 : 1; }

  static void multiply(const LinearArgs& args, const float* x) {
    if (args.rows == 1) return strips<Kind, 4>(args, x);
    args.rows <= 3 ? strips<Kind, 2>(args, x) : strips<Kind, 1>(args, x);
  }

  template <int kRows, int kTiles>
  static void tiles(const LinearArgs& args, const float* x, int64_t tile, int64_t row) {
    constexpr int kTogether = Weights::kTogether;
    const float* from = x + row * args.inputs;
    const char* next = static_cast<const char*>(args.weights) +
                       (tile + kTiles) * args.inputs * Weights::kBytes;
    Lanes sums[kTiles][kRows];
    for (int t = 0; t < kTiles; ++t)
      for (int r = 0; r < kRows; ++r) sums[t][r] = zero();
    for (int64_t k = 0; k < args.inputs; k += kTogether) {
      if (kTiles == 1) __builtin_prefetch(next + k * Weights::kBytes, 0, 3);
      for (int t = 0; t < kTiles; ++t) {
        Weights together(args, tile + t, k);
        for (int i = 0; i < kTogether; ++i) {
          Lanes weight = together.weights(i);
          for (int r = 0; r < kRows; ++r)
            add_product(sums[t][r], weight, from[r * args.inputs + k + i]);
        }
      }
    }
    for (int t = 0; t < kTiles; ++t)
      for (int r = 0; r < kRows; ++r)
        store(args, tile + t, row + r, Weights::finished(args, tile + t, sums[t][r]));
  }
};

// The whole matrix in bf16, [outputs, inputs], to args.output.
template <typename Weights>
void widen_all(const LinearArgs& args) {
  int64_t tiles = (args.outputs + kTile - 1) / kTile;
  team::each(tiles, [&](int64_t tile) {
    int64_t count = std::min(kTile, args.outputs - tile * kTile);
    bf16* out = static_cast<bf16*>(args.output) + tile * kTile * args.inputs;
    for (int64_t k = 0; k < args.inputs; k += Weights::kTogether) {
      Weights together(args, tile, k);
      for (int i = 0; i < Weights::kTogether; ++i) {
        Lanes weight = Weights::finished(args, tile, together.weights(i));
        alignas(32) float values[kTile];
        _mm256_store_ps(values, weight.low);
        _mm256_store_ps(values + 8, weight.high);
        for (int64_t o = 0; o < count; ++o) narrow(values[o], out + o * args.inputs + k + i);
      }
    }
  });
}

// Row-major bf16 to tiles of pairs; rows past the last output are zero.
void pack_bf16(const PackArgs& args) {
  const uint32_t* weight = static_cast<const uint32_t*>(args.weight);
  uint32_t* tiles = static_cast<uint32_t*>(args.tiles);
  int64_t pairs = args.inputs / 2;
  team::each((args.outputs + kTile - 1) / kTile, [&](int64_t tile) {
    for (int64_t p = 0; p < pairs; ++p)
      for (int64_t o = 0; o < kTile; ++o) {
        int64_t output = tile * kTile + o;
        tiles[(tile * pairs + p) * kTile + o] =
            output < args.outputs ? weight[output * pairs + p] : 0;
      }
  });
}

}  // namespace

extern "C" {

int keepwarm_has_linear() { return 1; }

void keepwarm_pack_16(const PackArgs* args) { pack_bf16(*args); }
void keepwarm_pack_8(const PackArgs* args) { pack_quantised<8>(*args); }
void keepwarm_pack_4(const PackArgs* args) { pack_quantised<4>(*args); }

void keepwarm_widen_16(const LinearArgs* args) { widen_all<Bf16>(*args); }
void keepwarm_widen_8(const LinearArgs* args) { widen_all<Int8>(*args); }
void keepwarm_widen_4(const LinearArgs* args) { widen_all<Int4>(*args); }

void keepwarm_linear_16(const LinearArgs* args) { multiply_wide<Kind<Bf16>>(*args); }
void keepwarm_linear_8(const LinearArgs* args) { multiply_wide<Kind<Int8>>(*args); }
void keepwarm_linear_4(const LinearArgs* args) { multiply_wide<Kind<Int4>>(*args); }
}

#elif !defined(HAVE_BF16_UNITS)

extern "C" {

// If 0 none of the others is there.
int keepwarm_has_linear() { return 0; }
}

#endif
