// What a call of the index scores is told; kernels/native_arguments.py has the same.

#pragma once

#include <cstdint>

struct IndexScoresArgs {
  const float* queries;   // [rows, heads, dim]
  const float* weights;   // [rows, heads]
  const void* keys;       // of a slot: [dim], key_stride apart
  const int32_t* slots;   // [tokens], of the tokens in their order
  float* scores;          // [rows, tokens]
  int64_t rows, heads, dim, tokens, key_stride;
  int64_t first_seen;     // tokens that the first row sees; each row sees one more than the one before
};
