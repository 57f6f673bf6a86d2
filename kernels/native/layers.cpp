// All layers of a decoder for the rows of a step, one behind the other: what kernels/norm.py,
// kernels/qkv.py, kernels/attention.py, kernels/activation.py and kernels/tiled_matrix.py do call by
// call, by the same functions. Between two calls the host takes longer than the small operations of
// a decode do.

#include "elementwise.h"
#include "linear.h"
#include "paged_attention.h"

#if defined(HAVE_BF16_UNITS) || defined(HAVE_AVX2_ALONE)

extern "C" {

void keepwarm_add_rms_norm_bf16(const void* x, const void* residual, const void* weight,
                                void* normed, void* total, int64_t tokens, int64_t size, float eps);
void keepwarm_attend_bf16(const AttendArgs* args);
void keepwarm_attend_blocked(const AttendArgs* args);
void keepwarm_norm_rope_write_bf16(const QkvArgs* args);
void keepwarm_silu_mul_bf16(const void* gate_up, void* out, int64_t tokens, int64_t size);

struct ProductArgs {
  LinearArgs linear;  // x, output and rows follow from the step
  const void* bias;   // [outputs] bf16, or null
  void (*multiply)(const LinearArgs*);  // that of its kind of weights
};

struct LayerArgs {
  ProductArgs qkv, output, gate_up, down;
  const void* input_norm;  // [hidden]
  const void* qk_norm;     // [heads + kv_heads, head_dim], or null
  const void* mlp_norm;    // [hidden]
  void* keys;              // [blocks, kv_heads, block_size, head_dim]
  void* values;
  int64_t window;          // tokens a query sees; 0 = all
};

struct LayersArgs {
  const LayerArgs* layers;
  int64_t num_layers;
  int64_t hidden;
  float eps;
  void* delta;      // [rows, hidden]: the last layer's own contribution, in and out
  void* residual;   // [rows, hidden]: the sum of all before it, in and out
  void* wide;       // room for [rows, the larger of qkv's and gate_up's outputs]
  void* queries;    // room for [rows, heads * head_dim]
  void* mixed;      // room for [rows, the larger of heads * head_dim and half of gate_up's outputs]
  int64_t rows;
  const void* cosines;  // [rows, head_dim / 2]
  const void* sines;
  const int64_t* slots;  // [rows]
  AttendArgs attend;     // what all layers have in common
  int64_t in_blocks;     // whether attention goes in blocks (blocked_attention.h)
};
}

namespace {

void multiply(const ProductArgs& product, const void* x, void* output, int64_t rows) {
  LinearArgs args = product.linear;
  args.x = x, args.output = output, args.rows = rows;
  product.multiply(&args);
  if (!product.bias) return;
  const bf16* bias = static_cast<const bf16*>(product.bias);
  bf16* sum = static_cast<bf16*>(output);
  for (int64_t row = 0; row < rows; ++row, sum += args.outputs)
    for (int64_t i = 0; i < args.outputs; ++i) narrow(widen(sum[i]) + widen(bias[i]), sum + i);
}

void run_layer(const LayersArgs& args, const LayerArgs& layer) {
  AttendArgs attend = args.attend;
  attend.queries = args.queries, attend.output = args.mixed, attend.window = layer.window;
  attend.keys = layer.keys, attend.values = layer.values;
  void* normed = args.delta;  // which is not needed any more when its sum has been made
  keepwarm_add_rms_norm_bf16(args.delta, args.residual, layer.input_norm, normed, args.residual,
                             args.rows, args.hidden, args.eps);
  multiply(layer.qkv, normed, args.wide, args.rows);
  QkvArgs qkv = {args.wide,    layer.qk_norm, args.cosines, args.sines,      args.slots,
                 args.queries, layer.keys,    layer.values, args.rows,       attend.heads,
                 attend.kv_heads, attend.head_dim, attend.block_size, args.eps};
  keepwarm_norm_rope_write_bf16(&qkv);
  args.in_blocks ? keepwarm_attend_blocked(&attend) : keepwarm_attend_bf16(&attend);
  multiply(layer.output, args.mixed, args.delta, args.rows);
  keepwarm_add_rms_norm_bf16(args.delta, args.residual, layer.mlp_norm, normed, args.residual,
                             args.rows, args.hidden, args.eps);
  multiply(layer.gate_up, normed, args.wide, args.rows);
  keepwarm_silu_mul_bf16(args.wide, args.mixed, args.rows, layer.gate_up.linear.outputs / 2);
  multiply(layer.down, args.mixed, args.delta, args.rows);
}

}  // namespace

extern "C" {

void keepwarm_run_layers(const LayersArgs* args) {
  for (int64_t i = 0; i < args->num_layers; ++i) run_layer(*args, args->layers[i]);
}
}

#endif
