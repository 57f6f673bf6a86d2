// What the kernels of attention over paged KV are given.

#pragma once

#include "numbers.h"

extern "C" {

struct AttendArgs {
  const void* queries;  // [tokens, heads, head_dim], rows query_stride apart
  const void* keys;     // [blocks, kv_heads, block_size, row_size(head_dim)], rows row_stride apart
  const void* values;
  void* output;         // [tokens, heads, head_dim]
  const int32_t* block_tables;     // [sequences, table_stride]
  const int32_t* query_starts;     // [sequences + 1]
  const int32_t* context_lengths;  // [sequences]
  int64_t query_stride;
  int64_t table_stride;
  int64_t sequences;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t block_size;
  int64_t row_stride;   // from a token's row to the next; attend_blocked() knows rows side by side alone
  int64_t window;       // tokens a query sees; 0 = all
  int64_t max_queries;  // attend(): sequences with more query tokens are left alone
  float scale;
  const float* sinks;   // [heads], or null: of each head a logit in the softmax's sum without a value
};
}
