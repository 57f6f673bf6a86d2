// Products by the matrix unit (Intel AMX) with weights of 16 bits: the tiles of linear.h are what it
// wants on its right side.

#include "linear.h"
#include "matrix_unit.h"
#include "team.h"

#ifdef HAVE_MATRIX_UNIT

#include <sys/syscall.h>
#include <unistd.h>


namespace {

constexpr int64_t kDepth = 32;  // inputs of a tile
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kAhead = 1024;  // bytes between asking for weights and reading them, by few rows
constexpr int64_t kRoomBytes = 1 << 20;  // of rows: half of the second-level cache

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

// Up to 16 rows by a tile of outputs. The memory gives most where one thread reads it in its order and
// asks for little ahead.
void few_rows(const LinearArgs& args, const char* x, int64_t tile) {
  int64_t depth = args.inputs / kDepth;
  const char* right = static_cast<const char*>(args.weights) + tile * depth * kTileBytes;
  zero<0>();
  for (int64_t k = 0; k < depth; ++k, x += kTileBytes, right += kTileBytes) {
    load<5>(right, 64);
    for (int i = 0; i < 16; ++i) _mm_prefetch(right + kAhead + 64 * i, _MM_HINT_T0);
    load<4>(x, 64), multiply<0, 4, 5>();
  }
  put<0>(args, 0, tile);
}

// Up to 16 rows: each thread lays them out for itself, and the unit takes no more than there are.
void multiply_few(const LinearArgs& args) {
  int64_t depth = args.inputs / kDepth, tiles = (args.outputs + kTile - 1) / kTile;
  TileConfig shapes;
  shapes.rows[0] = shapes.rows[4] = args.rows;  // sums, and what is multiplied
  team::Ranges ranges(tiles);
  team::run([&](int64_t member) {
    TilesInUse unit(shapes);
    static thread_local Room room;
    char* x = room.of(depth * kTileBytes);
    lay_out_rows(args, 0, x);
    ranges.work(member, [&](int64_t tile) { few_rows(args, x, tile); });
  });
}

// Sums of up to two tiles of rows by two of outputs on their way to bf16. Loads right behind the unit's
// stores would wait for them, so rows are narrowed while the unit works on the next sums.
class Sums {
 public:
  // [row tiles][2 tiles]: what is narrowed after the next call of ``later``.
  float (*room())[16][16] { return tiles_[last_ ^ 1]; }

  // What was stored to ``room`` is the product's from these tiles on; the sums before it are done.
  void later(const LinearArgs& args, int64_t row_tile, int64_t row_tiles, int64_t tile,
             int64_t tiles) {
    finish();
    last_ ^= 1, next_ = 0, rows_ = std::min(16 * row_tiles, args.rows - 16 * row_tile);
    outputs_ = std::min(tiles * kTile, args.outputs - tile * kTile), stride_ = args.outputs;
    out_ = static_cast<bf16*>(args.output) + 16 * row_tile * stride_ + tile * kTile;
  }
  int64_t left() const { return rows_ - next_; }
  void narrow_row() {
    const float(*from)[16][16] = tiles_[last_] + next_ / 16 * 2;
    __m512 first = _mm512_load_ps(from[0][next_ % 16]);
    __m512 second = _mm512_load_ps(from[1][next_ % 16]);
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh(second, first);
    __mmask32 all = ~__mmask32(0) >> (2 * kTile - outputs_);
    _mm512_mask_storeu_epi16(out_ + next_++ * stride_, all, both);
  }
  void finish() {
    while (left()) narrow_row();
  }

 private:
  alignas(64) float tiles_[2][4][16][16];
  int last_ = 0;
  int64_t next_ = 0, rows_ = 0, outputs_ = 0, stride_ = 0;
  bf16* out_ = nullptr;
};

// The weights of the next tiles, of which lines are asked for meanwhile; to ask past the end of all
// is allowed.
struct Ahead {
  const char* at;
  int64_t lines;  // with each 32 inputs

  __attribute__((always_inline)) void ask() {
    for (int64_t i = 0; i < lines; ++i) _mm_prefetch(at + 64 * i, _MM_HINT_T1);
    at += 64 * lines;
  }
};

// 16 rows, or 32, by a tile of outputs, or two.
template <int kRowTiles, int kTiles>
void some_rows(const LinearArgs& args, const char* x, int64_t row_tile, int64_t tile, Ahead& ahead,
               Sums& sums) {
  int64_t depth = args.inputs / kDepth, apart = depth * kTileBytes;
  int64_t narrowed = (sums.left() + depth - 1) / depth;
  const char* right = static_cast<const char*>(args.weights) + tile * apart;
  const char* left = x + row_tile * apart;
  zero<0>(), zero<1>(), zero<2>(), zero<3>();
  for (int64_t k = 0; k < depth; ++k, left += kTileBytes, right += kTileBytes) {
    load<4>(left, 64), load<6>(right, 64);
    multiply<0, 4, 6>();
    if constexpr (kTiles > 1) load<7>(right + apart, 64), multiply<1, 4, 7>();
    ahead.ask();
    if constexpr (kRowTiles > 1) {
      load<5>(left + apart, 64), multiply<2, 5, 6>();
      if constexpr (kTiles > 1) multiply<3, 5, 7>();
    }
    for (int64_t i = std::min(narrowed, sums.left()); i > 0; --i) sums.narrow_row();
  }
  float(*to)[16][16] = sums.room();
  store<0>(to[0], 64);
  if constexpr (kTiles > 1) store<1>(to[1], 64);
  if constexpr (kRowTiles > 1) store<2>(to[2], 64);
  if constexpr (kRowTiles > 1 && kTiles > 1) store<3>(to[3], 64);
  sums.later(args, row_tile, kRowTiles, tile, kTiles);
}

// All rows by kTiles tiles of outputs.
template <int kTiles>
void strip(const LinearArgs& args, const char* x, int64_t tile, Sums& sums) {
  int64_t row_tiles = (args.rows + 15) / 16, pairs = (row_tiles + 1) / 2, row_tile = 0;
  int64_t bytes = args.inputs / kDepth * kTileBytes, lines = 16 * kTiles;
  Ahead ahead = {static_cast<const char*>(args.weights) + (tile + kTiles) * bytes,
                 (lines + pairs - 1) / pairs};
  for (; row_tile + 1 < row_tiles; row_tile += 2)
    some_rows<2, kTiles>(args, x, row_tile, tile, ahead, sums);
  if (row_tile < row_tiles) some_rows<1, kTiles>(args, x, row_tile, tile, ahead, sums);
}

// More rows, so many at a time that they stay in the second-level cache. Each thread lays them out for
// itself: to write what the other one has read takes seven nanoseconds a line.
void multiply_many(const LinearArgs& args) {
  int64_t bytes = args.inputs / kDepth * kTileBytes, most = std::max(kRoomBytes / bytes, int64_t(2));
  int64_t tiles = (args.outputs + kTile - 1) / kTile;
  LinearArgs part = args;
  for (int64_t row = 0; row < args.rows; row += part.rows) {
    part.rows = std::min(most / 2 * 32, args.rows - row);
    part.x = static_cast<const bf16*>(args.x) + row * args.inputs;
    part.output = static_cast<bf16*>(args.output) + row * args.outputs;
    team::Ranges ranges((tiles + 1) / 2);
    team::run([&](int64_t member) {
      TilesInUse unit;
      static thread_local Room room;
      static thread_local Sums sums;
      int64_t row_tiles = (part.rows + 15) / 16;
      char* x = room.of(row_tiles * bytes);
      for (int64_t i = 0; i < row_tiles; ++i) lay_out_rows(part, i, x + i * bytes);
      ranges.work(member, [&](int64_t pair) {
        int64_t tile = 2 * pair;
        tile + 1 < tiles ? strip<2>(part, x, tile, sums) : strip<1>(part, x, tile, sums);
      });
      sums.finish();
    });
  }
}

void multiply_all(const LinearArgs& args) {
  if (!args.rows) return;
  args.rows <= 16 ? multiply_few(args) : multiply_many(args);
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
