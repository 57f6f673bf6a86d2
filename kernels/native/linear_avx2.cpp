// Products with tiled weights (linear.h) for processors without units for bf16: weights are widened
// in registers and multiplied in single precision, sixteen outputs in two registers of eight.

#include "linear_avx2.h"

#ifdef HAVE_AVX2_ALONE

namespace {

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
