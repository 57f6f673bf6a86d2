// Products by the matrix unit (Intel AMX) with weights of 16 bits: the tiles of linear.h are what it
// wants on its right side.

#include "linear.h"
#include "matrix_unit.h"

#ifdef HAVE_MATRIX_UNIT

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

namespace {

constexpr int64_t kDepth = 32;  // inputs of a tile
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kStretch = 8;  // inputs / 32 whose weights are used for all rows before the next

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

// Rows of x by tiles of 16 rows, each [inputs / 32][16][32], so that a tile lies in one piece. What
// rows past the last one hold does not matter.
void lay_out_rows(const LinearArgs& args, int64_t row_tile, char* to) {
  int64_t count = std::min<int64_t>(16, args.rows - 16 * row_tile);
  const bf16* from = static_cast<const bf16*>(args.x) + 16 * row_tile * args.inputs;
  for (int64_t k = 0; k < args.inputs / kDepth; ++k)
    for (int64_t r = 0; r < count; ++r) {
      __m512i some = _mm512_loadu_si512(from + r * args.inputs + k * kDepth);
      _mm512_store_si512(to + k * kTileBytes + r * 64, some);
    }
}

// Asks for lines of what is read after this strip; to ask past the end of all is allowed.
template <int kLines>
inline void ask(const char*& ahead) {
  for (int i = 0; i < kLines; ++i) _mm_prefetch(ahead + 64 * i, _MM_HINT_T1);
  ahead += 64 * kLines;
}

template <int kSums>
void put(const LinearArgs& args, int64_t row_tile, int64_t tile) {
  alignas(64) float sums[16][16];
  store<kSums>(sums, 64);
  int64_t count = std::min<int64_t>(16, args.rows - 16 * row_tile);
  int64_t outputs = std::min(kTile, args.outputs - tile * kTile);
  bf16* out = static_cast<bf16*>(args.output) + 16 * row_tile * args.outputs + tile * kTile;
  for (int64_t r = 0; r < count; ++r, out += args.outputs) {
    __m256i narrowed = (__m256i)_mm512_cvtneps_pbh(_mm512_load_ps(sums[r]));
    _mm256_mask_storeu_epi16(out, __mmask16((1 << outputs) - 1), narrowed);
  }
}

// 16 rows by four tiles of outputs.
void few_rows(const LinearArgs& args, const char* x, int64_t tile) {
  int64_t depth = args.inputs / kDepth, apart = depth * kTileBytes;
  const char* right = static_cast<const char*>(args.weights) + tile * apart;
  const char* ahead = right + 4 * apart;
  zero<0>(), zero<1>(), zero<2>(), zero<3>();
  for (int64_t k = 0; k < depth; ++k, right += kTileBytes) {
    load<4>(x + k * kTileBytes, 64);
    load<5>(right, 64), multiply<0, 4, 5>(), ask<16>(ahead);
    load<6>(right + apart, 64), multiply<1, 4, 6>(), ask<16>(ahead);
    load<5>(right + 2 * apart, 64), multiply<2, 4, 5>(), ask<16>(ahead);
    load<6>(right + 3 * apart, 64), multiply<3, 4, 6>(), ask<16>(ahead);
  }
  put<0>(args, 0, tile), put<1>(args, 0, tile + 1), put<2>(args, 0, tile + 2);
  put<3>(args, 0, tile + 3);
}

// Some inputs of a product: [from, to) of inputs / 32, and what the ones before summed up to.
struct Stretch {
  int64_t from, to;
  float (*sums)[16][16];  // [row tiles][2 tiles]
  bool first, last;
};

// 16 rows, or 32, by a tile of outputs, or two; with each tile of outputs kLines lines of what comes
// next are asked for.
template <int kRowTiles, int kTiles, int kLines>
void some_rows(const LinearArgs& args, const char* x, int64_t row_tile, int64_t tile,
               const Stretch& part, const char*& ahead) {
  int64_t apart = args.inputs / kDepth * kTileBytes;
  const char* right = static_cast<const char*>(args.weights) + tile * apart + part.from * kTileBytes;
  const char* left = x + row_tile * apart + part.from * kTileBytes;
  float(*sums)[16][16] = part.sums + 2 * row_tile;
  if (part.first) {
    zero<0>(), zero<1>(), zero<2>(), zero<3>();
  } else {
    load<0>(sums[0], 64);
    if constexpr (kTiles > 1) load<1>(sums[1], 64);
    if constexpr (kRowTiles > 1) load<2>(sums[2], 64);
    if constexpr (kRowTiles > 1 && kTiles > 1) load<3>(sums[3], 64);
  }
  for (int64_t k = part.from; k < part.to; ++k, left += kTileBytes, right += kTileBytes) {
    load<4>(left, 64), load<6>(right, 64);
    multiply<0, 4, 6>(), ask<kLines>(ahead);
    if constexpr (kTiles > 1) load<7>(right + apart, 64), multiply<1, 4, 7>(), ask<kLines>(ahead);
    if constexpr (kRowTiles > 1) {
      load<5>(left + apart, 64), multiply<2, 5, 6>();
      if constexpr (kTiles > 1) multiply<3, 5, 7>();
    }
  }
  if (part.last) {
    put<0>(args, row_tile, tile);
    if constexpr (kTiles > 1) put<1>(args, row_tile, tile + 1);
    if constexpr (kRowTiles > 1) put<2>(args, row_tile + 1, tile);
    if constexpr (kRowTiles > 1 && kTiles > 1) put<3>(args, row_tile + 1, tile + 1);
  } else {
    store<0>(sums[0], 64);
    if constexpr (kTiles > 1) store<1>(sums[1], 64);
    if constexpr (kRowTiles > 1) store<2>(sums[2], 64);
    if constexpr (kRowTiles > 1 && kTiles > 1) store<3>(sums[3], 64);
  }
}

// All rows by kTiles tiles of outputs. Where there are many, so many inputs at a time that their
// weights stay in the first-level cache.
template <int kTiles, int kLines>
void strip(const LinearArgs& args, const char* x, int64_t tile, float (*sums)[16][16]) {
  int64_t row_tiles = (args.rows + 15) / 16, depth = args.inputs / kDepth;
  const char* ahead =
      static_cast<const char*>(args.weights) + (tile + kTiles) * depth * kTileBytes;
  int64_t parts = row_tiles <= 2 ? 1 : (depth + kStretch - 1) / kStretch;
  int64_t each = (depth + parts - 1) / parts;
  for (int64_t from = 0; from < depth; from += each) {
    Stretch part = {from, std::min(from + each, depth), sums, from == 0, from + each >= depth};
    int64_t row_tile = 0;
    for (; row_tile + 1 < row_tiles; row_tile += 2)
      some_rows<2, kTiles, kLines>(args, x, row_tile, tile, part, ahead);
    if (row_tile < row_tiles) some_rows<1, kTiles, kLines>(args, x, row_tile, tile, part, ahead);
  }
}

// kTiles tiles of outputs at a time; of what comes next kLines lines are asked for with each tile.
template <int kTiles, int kLines>
void all_strips(const LinearArgs& args, const char* x, float (*sums)[16][16]) {
  int64_t tiles = (args.outputs + kTile - 1) / kTile, whole = tiles / kTiles;
#pragma omp for schedule(static) nowait
  for (int64_t i = 0; i < whole; ++i) {
    if constexpr (kTiles == 4) few_rows(args, x, kTiles * i);
    else strip<kTiles, kLines>(args, x, kTiles * i, sums);
  }
#pragma omp for schedule(static)
  for (int64_t tile = kTiles * whole; tile < tiles; ++tile) strip<1, 0>(args, x, tile, sums);
}

void multiply_all(const LinearArgs& args) {
  int64_t row_tiles = (args.rows + 15) / 16, bytes = args.inputs / kDepth * kTileBytes;
  if (!args.rows) return;
  static thread_local Room room_for_rows;
  char* x = room_for_rows.of(row_tiles * bytes);
#pragma omp parallel
  {
    TilesInUse tiles;
    static thread_local Room room_for_sums;
    auto* sums = reinterpret_cast<float(*)[16][16]>(room_for_sums.of(row_tiles * 2 * kTileBytes));
#pragma omp for schedule(static)
    for (int64_t i = 0; i < row_tiles; ++i) lay_out_rows(args, i, x + i * bytes);
    if (row_tiles == 1) all_strips<4, 16>(args, x, sums);
    else if (row_tiles == 2) all_strips<2, 16>(args, x, sums);
    else if (row_tiles <= 4) all_strips<2, 8>(args, x, sums);
    else if (row_tiles <= 8) all_strips<2, 4>(args, x, sums);
    else if (row_tiles <= 16) all_strips<2, 2>(args, x, sums);
    else all_strips<2, 0>(args, x, sums);
  }
}

}  // namespace

extern "C" {

int keepwarm_has_matrix_unit() {
  constexpr int kAskFor = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool may = syscall(SYS_arch_prctl, kAskFor, kTileData) == 0;
  return may;
}
void keepwarm_linear_matrix(const LinearArgs* args) { multiply_all(*args); }
}

#else

extern "C" {

int keepwarm_has_matrix_unit() { return 0; }
void keepwarm_linear_matrix(const LinearArgs*) {}
}

#endif
