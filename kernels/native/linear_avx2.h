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

// Weights of a tile that were widened to single precision: [inputs][16].
template <typename Weights>
struct LaidOut {
  static constexpr int kBits = 0;  // in the cache: nothing is asked for ahead
  static constexpr int kTogether = 1, kBytes = 4 * kTile;
  Lanes wide;
  LaidOut(const LinearArgs& args, int64_t tile, int64_t k)
      : wide(load(static_cast<const float*>(args.weights) + (tile * args.inputs + k) * kTile)) {}
  Lanes weights(int) const { return wide; }
  static Lanes finished(const LinearArgs& args, int64_t tile, const Lanes& sum) {
    return Weights::finished(args, tile, sum);
  }
};

constexpr int64_t kManyRows = 13;  // from so many on codes are widened once for all of them

// Sixteen registers hold the sums of six rows and a tile, of three and two, or of one and four.
template <typename Weights>
struct Kind {
  using Input = float;
  static constexpr int kBits = Weights::kBits;
  static constexpr int kMaxRows = 6;
  static constexpr int most_rows(int tiles) { return tiles == 1 ? kMaxRows : tiles == 2 ? 3 : 1; }

  static void multiply(const LinearArgs& args, const float* x) {
    if (kBits < 16 && args.rows >= kManyRows)
      return team::each((args.outputs + kTile - 1) / kTile,
                        [&](int64_t tile) { laid_out(args, x, tile); });
    if (args.rows == 1) return strips<Kind, 4>(args, x);
    args.rows <= 3 ? strips<Kind, 2>(args, x) : strips<Kind, 1>(args, x);
  }

  static void laid_out(const LinearArgs& args, const float* x, int64_t tile) {
    static thread_local Room room;
    float* to = reinterpret_cast<float*>(room.of(args.inputs * kTile * 4));
    LinearArgs strip = args;
    strip.weights = to - tile * args.inputs * kTile;  // where the first tile of all would be
    for (int64_t k = 0; k < args.inputs; k += Weights::kTogether) {
      Weights together(args, tile, k);
      for (int i = 0; i < Weights::kTogether; ++i, to += kTile) {
        Lanes weight = together.weights(i);
        _mm256_store_ps(to, weight.low);
        _mm256_store_ps(to + 8, weight.high);
      }
    }
    rows_of<Kind<LaidOut<Weights>>, 1>(strip, x, tile);
  }

  template <int kRows, int kTiles>
  static void tiles(const LinearArgs& args, const float* x, int64_t tile, int64_t row) {
    constexpr int kTogether = Weights::kTogether;
    const float* from = x + row * args.inputs;
    const char* next = static_cast<const char*>(args.weights) +
                       (tile + kTiles) * args.inputs * Weights::kBytes;
    __m256 low[kTiles][kRows], high[kTiles][kRows];
    for (int t = 0; t < kTiles; ++t)
      for (int r = 0; r < kRows; ++r) low[t][r] = high[t][r] = _mm256_setzero_ps();
    for (int64_t k = 0; k < args.inputs; k += kTogether) {
      if (kTiles == 1 && kBits) __builtin_prefetch(next + k * Weights::kBytes, 0, 3);
      for (int t = 0; t < kTiles; ++t) {
        Weights together(args, tile + t, k);
        for (int i = 0; i < kTogether; ++i) {
          Lanes weight = together.weights(i);
          for (int r = 0; r < kRows; ++r) {
            __m256 input = _mm256_set1_ps(from[r * args.inputs + k + i]);
            low[t][r] = _mm256_fmadd_ps(weight.low, input, low[t][r]);
            high[t][r] = _mm256_fmadd_ps(weight.high, input, high[t][r]);
          }
        }
      }
    }
    alignas(32) float sums[kTiles][kRows][kTile];
    for (int t = 0; t < kTiles; ++t)
      for (int r = 0; r < kRows; ++r) {
        _mm256_store_ps(sums[t][r], low[t][r]);
        _mm256_store_ps(sums[t][r] + 8, high[t][r]);
      }
    for (int t = 0; t < kTiles; ++t)
      for (int r = 0; r < kRows; ++r)
        store(args, tile + t, row + r, Weights::finished(args, tile + t, load(sums[t][r])));
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
