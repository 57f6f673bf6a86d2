// Who used what: /v1/usage as a table with a range of time and a chart. Times are UTC, as the ledger counts
// them; sums are the server's own, to the nano-dollar.

import { el, put } from "./dom.js";
import { count, dollars, exact, many, percent } from "./format.js";
import { takePlace } from "./place.js";
import { stacked } from "./stacked.js";

const RANGES = [
  ["24h", "last 24 hours"],
  ["7d", "last 7 days"],
  ["30d", "last 30 days"],
  ["12mo", "last 12 months"],
  ["own", "from … to …"],
];
const BUCKETS = [
  ["1h", "by the hour"],
  ["1d", "by the day"],
  ["1mo", "by the month"],
];
const GROUPS = [
  ["", "all together"],
  ["tenant", "by tenant"],
  ["key", "by key"],
  ["model", "by model"],
  ["tool", "by tool"],
  ["label", "by label …"],
];
const SHOWN = [
  ["cost", "money", (row) => row.cost, dollars],
  ["input", "input tokens", (row) => row.input_tokens, count],
  ["output", "output tokens", (row) => row.output_tokens, count],
  ["turns", "turns", (row) => row.turns, count],
];
const HOUR = 3600;
const [MOST, ROWS, BETWEEN_MS] = [10000, 100, 5000];
const TELLERS = { none: "without one", other: "all others" };

export const same = () => true;
// The stream has no view of it: what stands around every view is enough.
export const wish = () => ({ view: "session", name: "" });

const here = () => new URLSearchParams(location.hash.split("?")[1] ?? "");

function go(changes) {
  const next = here();
  for (const [name, value] of Object.entries(changes)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  const address = "#usage" + (String(next) ? "?" + next : "");
  if (location.hash !== address) location.hash = address;
}

const day = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 10);

// From and to, in seconds: whole hours, days or months that end with the present one.
export function stretch(query, now) {
  const range = query.get("range") || (query.get("from") || query.get("to") ? "own" : "30d");
  const hour = Math.floor(now / 1000 / HOUR) * HOUR + HOUR;
  const today = Math.floor(now / 1000 / (24 * HOUR)) * 24 * HOUR;
  if (range === "24h") return { range, from: hour - 24 * HOUR, to: hour };
  if (range === "7d") return { range, from: today - 6 * 24 * HOUR, to: hour };
  if (range === "12mo") {
    const at = new Date(now);
    return { range, from: Date.UTC(at.getUTCFullYear(), at.getUTCMonth() - 11, 1) / 1000, to: hour };
  }
  if (range === "own") {
    const [from, to] = ["from", "to"].map((name) => Date.parse(`${query.get(name)}T00:00:00Z`) / 1000);
    return { range, from: from || today - 29 * 24 * HOUR, to: to ? to + 24 * HOUR : hour };
  }
  return { range: "30d", from: today - 29 * 24 * HOUR, to: hour };
}

// The parameters of /v1/usage for an address.
export function asked(query, now = Date.now()) {
  const { range, from, to } = stretch(query, now);
  const bucket = query.get("bucket") || { "24h": "1h", "12mo": "1mo" }[range] || "1d";
  const found = new URLSearchParams({ from, to, bucket, limit: MOST });
  const by = query.get("by") === "label" ? (query.get("label") ? `label:${query.get("label")}` : "") : query.get("by");
  if (by) found.set("group_by", by);
  if (query.get("tenant")) found.set("tenant", query.get("tenant"));
  return found;
}

export function open(view, query) {
  const page = { number: 0, timer: 0, told: null };
  const { bar, sync, told: serverTold } = controls(page);
  page.serverTold = serverTold;
  page.total = el("small", { id: "usage-total" });
  page.error = el("p", { class: "empty", role: "status" }, "Asking the server.");
  page.chart = stacked();
  page.values = part("usage-values", "In the whole range");
  page.buckets = part("usage-rows", "One after the other");
  page.more = el("button", { type: "button", hidden: true, onclick: () => tables(page, page.rows + 5 * ROWS) }, "Show more rows");
  view.append(
    el("section", { "aria-labelledby": "usage-title" },
      el("h2", { id: "usage-title" }, "Usage ", page.total), bar, page.error, page.chart.node, page.values.node, page.buckets.node, el("p", { class: "pages" }, page.more)),
  );
  const told = (next) => {
    page.query = next;
    sync(next);
    if (page.server) ask(page);
  };
  told(query);
  return { update: (parts, news) => update(parts, news, page), sync: told, close: () => stop(page) };
}

function stop(page) {
  page.number += 1;
  clearTimeout(page.timer);
  page.chart.close();
}

function part(name, title) {
  const [head, body, foot] = [el("tr"), el("tbody"), el("tfoot")];
  const table = el("table", { class: "cards usage", id: name }, el("caption", { class: "hidden" }, title), el("thead", {}, head), body, foot);
  const node = el("div", { class: "part", hidden: true }, el("h3", {}, title), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, table));
  return { node, head, body, foot, table };
}

function choice(id, words, options, changed) {
  const list = el("select", { id, "aria-label": words }, ...options.map(([value, text]) => el("option", { value }, text)));
  list.addEventListener("change", () => changed(list.value));
  return list;
}

function text(id, words, type, changed) {
  const box = el("input", { id, type, "aria-label": words, placeholder: type === "search" ? words : null });
  box.addEventListener("change", () => changed(box.value));
  return box;
}

function controls(page) {
  const ends = ["from", "to"].map((name) => text(`usage-${name}`, name === "from" ? "First day" : "Last day", "date", (value) => go({ range: "own", [name]: value })));
  const own = el("span", { class: "range" }, ...ends);
  const range = choice("range", "Range", RANGES, (value) => {
    const { from, to } = stretch(here(), Date.now());
    go(value === "own" ? { range: value, from: day(from), to: day(to - 1) } : { range: value, from: "", to: "", bucket: "" });
  });
  const bucket = choice("bucket", "Bucket", BUCKETS, (value) => go({ bucket: value }));
  const label = text("usage-label", "Name of the label", "search", (value) => go({ label: value }));
  const by = choice("by", "Group by", GROUPS, (value) => go({ by: value, label: value === "label" ? label.value : "" }));
  const show = choice("shown", "Chart shows", SHOWN, (value) => go({ shown: value }));
  const tenant = text("usage-tenant", "Tenant", "search", (value) => go({ tenant: value }));
  page.csv = el("a", { id: "csv", class: "button", download: "usage.csv" }, "CSV");
  page.operators = [tenant, by.querySelector('[value="tenant"]')];
  const bar = el("div", { class: "filters" }, range, own, bucket, by, label, tenant, show, page.csv);
  const sync = (query) => {
    const found = stretch(query, Date.now());
    range.value = found.range;
    own.hidden = found.range !== "own";
    ends[0].value = day(found.from);
    ends[1].value = day(found.to - 1);
    bucket.value = asked(query).get("bucket");
    by.value = query.get("by") ?? "";
    label.hidden = by.value !== "label";
    label.value = query.get("label") ?? "";
    tenant.value = query.get("tenant") ?? "";
    const wanted = asked(query);
    wanted.set("format", "csv");
    page.csv.href = `/v1/usage?${wanted}`;
    told(query);
  };
  // What the server says of itself; what is being typed is left alone.
  const told = (query) => {
    show.value = measure(query, page)[0];
    for (const node of page.operators) node.hidden = !page.server?.operator;
  };
  return { bar, sync, told };
}

const measure = (query, { server }) => SHOWN.find(([name]) => name === query.get("shown")) ?? (server && !server.priced ? SHOWN[1] : SHOWN[0]);

function update(parts, news, page) {
  if (news.server) {
    page.server = parts.server;
    page.serverTold(page.query);
    if (!parts.server.journal) return put(page.error, "This server keeps no journal, and no account of who used what.");
    if (!page.told) ask(page);
  }
  if (news.totals && page.told) {
    page.timer ||= setTimeout(() => {
      page.timer = 0;
      if (!document.hidden) ask(page);
    }, BETWEEN_MS);
  }
  page.chart.recolour();
}

async function ask(page) {
  const number = ++page.number;
  let told;
  try {
    const answer = await fetch(`${location.origin}/v1/usage?${asked(page.query)}`, { cache: "no-store" });
    told = await answer.json();
    if (!answer.ok) told = { error: told.error?.message ?? `The server refused (${answer.status}).` };
  } catch {
    told = { error: "The server cannot be reached." };
  }
  if (number !== page.number) return;
  const stands = page.told && !page.told.error && page.shownFor === String(page.query);
  if (!told.error || !stands) show(told, page); // else what stands there was true a moment ago
}

function show(told, page) {
  page.error.hidden = !told.error && told.data.length > 0;
  put(page.error, told.error ?? "Nothing was used in this range.");
  const there = !told.error && told.data.length > 0;
  page.values.node.hidden = !there || !told.group_by;
  page.buckets.node.hidden = page.chart.node.hidden = !there;
  page.csv.hidden = Boolean(told.error);
  page.more.hidden = true;
  const text = JSON.stringify(told);
  const query = String(page.query);
  if (page.text === text && page.shownFor === query) return;
  page.text = text;
  page.shownFor = query;
  page.told = told;
  put(page.total, told.error ? "" : summary(told.total, page.server));
  if (!there) return;
  const [, words, value, form] = measure(page.query, page);
  page.chart.show(told, { words, value, form, name: named });
  tables(page, ROWS);
  takePlace();
}

function summary(total, { priced }) {
  const failed = total.failed ? `, ${exact(total.failed)} failed` : "";
  const said = [many(total.turns, "turn") + failed, `${count(total.input_tokens)} tokens in, ${percent(total.input_tokens ? total.cached_tokens / total.input_tokens : null)} from cache`, `${count(total.output_tokens)} out`];
  return [...(priced ? [`${dollars(total.cost)} spent`] : []), ...said, ...(priced ? [`${dollars(total.saved)} saved`] : [])].join(" · ");
}

export const named = ({ value, kind }) => (kind === undefined ? "all" : kind === "value" ? value || "(empty)" : TELLERS[kind]);

const NUMBERS = [
  ["Turns", (row) => exact(row.turns) + (row.failed ? `, ${exact(row.failed)} failed` : "")],
  ["Calls", (row) => exact(row.calls), "tool"],
  ["Input", (row) => count(row.input_tokens)],
  ["From cache", (row) => percent(row.input_tokens ? row.cached_tokens / row.input_tokens : null)],
  ["Output", (row) => count(row.output_tokens)],
  ["Cost", (row) => dollars(row.cost), "priced"],
  ["Saved", (row) => dollars(row.saved), "priced"],
];

function tables(page, rows) {
  const { told } = page;
  page.rows = rows;
  const columns = NUMBERS.filter(([, , only]) => !only || (only === "priced" ? page.server.priced : told.group_by === only));
  const group = told.group_by?.replace(/^label:/, "") ?? "";
  const title = group && group[0].toUpperCase() + group.slice(1);
  if (told.group_by) fill(page.values, [title], sumsByValue(told.data).map((row) => [[named(row)], row]), told.total, columns);
  const names = told.group_by ? ["Time (UTC)", title] : ["Time (UTC)"];
  const shown = told.data.slice(0, rows);
  fill(page.buckets, names, shown.map((row) => [told.group_by ? [when(row.start, told.bucket), named(row)] : [when(row.start, told.bucket)], row]), told.total, columns);
  page.more.hidden = told.data.length <= rows;
  put(page.buckets.node.querySelector("h3"), told.next_cursor ? `The first ${exact(told.data.length)} rows; the others by CSV or in a shorter range` : "One after the other");
}

const SUMMED = ["turns", "failed", "calls", "input_tokens", "cached_tokens", "output_tokens", "cost_nano", "saved_nano"];

// Whole numbers are added up; dollars are made of their sum.
export function sumsByValue(data) {
  const found = new Map();
  for (const row of data) {
    const key = JSON.stringify([row.kind, row.value]);
    const sum = found.get(key) ?? { kind: row.kind, value: row.value, ...Object.fromEntries(SUMMED.map((name) => [name, 0])) };
    for (const name of SUMMED) sum[name] += row[name];
    found.set(key, sum);
  }
  const sums = [...found.values()].map((sum) => ({ ...sum, cost: sum.cost_nano / 1e9, saved: sum.saved_nano / 1e9 }));
  return sums.sort((a, b) => b.cost_nano - a.cost_nano || b.input_tokens - a.input_tokens || named(a).localeCompare(named(b)));
}

const when = (start, bucket) => ({ "1mo": start.slice(0, 7), "1d": start.slice(0, 10) })[bucket] ?? start.slice(0, 16).replace("T", " ");

function fill({ head, body, foot }, names, rows, total, columns) {
  head.replaceChildren(...names.map((name) => el("th", { scope: "col" }, name)), ...columns.map(([name]) => el("th", { scope: "col", class: "n" }, name)));
  const numbers = (row) => columns.map(([name, words]) => el("td", { class: "n", "data-label": name }, words(row)));
  body.replaceChildren(...rows.map(([words, row]) => line(words, row, numbers)));
  const gap = names.length > 1 ? [el("td")] : [];
  foot.replaceChildren(el("tr", { "data-nano": total.cost_nano }, el("th", { scope: "row" }, "In all"), ...gap, ...numbers(total)));
}

const line = ([first, ...others], row, numbers) =>
  el("tr", { "data-nano": row.cost_nano, "data-value": row.value ?? null }, el("th", { scope: "row", title: first }, first), ...others.map((word) => el("td", { class: "value", "data-label": "" }, word)), ...numbers(row));
