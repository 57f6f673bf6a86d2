// For operators: who uses what, which limits were met, which errors were sent.

import { Rows, el, put, width } from "./dom.js";
import { REASONS, tokenTime, count, dollars, exact, percent } from "./format.js";

export const same = () => true;
export const wish = () => ({});

export function open(view) {
  const titles = ["Tenant", "Sessions", "Turns", "Share of input", "KV blocks", "From cache", "Output", "Cost", "Used of each limit", "Refused, cut, errors", "Computed again, mostly"];
  const body = el("tbody");
  const tally = el("small");
  const table = el("table", { class: "cards tenants" }, el("caption", { class: "hidden" }, "Tenants"), el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", { scope: "col" }, title)))), body);
  const empty = el("p", { class: "empty" }, "No tenant has asked for anything yet.");
  view.append(el("section", { "aria-labelledby": "tenants-title" }, el("h2", { id: "tenants-title" }, "Tenants ", tally), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Tenants" }, table, empty)));
  const rows = new Rows(body, row);
  return {
    update(parts) {
      const keys = Object.keys(parts).filter((key) => key.startsWith("n[")).sort((a, b) => parts[b].input_tokens - parts[a].input_tokens || a.localeCompare(b));
      const whole = keys.reduce((sum, key) => sum + parts[key].input_tokens, 0);
      rows.show(keys, (key) => ({ ...parts[key], share: whole ? parts[key].input_tokens / whole : 0 }));
      put(tally, parts.num_tenants ?? 0);
      table.hidden = keys.length === 0;
      empty.hidden = keys.length > 0;
    },
  };
}

function row(first) {
  const names = ["sessions", "turns", "share", "kv", "hit", "output", "cost", "limits", "refused", "why"];
  const labels = ["Sessions", "Turns", "Share of input", "KV blocks", "From cache", "Output", "Cost", "Limits", "Refused, cut, errors", "Computed again"];
  const cells = Object.fromEntries(names.map((name, index) => [name, el("td", { "data-label": labels[index], class: ["sessions", "turns", "output", "cost"].includes(name) ? "n" : "" })]));
  const meters = Object.fromEntries(["share", "kv"].map((name) => [name, meter("own")]));
  for (const [name, { node }] of Object.entries(meters)) cells[name].append(node);
  const link = el("a", { href: "#sessions?" + new URLSearchParams({ tenant: first.tenant }) }, first.tenant);
  const node = el("tr", { "data-tenant-name": first.tenant }, el("th", { scope: "row" }, link), ...Object.values(cells));
  return { node, update: (data) => fill(data, cells, meters) };
}

function meter(shade) {
  const bar = el("i", { class: shade });
  const text = el("b");
  return { text, bar, node: el("div", { class: "meter" }, text, el("div", { class: "bar", "aria-hidden": "true" }, bar)) };
}

const KINDS = { input_uncached: "input", input_cached: "cached input", output: "output", reasoning: "thinking", residency: "of KV kept", cost: "" };

// Of a rate what the last minute has taken; of a budget what was spent since it was set.
function limit({ kind, per, limit: most, used }) {
  const show = { cost: dollars, residency: tokenTime }[kind] ?? count;
  const { text, bar, node } = meter(used >= most ? "bad" : used >= 0.7 * most ? "low" : "good");
  put(text, `${show(Math.max(used, 0))} of ${show(most)} ${KINDS[kind] ?? kind}${per === "minute" ? " a minute" : ""}`.trim());
  width(bar, most ? Math.min(Math.max(used / most, 0), 1) : 1);
  return node;
}

const REFUSALS = { rate_limit_exceeded: "rate limit", model_not_found: "model", server_is_overloaded: "server full", websocket_stream_limit_reached: "streams", websocket_connection_limit_reached: "connections", context_length_exceeded: "context length" };
const ENDS = { refused: "budget refused", cut: "budget cut" };
const told = (pairs) => pairs.map(([what, times]) => `${what} ${exact(times)}`).join(" · ") || "–";

function fill(data, cells, meters) {
  put(cells.sessions, exact(data.sessions) + (data.running ? `, ${exact(data.running)} running` : ""));
  put(cells.turns, exact(data.turns) + (data.failed ? `, ${exact(data.failed)} failed` : ""));
  put(meters.share.text, percent(data.share));
  width(meters.share.bar, data.share);
  put(meters.kv.text, data.kv_blocks === null ? "–" : `${count(data.kv_blocks)} (${percent(data.kv_share)})`);
  width(meters.kv.bar, data.kv_share ?? 0);
  put(cells.hit, percent(data.hit_ratio));
  put(cells.output, count(data.output_tokens));
  put(cells.cost, data.cost ? dollars(data.cost) : "–");
  const models = data.models ? [el("span", { class: "dim" }, `only ${data.models.join(", ")}`)] : [];
  const limits = [...data.limits.map(limit), ...models];
  cells.limits.replaceChildren(...(limits.length ? limits : ["none"]));
  const errors = Object.entries(data.errors);
  const refused = errors.filter(([code]) => Object.hasOwn(REFUSALS, code)).map(([code, times]) => [REFUSALS[code], times]);
  const others = errors.filter(([code]) => !Object.hasOwn(REFUSALS, code));
  const ends = Object.entries(data.budget_ends).map(([end, times]) => [ENDS[end] ?? end, times]);
  cells.refused.replaceChildren(el("div", {}, told([...ends, ...refused])), others.length ? el("div", { class: "dim" }, told(others)) : "");
  const worst = data.misses.find((miss) => !miss.own);
  put(cells.why, worst ? `${REASONS[worst.reason] ?? worst.words} ${count(worst.tokens)}` : "–");
}
