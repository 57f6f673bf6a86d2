// What calls of the small operations around the gated delta rule are told; kernels/native_arguments.py
// has the same.

#pragma once

#include <cstdint>

struct DeltaShapingArgs {
  const void* convolved;  // [tokens, 2 * key_heads * key_dim + value_heads * value_dim]
  const void* paces;      // [tokens, 2 * value_heads]: of betas, then of steps
  const float* rates;     // [value_heads]
  const float* bias;      // [value_heads], of steps
  float* queries;         // [tokens, key_heads, key_dim], and so on: DeltaArgs
  float* keys;
  float* values;
  float* decays;
  float* betas;
  int64_t tokens, key_heads, value_heads, key_dim, value_dim;
};

struct KimiShapingArgs {
  const void* convolved;   // [tokens, 3 * heads * head_dim]: queries, keys, values
  const void* steps;       // [tokens, heads * head_dim], rows steps_stride apart
  const void* said_betas;  // [tokens, heads], rows betas_stride apart
  const float* rates;      // [heads]
  const float* bias;       // [heads * head_dim], of steps
  float* queries;          // [tokens, heads, head_dim], and so on: DeltaArgs
  float* keys;
  float* values;
  float* decays;
  float* betas;
  int64_t tokens, heads, head_dim, steps_stride, betas_stride;
};

struct GatedNormArgs {
  const float* mixed;   // [tokens, heads, size]
  const void* gates;    // [tokens, heads * size], rows gate_stride apart
  const float* weight;  // [size]
  void* output;         // [tokens, heads * size]
  int64_t tokens, heads, size, gate_stride;
  float eps;
  int32_t by_sigmoid;   // gates weigh by their sigmoid; else by their SiLU
};

// Rows of some tokens, each to its place in a ring. Sizes and strides are in bytes.
struct RingWriteArgs {
  const char* rows;       // [tokens], row_size apart
  char* rings;            // [rings, ring], of one layer
  const int64_t* ring_of; // [count]
  const int64_t* place;   // [count]
  const int64_t* token;   // [count]
  int64_t count, row_size, ring_stride, place_stride;
  int64_t tokens, rings_count, ring;  // the ends of what the three above may say
};

struct WindowArgs {
  float* windows;            // windows + slot * slot_stride: [layers, before, channels]
  const void* rings;         // [rings, layers, ring, channels]
  const int64_t* slots;      // [sequences]
  const int64_t* ring_of;    // the same, and so on
  const int64_t* committed;  // positions at which windows stand
  const int64_t* counts;     // tokens by which they move on
  int64_t sequences, layers, before, channels, ring, slot_stride;
  int64_t slots_count, rings_count;  // the ends of what slots and ring_of may say
};
