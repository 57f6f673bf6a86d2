// For operators: who uses what, which limits were met, which errors were sent.

import { Rows, el, put, width } from "./dom.js";
import { REASONS, count, dollars, exact, percent } from "./format.js";

export const same = () => true;
export const wish = () => ({});

export function open(view) {
  const titles = ["Tenant", "Sessions", "Running", "Turns", "Share of input", "From cache", "Output", "Cost", "Met a budget", "Errors sent", "Computed again, mostly"];
  const body = el("tbody");
  const tally = el("small");
  const table = el("table", { class: "cards tenants" }, el("caption", { class: "hidden" }, "Tenants"), el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", { scope: "col" }, title)))), body);
  const empty = el("p", { class: "empty" }, "No tenant has asked for anything yet.");
  view.append(el("section", { "aria-labelledby": "tenants-title" }, el("h2", { id: "tenants-title" }, "Tenants ", tally), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Tenants" }, table, empty)));
  const rows = new Rows(body, row);
  return {
    update(parts) {
      const keys = Object.keys(parts).filter((key) => key.startsWith("n[")).sort((a, b) => parts[b].input_tokens - parts[a].input_tokens);
      const whole = keys.reduce((sum, key) => sum + parts[key].input_tokens, 0);
      rows.show(keys, (key) => ({ ...parts[key], share: whole ? parts[key].input_tokens / whole : 0 }));
      put(tally, parts.num_tenants ?? 0);
      table.hidden = keys.length === 0;
      empty.hidden = keys.length > 0;
    },
  };
}

function row(first) {
  const names = ["sessions", "running", "turns", "share", "hit", "output", "cost", "budget", "errors", "why"];
  const labels = ["Sessions", "Running", "Turns", "Share of input", "From cache", "Output", "Cost", "Met a budget", "Errors sent", "Computed again"];
  const cells = Object.fromEntries(names.map((name, index) => [name, el("td", { "data-label": labels[index], class: ["sessions", "running", "turns", "output", "cost", "budget"].includes(name) ? "n" : "" })]));
  const bar = el("i", { class: "cool" });
  const share = el("b");
  cells.share.append(el("div", { class: "meter" }, share, el("div", { class: "bar", "aria-hidden": "true" }, bar)));
  const link = el("a", { href: "#sessions?" + new URLSearchParams({ tenant: first.tenant }) }, first.tenant);
  const node = el("tr", { "data-tenant-name": first.tenant }, el("th", { scope: "row" }, link), ...Object.values(cells));
  return { node, update: (data) => fill(data, cells, share, bar) };
}

function fill(data, cells, share, bar) {
  put(cells.sessions, exact(data.sessions));
  put(cells.running, data.running);
  put(cells.turns, exact(data.turns) + (data.failed ? `, ${exact(data.failed)} failed` : ""));
  put(share, percent(data.share));
  width(bar, data.share);
  put(cells.hit, percent(data.hit_ratio));
  put(cells.output, count(data.output_tokens));
  put(cells.cost, data.cost ? dollars(data.cost) : "–");
  put(cells.budget, data.out_of_budget ? `${exact(data.out_of_budget)} times` : "–");
  put(cells.errors, Object.entries(data.errors).map(([code, times]) => `${code} ${exact(times)}`).join(" · ") || "–");
  const worst = data.misses.find((miss) => !miss.own);
  put(cells.why, worst ? `${REASONS[worst.reason]} ${count(worst.tokens)}` : "–");
}
