// What products with tiled weights share, whatever registers a processor has.
//
// Weights lie in tiles of 16 outputs, so that a register's lanes are outputs and nothing is summed
// across lanes. A tile is read once, front to back, for as many rows as the registers hold sums
// for; a row's sums are made in one order, whatever rows are beside it.
//
// 16 bits: [tiles][inputs / 2][16][2] bf16.
// 8 bits: [tiles][inputs][16] int8, scales [tiles][16].
// 4 bits: [tiles][inputs / 8] of 64 bytes: nibble j of the 16-bit lane 2 o + b is the weight of
// output o and input 2 j + b, plus 8. Scales [tiles][inputs / group][16].

#pragma once

#include <cstdlib>

#include "numbers.h"
#include "team.h"

extern "C" {

struct LinearArgs {
  const void* x;        // [rows, inputs] bf16, contiguous
  const void* weights;  // tiles, see above
  const float* scales;  // none for 16 bits
  void* output;         // [rows, outputs] bf16
  int64_t rows;
  int64_t inputs;
  int64_t outputs;      // the last tile may be part full
  int64_t group;        // inputs that share a scale
  const int8_t* zeros;  // [tiles][groups][16], or none: coded_linear.cpp
};

struct PackArgs {
  const void* weight;  // [outputs, inputs] bf16
  void* tiles;
  float* scales;       // zero where there is no output
  int64_t inputs;      // a multiple of 32
  int64_t outputs;
  int64_t group;
};
}

namespace {

constexpr int64_t kTile = 16;
// With so many parts of rows to a tile, the next tiles are asked for meanwhile; with fewer the memory
// has no time to spare.
constexpr int64_t kManyParts = 4;
constexpr int64_t kPart = 4096;  // numbers that are widened at a time
constexpr int64_t kRowBytes = 512 << 10;  // of rows in single precision that stay in the L2 cache

// A thread's memory for what it lays out, kept from call to call, in whole lines of the cache.
class Room {
 public:
  ~Room() { std::free(data_); }
  char* of(int64_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      data_ = static_cast<char*>(std::aligned_alloc(64, bytes)), size_ = bytes;
    }
    return data_;
  }

 private:
  char* data_ = nullptr;
  int64_t size_ = 0;
};

template <typename Kind, int kTiles, int kRows>
void rows_at_once(const LinearArgs& args, const typename Kind::Input* x, int64_t tile,
                  int64_t row, int64_t count) {
  if constexpr (kRows > 1)
    if (count < kRows) return rows_at_once<Kind, kTiles, kRows - 1>(args, x, tile, row, count);
  Kind::template tiles<kRows, kTiles>(args, x, tile, row);
}

// Asks for a share of the kTiles tiles from `tile` on, where there are so many: `part` of `parts`.
// A call of it would be dropped, since it has no result.
template <typename Kind, int kTiles>
[[gnu::always_inline]] inline void ask_for(const LinearArgs& args, int64_t tile, int64_t part, int64_t parts) {
  if ((tile + kTiles) * kTile > args.outputs) return;
  int64_t bytes = kTile * args.inputs * Kind::kBits / 8, size = kTiles * bytes;
  const char* from = static_cast<const char*>(args.weights) + tile * bytes;
  int64_t end = size * (part + 1) / parts & ~int64_t(63);
  for (int64_t at = size * part / parts & ~int64_t(63); at < end; at += 64)
    __builtin_prefetch(from + at, 0, 2);
}

// Parts of rows differ by one at most: eight are four and four, not six and two.
template <typename Kind, int kTiles>
void rows_of(const LinearArgs& args, const typename Kind::Input* x, int64_t tile) {
  constexpr int kMost = Kind::most_rows(kTiles);
  int64_t parts = (args.rows + kMost - 1) / kMost;
  int64_t each = parts ? args.rows / parts : 0, longer = parts ? args.rows % parts : 0;
  int64_t row = 0;
  for (int64_t part = 0; part < parts; ++part) {
    if (parts >= kManyParts) ask_for<Kind, kTiles>(args, tile + kTiles, part, parts);
    int64_t count = each + (part < longer);
    rows_at_once<Kind, kTiles, kMost>(args, x, tile, row, count);
    row += count;
  }
}

template <typename Kind, int kTiles>
void strips(const LinearArgs& args, const typename Kind::Input* x) {
  int64_t tiles = (args.outputs + kTile - 1) / kTile, whole = tiles / kTiles;
  int64_t left = tiles - kTiles * whole;
  team::each(whole + left, [&](int64_t i) {
    i < whole ? rows_of<Kind, kTiles>(args, x, kTiles * i)
              : rows_of<Kind, 1>(args, x, kTiles * whole + i - whole);
  });
}

// Multiplies in single precision, so many rows at a time that they stay in the cache.
template <typename Kind>
void multiply_wide(const LinearArgs& args) {
  int64_t most = std::max<int64_t>(kRowBytes / 4 / args.inputs / Kind::kMaxRows, 1) * Kind::kMaxRows;
  std::vector<float> wide(std::min(most, args.rows) * args.inputs);
  LinearArgs part = args;
  for (int64_t row = 0; row < args.rows; row += most) {
    part.rows = std::min(most, args.rows - row);
    part.output = static_cast<bf16*>(args.output) + row * args.outputs;
    const bf16* x = static_cast<const bf16*>(args.x) + row * args.inputs;
    int64_t count = part.rows * args.inputs;
    team::each_of((count + kPart - 1) / kPart, count > 1 << 15, [&](int64_t i) {
      int64_t end = std::min(count, (i + 1) * kPart);
#pragma omp simd
      for (int64_t at = i * kPart; at < end; ++at) wide[at] = widen(x[at]);
    });
    Kind::multiply(part, wide.data());
  }
}

// One stretch of inputs that share a scale: the scale and the rounded values.
template <int kBits>
float quantise(const bf16* weight, int64_t count, int8_t* values) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    float value = widen(weight[i]);
    if (std::fabs(value) > std::fabs(largest)) largest = value;
  }
  float scale = kBits == 8 ? std::max(std::fabs(largest), 1e-12f) / 127.0f
                           : (largest == 0 ? 1.0f : largest / -8.0f);
  float limit = kBits == 8 ? 127.0f : 7.0f;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    float value = (widen(weight[i]) / scale + 12582912.0f) - 12582912.0f;  // to nearest, even
    values[i] = int8_t(std::min(value, limit));
  }
  return scale;
}

template <int kBits>
void pack_quantised(const PackArgs& args) {
  int64_t inputs = args.inputs, group = kBits == 8 ? inputs : args.group, groups = inputs / group;
  team::each((args.outputs + kTile - 1) / kTile, [&](int64_t tile) {
    std::vector<int8_t> values(kTile * inputs);
    for (int64_t o = 0; o < std::min(kTile, args.outputs - tile * kTile); ++o)
      for (int64_t g = 0; g < groups; ++g) {
        const bf16* weight =
            static_cast<const bf16*>(args.weight) + (tile * kTile + o) * inputs + g * group;
        args.scales[(tile * groups + g) * kTile + o] =
            quantise<kBits>(weight, group, &values[o * inputs + g * group]);
      }
    if (kBits == 8) {
      int8_t* out = static_cast<int8_t*>(args.tiles) + tile * inputs * kTile;
      for (int64_t k = 0; k < inputs; ++k)
        for (int64_t o = 0; o < kTile; ++o) out[k * kTile + o] = values[o * inputs + k];
    } else {
      uint16_t* out = static_cast<uint16_t*>(args.tiles) + tile * inputs / 8 * 32;
      for (int64_t k = 0; k < inputs; k += 8)
        for (int64_t o = 0; o < kTile; ++o)
          for (int64_t b = 0; b < 2; ++b) {
            const int8_t* from = &values[o * inputs + k + b];
            uint32_t lane = 0;
            for (int j = 0; j < 4; ++j) lane |= uint32_t(from[2 * j] + 8) << 4 * j;
            out[k / 8 * 32 + 2 * o + b] = uint16_t(lane);
          }
    }
  });
}

}  // namespace
