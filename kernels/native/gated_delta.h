// The arguments of the gated delta rule; kernels/native_arguments.py has the same.

#pragma once

#include <cstdint>

// Matrices of all layers, taken on by the factors in rings.
struct DeltaFoldArgs {
  float* matrices;         // [slots, layers, value_heads, key_dim, value_dim], slots slot_stride apart
  const float* keys;       // [rings, layers, ring, key_heads, key_dim]
  const float* corrected;  // [rings, layers, ring, value_heads, value_dim]
  const float* decays;     // [rings, layers, ring, value_heads], by channel [..., key_dim]
  const int64_t* slots;    // [sequences]
  const int64_t* rings;    // the same, and so on
  const int64_t* committed;
  const int64_t* counts;   // may be 0
  int64_t sequences, layers, ring, key_heads, value_heads, key_dim, value_dim, slot_stride;
  int64_t by_channel;      // whether each number of a key decays on its own: 0 or 1
};

// Tokens of a step, by sequences. Rows are contiguous, numbers single precision.
struct DeltaArgs {
  const float* queries;    // [tokens, key_heads, key_dim]
  const float* keys;       // the same
  const float* values;     // [tokens, value_heads, value_dim]
  const float* decays;     // [tokens, value_heads], by channel [..., key_dim]; logarithms
  const float* betas;      // [tokens, value_heads]; null, not by channel: values are taken up as they are
  const float* matrices;   // of one layer, slots slot_stride apart; changed by due alone
  const int64_t* slots;    // [sequences]
  const int64_t* starts;   // [sequences + 1]
  const int64_t* positions;  // [sequences] of first tokens
  const int64_t* handed_at;  // [sequences] tokens behind which a matrix is handed out; 0: none
  const int64_t* handed_to;  // [sequences] where
  float* mixed;            // like values
  float* corrected;        // like values
  float* handed;           // [handed, value_heads, key_dim, value_dim]
  const DeltaFoldArgs* due;  // by which the sequences' matrices are taken on first, or null
  int64_t sequences, key_heads, value_heads, key_dim, value_dim, slot_stride;
  int64_t layer;             // of these matrices, among those of due
  int64_t by_channel;        // 0 or 1
};
