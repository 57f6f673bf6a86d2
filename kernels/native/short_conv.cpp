// Causal convolution over the last few tokens of each sequence, channel by channel.
//
// What lies before a step's tokens comes from the sequence's window: the inputs of the tokens before its
// first one, oldest first, as floats. Sums are in single precision and in the order of the taps, oldest
// first, so that where a step begins changes no bit.

#include "numbers.h"
#include "short_conv.h"
#include "team.h"

namespace {

constexpr int64_t kPiece = 256;
constexpr int64_t kWorthNumbers = 1 << 16;

template <typename T>
void add_tap(const T* inputs, const float* weight, float* sums, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sums[i] += widen(inputs[i]) * weight[i];
}

template <typename T>
void convolve_token(const ShortConvArgs* args, int64_t token) {
  const T* inputs = static_cast<const T*>(args->inputs);
  int64_t sequence = args->sequence_of[token], first = args->starts[sequence];
  const float* window = args->windows + args->slots[sequence] * args->window_stride;
  T* out = static_cast<T*>(args->output) + token * args->channels;
  for (int64_t from = 0; from < args->channels; from += kPiece) {
    int64_t count = std::min(kPiece, args->channels - from);
    float sums[kPiece];
    for (int64_t i = 0; i < count; ++i) sums[i] = args->bias ? args->bias[from + i] : 0.0f;
    for (int64_t tap = 0; tap < args->taps; ++tap) {
      int64_t source = token - (args->taps - 1 - tap);
      const float* weight = args->weight + tap * args->channels + from;
      if (source >= first)
        add_tap(inputs + source * args->channels + from, weight, sums, count);
      else
        add_tap(window + (args->taps - 1 + source - first) * args->channels + from, weight, sums, count);
    }
    for (int64_t i = 0; i < count; ++i) narrow(sums[i], out + from + i);
  }
}

template <typename T>
void convolve(const ShortConvArgs* args) {
  bool worth = args->tokens * args->channels >= kWorthNumbers;
  team::each_of(args->tokens, worth, [=](int64_t token) { convolve_token<T>(args, token); });
}

}  // namespace

extern "C" {
void keepwarm_short_conv_bf16(const ShortConvArgs* args) { convolve<bf16>(args); }
void keepwarm_short_conv_f32(const ShortConvArgs* args) { convolve<float>(args); }
}
