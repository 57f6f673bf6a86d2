// What the small operations between matrix products are given.

#pragma once

#include <cstdint>

extern "C" {

struct QkvArgs {
  const void* qkv;          // [tokens, (heads + 2 * kv_heads) * head_dim]
  const void* norm_weight;  // [heads + kv_heads, head_dim], or null for no norm
  const void* cosines;      // [tokens, head_dim / 2]
  const void* sines;
  const int64_t* slots;     // [tokens]
  void* queries;            // [tokens, heads, head_dim], written
  void* keys;               // [blocks, kv_heads, block_size, head_dim], written
  void* values;
  int64_t tokens;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t block_size;
  float eps;
};
}
