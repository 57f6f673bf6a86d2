// Products with tiled weights (linear.h) in registers of 256 bits: what all kinds of weights share.

#pragma once

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

}  // namespace

#endif
