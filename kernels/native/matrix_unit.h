// The matrix unit (Intel AMX) of processors that have one: tiles of 16 rows of 64 bytes, and what is
// computed with it.

#pragma once

#include "paged_attention.h"

#if defined(HAVE_BF16_UNITS) && defined(__AMX_BF16__) && defined(__linux__)
#define HAVE_MATRIX_UNIT 1
#endif

extern "C" {

struct LinearArgs;

// Whether this process may use it: the operating system is asked at the first call.
int keepwarm_has_matrix_unit();
void keepwarm_attend_matrix(const AttendArgs* args);
void keepwarm_attend_matrix_int8(const AttendArgs* args);
void keepwarm_linear_matrix(const LinearArgs* args);
}

#ifdef HAVE_MATRIX_UNIT

namespace {

// The compiler's own functions do not say that they touch memory.
template <int kTileNumber>
inline void load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTileNumber) : "memory");
}
template <int kTileNumber>
inline void store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTileNumber) : "memory");
}
template <int kTileNumber>
inline void zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTileNumber));
}
// Adds the left tile, 16 rows of 32 numbers, times the right one, 16 rows of pairs, to sums.
template <int kSums, int kLeftTile, int kRightTile>
inline void multiply() {
  asm volatile("tdpbf16ps %%tmm%c0, %%tmm%c1, %%tmm%c2"
               :
               : "i"(kRightTile), "i"(kLeftTile), "i"(kSums));
}

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// A thread's tiles in the shapes of a configuration, while this lives; then as they were.
struct TilesInUse {
  TileConfig before;

  explicit TilesInUse(const TileConfig& config = {}) {
    asm volatile("sttilecfg %0" : "=m"(before) : : "memory");
    use(config);
  }
  static void use(const TileConfig& config) {
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }
  ~TilesInUse() {
    if (before.palette) use(before);
    else asm volatile("tilerelease");
  }
  TilesInUse(const TilesInUse&) = delete;
};

}  // namespace

#endif
