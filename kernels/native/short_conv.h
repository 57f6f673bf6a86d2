// What a call of the short convolution is told; kernels/native_arguments.py has the same.

#pragma once

#include <cstdint>

struct ShortConvArgs {
  const void* inputs;         // [tokens, channels]
  const float* weight;        // [taps, channels], oldest token first
  const float* bias;          // [channels] or null
  const float* windows;       // windows + slot * window_stride: [taps - 1, channels]
  const int64_t* slots;       // [sequences]
  const int64_t* starts;      // [sequences + 1]: where each one's tokens begin
  const int64_t* sequence_of; // [tokens]
  void* output;               // [tokens, channels]
  int64_t tokens, channels, taps, window_stride;
};
