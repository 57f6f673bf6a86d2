// What a call of the products of low rank is told; kernels/native_arguments.py has the same.

#pragma once

#include <cstdint>

struct LowRankLine {
  const void* down;  // [ranks, inputs]; null: the adapter adds nothing to this map
  int64_t ranks, first_up, num_ups;
};

struct LowRankUp {
  const void* matrix;  // [rank, outputs]
  int64_t rank, outputs, first_rank, first_output;
};

struct LowRankArgs {
  const void* x;              // [tokens, inputs]
  void* result;               // [tokens, outputs]
  const int64_t* rows;        // [count]
  const int64_t* adapter_of;  // [count]: lines of the table
  const LowRankLine* table;
  const LowRankUp* ups;
  int64_t count, inputs, outputs;
};
