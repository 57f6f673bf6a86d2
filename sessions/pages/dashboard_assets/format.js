// Numbers as people read them.

export function count(n) {
  if (n < 10000) return n.toLocaleString("en");
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (n >= size) return (n / size).toFixed(n < 10 * size ? 2 : n < 100 * size ? 1 : 0) + unit;
  }
}

export const exact = (n) => n.toLocaleString("en");

export function dollars(x) {
  if (x === 0) return "$0";
  if (x < 0.000001) return "<$0.000001";
  const digits = x >= 100 ? 0 : x >= 0.1 ? 2 : Math.min(6, 1 - Math.floor(Math.log10(x)));
  return "$" + x.toFixed(digits);
}

export function percent(ratio) {
  if (ratio === null) return "–";
  const value = 100 * ratio;
  // Not rounded up to 100: a cache that missed anything did not hit everything.
  return (value > 99 && value < 100 ? (Math.floor(value * 10) / 10).toFixed(1) : value.toFixed(0)) + "%";
}

export function duration(s) {
  if (!Number.isFinite(s)) return "–";
  if (s < 0.9995) return Math.round(s * 1000) + " ms";
  if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
}

export function ago(s) {
  return s < 2 ? "now" : duration(Math.floor(s)).replace(".0", "");
}

export const agoInWords = (s) => (s < 2 ? "just now" : `${ago(s)} ago`);

// KV over time, as tokens kept for so long: "9.9k token-hours" are 9,900 tokens kept for an hour. It is
// measured in blocks of so many tokens, as the server says.
let blockTokens = 16;
export const setBlockTokens = (tokens) => (blockTokens = tokens || blockTokens);

export function tokenTime(blockSeconds) {
  const seconds = blockSeconds * blockTokens;
  for (const [size, unit] of [[3600, "hours"], [60, "minutes"], [1, "seconds"]]) {
    if (Math.abs(seconds) >= 10 * size || size === 1) return `${short(seconds / size)} token-${unit}`;
  }
}

const short = (n) => count(n < 1000 ? Number(n.toPrecision(3)) : Math.round(n));

export const many = (n, word) => `${exact(n)} ${word}${n === 1 ? "" : "s"}`;

const AMOUNTS = {
  cost: dollars,
  input_uncached: (n) => count(n) + " in",
  input_cached: (n) => count(n) + " cached",
  output: (n) => count(n) + " out",
  reasoning: (n) => count(n) + " thinking",
  residency: (n) => tokenTime(n),
};

// What a budget bounds, in the order in which it is told.
export const KINDS = Object.keys(AMOUNTS);

export const amount = (kind, n) => (AMOUNTS[kind] ?? ((x) => `${count(x)} ${kind}`))(n);

export const REASONS = {
  new_input: "new input",
  new_session: "new sessions",
  tools_changed: "tools changed",
  instructions_changed: "instructions changed",
  options_changed: "template options changed",
  history_changed: "history changed",
  truncated: "truncated to fit",
  evicted: "evicted",
  expired: "lease ran out",
  forked: "forked in a block",
  restarted: "engine restarted",
  model_changed: "model changed",
  partial_block: "block not full",
  not_kept: "no longer in the cache",
};
