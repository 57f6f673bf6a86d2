// What attention over paged KV in blocks of queries and of context is made of, whatever computes it
// (FlashAttention-2, Dao 2023): the plan of the work, and an item's way through it.
//
// A block of the context is laid out once for all query rows of a kv head. Six rows at a time are
// compared with it, weighed and mixed, in registers and the first-level cache. Decodes whose contexts
// begin with the same blocks read those together.
//
// Work is split on a grid over each sequence's positions that depends on its own number of queries
// alone, and every row's sums are made in one order; so neither the number of threads nor the
// neighbours in the batch, shared blocks included, change a sequence's arithmetic.

#pragma once

#include <memory>
#include <unordered_map>

#include "paged_attention.h"
#include "team.h"

namespace {

constexpr int64_t kTile = 128;       // tokens of a block of the context
constexpr int64_t kRows = 576;       // query rows of a kv head in an item, at most
constexpr int64_t kFewRows = 48;     // so few of a sequence are split finely, and share
constexpr int64_t kThinRows = 4;     // so few do not pay for laying values out
constexpr int64_t kStripe = 1024;    // kv_heads * head_dim of an item with few rows
constexpr int64_t kMostDim = 256;
constexpr int64_t kAhead = 32;       // tokens between asking for keys and reading them
constexpr float kLog2E = 1.44269504f;

// Tokens between two points of the grid, by the query rows of a kv head: more rows have more to
// join, and fill the threads without it.
inline int64_t split_tokens(int64_t rows) {
  return rows <= kFewRows ? 256 : rows <= kRows ? 1024 : int64_t(1) << 40;
}

// Some query rows of one sequence, and where their results lie: [kv_heads][splits][rows][2 +
// head_dim], maximum, sum and weighted values.
struct Part {
  int64_t sequence, first_row, rows, split, first_split, splits, partial;
  int64_t begin, end;  // the tokens that any of its rows sees
  int64_t whole;       // stretches of the grid that each of its rows sees all of
  int64_t shared;      // stretches from the first on that are computed together with other parts
};

// A stretch of context for some kv heads and the rows of parts that read the same blocks there.
struct Item {
  int64_t first_member, members, first_head, heads, index, begin, end;
};

struct Plan {
  std::vector<Part> parts;
  std::vector<Item> items;
  std::vector<int32_t> members;  // indices of parts, by item
  int64_t partial_size = 0;
};

struct Row {
  float* partial;
  int64_t low, high;  // the tokens that it sees: [low, high)
};

// What an item is worked on with, beside what its units lay out for themselves.
struct CommonScratch {
  alignas(64) float key_scales[kStripe / 32][kTile];
  alignas(64) float value_scales[kTile];
  std::vector<Row> rows;
};

// An item's way through its context. ``Units`` derives from it and has ``reserve(rows)``,
// ``take_query(row, from)``, ``take_block(from, to)``, ``take<rows>(row, from, to)`` and
// ``take_thin<rows>(from, to)``, which add a
// block to the partial sums of many rows of a head, or of the few rows of some heads.
template <typename Units, typename S, typename Scratch>
struct ItemWork {
  const AttendArgs& args;
  const Plan& plan;
  const Item& item;
  Scratch& scratch;
  float* partials;
  const int32_t* table;
  int64_t group, block_shift, dim, head, count = 0;
  int64_t padded = 0;  // tokens of the present block, a multiple of 16
  const S* values[kTile];

  struct Unit {};  // what a thread holds while it works on items

  ItemWork(const AttendArgs& a, const Plan& p, const Item& it, Scratch& s, float* out)
      : args(a), plan(p), item(it), scratch(s), partials(out) {
    group = a.heads / a.kv_heads, dim = a.head_dim;
    block_shift = __builtin_ctzll(a.block_size);
    table = a.block_tables + part(0).sequence * a.table_stride;
  }

  Units& units() { return static_cast<Units&>(*this); }

  const Part& part(int64_t member) const {
    return plan.parts[plan.members[item.first_member + member]];
  }

  // The item's rows of the present head.
  void gather() {
    int64_t at = (head - item.first_head) * count, stride = 2 + dim;
    for (int64_t m = 0; m < item.members; ++m) {
      const Part& p = part(m);
      int64_t first = args.query_starts[p.sequence];
      int64_t num_queries = args.query_starts[p.sequence + 1] - first;
      int64_t seen = args.context_lengths[p.sequence] - num_queries + 1;
      const bf16* source = static_cast<const bf16*>(args.queries) + head * group * dim;
      float* partial = partials + p.partial + (head * p.splits + item.index) * p.rows * stride;
      for (int64_t row = 0; row < p.rows; ++row, ++at) {
        int64_t query = (p.first_row + row) / group, within = (p.first_row + row) % group;
        const bf16* from = source + (first + query) * args.query_stride + within * dim;
        units().take_query(at, from);
        float* state = partial + row * stride;
        std::fill(state, state + stride, 0.0f);
        state[0] = -INFINITY;
        int64_t high = seen + query;
        int64_t low = args.window > 0 ? std::max<int64_t>(0, high - args.window) : 0;
        scratch.rows[at] = {state, low, high};
      }
    }
  }

  // Where a token's key or value lies.
  const S* at(const void* base, int64_t token) const { return at(base, token, head); }
  const S* at(const void* base, int64_t token, int64_t of_head) const {
    int64_t block = table[token >> block_shift], offset = token & (args.block_size - 1);
    int64_t row = ((block * args.kv_heads + of_head) << block_shift) + offset;
    return static_cast<const S*>(base) + row * row_size<S>(dim);
  }

  // Where those of ``count`` tokens lie, a multiple of 16; past ``to`` that of the last one before.
  void find(const void* base, int64_t from, int64_t count, int64_t to, const S** rows) const {
    for (int64_t i = 0; i < count; i += 16) find_16(base, from + i, to, rows + i);
  }

  __attribute__((always_inline)) void find_16(const void* base, int64_t from, int64_t to,
                                              const S** rows) const {
    const S* row = at(base, std::min(from, to - 1));
    bool in_a_row = args.block_size >= 16 && from + 16 <= to;
    for (int64_t i = 0; i < 16; ++i)
      rows[i] = in_a_row ? row + i * row_size<S>(dim) : at(base, std::min(from + i, to - 1));
  }

  // Bytes between two of the dim / 2 places that are asked for to have 16 tokens' keys or values.
  int64_t ask_step() const { return 32 * row_size<S>(dim) * int64_t(sizeof(S)) / dim; }

  // Always inlined: as a call it counts as having no effect, and the compiler drops it.
  __attribute__((always_inline)) void fetch(const void* base, int64_t token) const {
    const char* from = reinterpret_cast<const char*>(at(base, token));
    int64_t bytes = std::min<int64_t>(16, args.block_size) * row_size<S>(dim) * sizeof(S);
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
  }

  void find_values(int64_t from, int64_t to) {
    find_values(from, to, padded);
    if (sizeof(S) == 1)
      for (int64_t i = 0; i < padded; ++i) scratch.value_scales[i] = scale_of(values[i], dim);
  }
  void find_values(int64_t from, int64_t to, int64_t tokens) {
    find(args.values, from, tokens, to, values);
  }

  void run() {
    int64_t end = item.first_head + item.heads;
    for (int64_t m = 0; m < item.members; ++m) count += part(m).rows;
    scratch.rows.resize(item.heads * count);
    units().reserve(item.heads * count);
    for (head = item.first_head; head < end; ++head) gather();
    head = item.first_head;
    for (int64_t from = item.begin; from < item.end; from += kTile) {
      int64_t to = std::min(from + kTile, item.end);
      padded = (to - from + 15) & ~int64_t(15);
      if (count > kThinRows) units().take_block(from, to);
      else switch (count) {
          case 1: units().template take_thin<1>(from, to); break;
          case 2: units().template take_thin<2>(from, to); break;
          case 3: units().template take_thin<3>(from, to); break;
          default: units().template take_thin<4>(from, to);
        }
    }
  }

  // The present block for all rows of the head, six at a time: ``take<rows>(row, from, to)``.
  void take_rows(int64_t from, int64_t to) {
    for (int64_t row = 0; row < count; row += 6) switch (count - row) {
        case 1: units().template take<1>(row, from, to); break;
        case 2: units().template take<2>(row, from, to); break;
        case 3: units().template take<3>(row, from, to); break;
        case 4: units().template take<4>(row, from, to); break;
        case 5: units().template take<5>(row, from, to); break;
        default: units().template take<6>(row, from, to);
      }
  }

  // Whether any of some rows sees a token of [from, to).
  static bool seen(const Row* rows, int64_t count, int64_t from, int64_t to) {
    for (int64_t r = 0; r < count; ++r)
      if (rows[r].high > from && rows[r].low < to) return true;
    return false;
  }
};

// Joins the stretches of a part's rows of one kv head. ``in_order`` puts a row's sums into the order of
// dimensions.
template <typename Order>
void finish(const AttendArgs& args, const Part& part, int64_t head, const float* partials,
            Order in_order) {
  int64_t dim = args.head_dim, group = args.heads / args.kv_heads, stride = 2 + dim;
  const float* first = partials + part.partial + head * part.splits * part.rows * stride;
  alignas(64) float sums[kMostDim], ordered[kMostDim];
  for (int64_t row = 0; row < part.rows; ++row) {
    int64_t r = part.first_row + row, query_head = head * group + r % group;
    float sink = args.sinks ? args.sinks[query_head] * float(M_LOG2E) : -INFINITY;
    float best = sink, total = 0;
    for (int64_t i = 0; i < part.splits; ++i)
      best = std::max(best, first[(i * part.rows + row) * stride]);
    std::fill(sums, sums + dim, 0.0f);
    for (int64_t i = 0; i < part.splits; ++i) {
      const float* state = first + (i * part.rows + row) * stride;
      if (state[0] == -INFINITY && state[1] == 0.0f) continue;
      float share = std::exp2(state[0] - best);
      total += state[1] * share;
#pragma omp simd
      for (int64_t d = 0; d < dim; ++d) sums[d] += state[2 + d] * share;
    }
    if (args.sinks) total += std::exp2(sink - best);
    int64_t token = args.query_starts[part.sequence] + r / group;
    bf16* out = static_cast<bf16*>(args.output) + (token * args.heads + query_head) * dim;
#pragma omp simd
    for (int64_t d = 0; d < dim; ++d) sums[d] /= total;
    const float* result = in_order(sums, ordered, dim);
#pragma omp simd
    for (int64_t d = 0; d < dim; ++d) narrow(result[d], out + d);
  }
}

inline const float* as_they_lie(const float* sums, float*, int64_t) { return sums; }

// The items of a stretch for the members from first_member on: of each kv head, or of some together
// where there are few rows.
void add_items(const AttendArgs& args, Plan& plan, int64_t first_member, int64_t index,
               int64_t begin, int64_t end) {
  int64_t members = plan.members.size() - first_member, rows = 0;
  for (int64_t m = first_member; m < first_member + members; ++m)
    rows += plan.parts[plan.members[m]].rows;
  int64_t heads = rows > kThinRows ? 1 : std::max<int64_t>(1, kStripe / args.head_dim);
  for (int64_t head = 0; head < args.kv_heads; head += heads)
    plan.items.push_back({first_member, members, head, std::min(heads, args.kv_heads - head),
                          index, begin, end});
}

// A sequence's rows, the last ones first: they see most and take longest.
void add_parts(const AttendArgs& args, Plan& plan, int64_t sequence) {
  int64_t group = args.heads / args.kv_heads;
  int64_t queries = args.query_starts[sequence + 1] - args.query_starts[sequence];
  int64_t before = args.context_lengths[sequence] - queries, all = queries * group;
  for (int64_t first = (all - 1) / kRows * kRows; first >= 0; first -= kRows) {
    Part part = {};
    part.sequence = sequence, part.first_row = first, part.rows = std::min(kRows, all - first);
    part.split = split_tokens(all);
    int64_t low = args.window > 0 ? before + first / group + 1 - args.window : 0;
    part.begin = std::max<int64_t>(0, low) & ~int64_t(15);
    part.end = before + (first + part.rows - 1) / group + 1;
    part.first_split = part.begin / part.split;
    part.splits = (part.end + part.split - 1) / part.split - part.first_split;
    part.whole = args.window > 0 ? 0 : (before + first / group + 1) / part.split;
    part.partial = plan.partial_size;
    plan.partial_size += args.kv_heads * part.splits * part.rows * (2 + args.head_dim);
    plan.parts.push_back(part);
  }
}

// Parts of few rows by the one before them whose context begins with the same block, and how many
// stretches they have in common with it; that one is the first of each.
using Sharings = std::vector<std::vector<int32_t>>;

Sharings find_sharings(const AttendArgs& args, Plan& plan) {
  Sharings sharings;
  std::unordered_map<int32_t, size_t> by_first_block;
  for (size_t index = 0; index < plan.parts.size(); ++index) {
    Part& part = plan.parts[index];
    if (part.split != split_tokens(1) || !part.whole || args.block_size > part.split) continue;
    const int32_t* table = args.block_tables + part.sequence * args.table_stride;
    auto [found, fresh] = by_first_block.try_emplace(table[0], sharings.size());
    if (fresh) sharings.emplace_back();
    std::vector<int32_t>& sharing = sharings[found->second];
    if (!fresh) {
      Part& leader = plan.parts[sharing[0]];
      const int32_t* theirs = args.block_tables + leader.sequence * args.table_stride;
      int64_t blocks = part.split / args.block_size, most = std::min(part.whole, leader.whole);
      while (part.shared < most && std::equal(table + part.shared * blocks,
                                              table + (part.shared + 1) * blocks,
                                              theirs + part.shared * blocks))
        ++part.shared;
      if (!part.shared) continue;
      leader.shared = std::max(leader.shared, part.shared);
    }
    sharing.push_back(index);
  }
  return sharings;
}

Plan make_plan(const AttendArgs& args) {
  Plan plan;
  for (int64_t s = 0; s < args.sequences; ++s)
    if (args.query_starts[s + 1] > args.query_starts[s]) add_parts(args, plan, s);  // no padding
  for (const std::vector<int32_t>& sharing : find_sharings(args, plan)) {
    const Part& leader = plan.parts[sharing[0]];
    for (int64_t i = 0; i < leader.shared; ++i) {
      int64_t first = plan.members.size(), rows = 0, at = i * leader.split;
      for (int32_t index : sharing) {
        const Part& part = plan.parts[index];
        if (part.shared <= i) continue;
        if (rows + part.rows > kRows) {
          add_items(args, plan, first, i, at, at + leader.split);
          first = plan.members.size(), rows = 0;
        }
        plan.members.push_back(index), rows += part.rows;
      }
      add_items(args, plan, first, i, at, at + leader.split);
    }
  }
  for (size_t index = 0; index < plan.parts.size(); ++index) {
    const Part& part = plan.parts[index];
    for (int64_t i = part.shared; i < part.splits; ++i) {
      int64_t at = (part.first_split + i) * part.split;
      plan.members.push_back(index);
      add_items(args, plan, plan.members.size() - 1, i, std::max(part.begin, at),
                std::min(part.end, at + part.split));
    }
  }
  return plan;
}

template <typename Work, typename Scratch, typename Order>
void attend_in_blocks(const AttendArgs& args, Order in_order) {
  Plan plan = make_plan(args);
  std::unique_ptr<float[]> partials(new float[plan.partial_size]);
  int64_t num_items = plan.items.size(), num_results = plan.parts.size() * args.kv_heads;
  team::Queue queue(num_items);
  team::run([&](int64_t) {
    static thread_local Scratch scratch;
    [[maybe_unused]] typename Work::Unit unit;
    queue.work([&](int64_t i) {
      Work(args, plan, plan.items[i], scratch, partials.get()).run();
    });
  });
  team::each_of(num_results, true, [&](int64_t i) {
    finish(args, plan.parts[i / args.kv_heads], i % args.kv_heads, partials.get(), in_order);
  });
}

}  // namespace
