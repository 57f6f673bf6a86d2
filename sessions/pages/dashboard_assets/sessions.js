// The list of sessions, live or in the journal alone: what costs, what the cache holds, and what it did
// not hold and why. The server's journal is asked for a page; what is live is told over it by the stream.

import { budgetCell, held } from "./budgets.js";
import { setSince, since } from "./clock.js";
import { Rows, el, put, width } from "./dom.js";
import { FILTERS, filters, go, here, showTenants } from "./filters.js";
import { count, dollars, exact, percent } from "./format.js";
import { Listed } from "./listed.js";
import { pager } from "./pager.js";
import { takePlace } from "./place.js";

const MANY = 50;
const SHADES = { running: "warm", waiting_for_tools: "cool" };
const HEADS = ["Session", "Tenant", "State", "Turns", "From cache", "Computed again", "Input", "Output", "Cost", "Budget left", "Active"];
const SORTED = { Active: "recent", Cost: "cost", "Computed again": "again", "From cache": "hit" };
const STREAM_SORTS = { again: "missed" };
const OVER = ["live", "state", "why", "block_seconds"];

export const same = () => true;

// Without a journal the stream itself has the list; else it tells of the latest, whatever is asked.
let journalled = true;

export function wish(query) {
  if (journalled) return query.get("tenant") ? { tenant: query.get("tenant") } : {};
  const asked = Object.fromEntries([...query].filter(([name]) => ["q", "state", "tenant", "budget", "failed", "several", "sort", "page"].includes(name)));
  if (asked.several === "0") delete asked.several;
  if (asked.sort) asked.sort = STREAM_SORTS[asked.sort] ?? asked.sort;
  return asked;
}

export const sessionLink = (tenant, name) => "#session?" + new URLSearchParams({ tenant, name });

// The list as it was looked at last: where a session's page leads back to.
let last = "#sessions";
export const lastList = () => last;

export function open(view, query) {
  const page = { body: el("tbody"), tally: el("small", { id: "tally" }), empty: el("p", { class: "empty" }, "Asking the server."), at: null, shown: new Map() };
  page.heads = HEADS.map(head);
  page.table = el("table", { class: "cards", hidden: true }, el("caption", { class: "hidden" }, "Sessions"), el("thead", {}, el("tr", {}, ...page.heads)), page.body);
  page.nav = el("nav", { class: "pages", "aria-label": "Pages", hidden: true });
  page.heading = el("h2", { id: "sessions-title" }, "Sessions ", page.tally);
  const { bar, sync } = filters();
  const region = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Sessions" }, page.table, page.empty);
  view.append(el("section", { "aria-labelledby": "sessions-title" }, page.heading, bar, region, page.nav));
  page.rows = new Rows(page.body, row);
  page.turn = pager(page.nav, (to) => go(journalled ? page.listed.place(to) : { page: to ? String(to) : "" }));
  page.listed = new Listed((told) => told && page.parts && show(told, page));
  const told = (asked) => {
    last = location.hash || "#sessions";
    sync(asked);
    const sort = asked.get("sort") || "recent";
    for (const each of page.heads) mark(each, sort);
    if (journalled) page.listed.show(asked);
  };
  told(query);
  return { update: (parts, news) => update(parts, news, page), sync: told, close: () => page.listed.stop() };
}

function head(title) {
  const sort = SORTED[title];
  if (!sort) return el("th", { scope: "col", "data-column": title }, title);
  const button = el("button", { type: "button", class: "sort", onclick: () => go({ sort: sort === "recent" ? "" : sort }) }, title);
  return el("th", { scope: "col", "data-column": title, "data-sort": sort }, button);
}

// The head that the list stands in the order of.
function mark(node, sort) {
  if (node.dataset.sort === sort) node.setAttribute("aria-sort", sort === "hit" ? "ascending" : "descending");
  else node.removeAttribute("aria-sort");
}

function update(parts, news, page) {
  page.parts = parts;
  if (news.server) {
    showTenants(parts.server.operator);
    page.table.classList.toggle("unpriced", !parts.server.priced);
    page.table.classList.toggle("single", !parts.server.operator);
    if (journalled !== Boolean(parts.server.journal)) {
      journalled = !journalled;
      return dispatchEvent(new Event("hashchange"));
    }
  }
  if (!journalled) return show(streamed(parts), page);
  if (page.told) draw(page);
  else if (page.early) show(page.early, page);
  if (Object.keys(news).some((name) => name.startsWith("s[") || ["order", "totals"].includes(name))) page.listed.again();
}

// What a server without a journal tells, as a page of the list.
function streamed({ list, order, pages, ...parts }) {
  const rows = order.map((key) => parts[key]);
  for (const each of rows) each.computed_again ??= each.avoidable_tokens;
  return { rows, matching: list.matching, total: list.total, number: list.page, pages, more: list.page + 1 < pages };
}

function show(told, page) {
  if (told.error && page.told?.rows.length) return; // what stands there was true a moment ago
  page.told = told;
  draw(page);
  if (told.error) return;
  turnPages(told, page);
  takePlace();
}

function draw(page) {
  const { told, parts } = page;
  const rows = told.rows ?? [];
  const live = new Map(journalled ? Object.entries(parts).filter(([name]) => name.startsWith("s[")).map(([, each]) => [keyOf(each), each]) : []);
  const sort = here().get("sort") || "recent";
  const placed = sort === "recent" ? grouped(rows) : rows.map((each) => ({ row: each, indent: 0 }));
  const data = new Map();
  for (const { row: each, indent } of placed) {
    const key = keyOf(each);
    data.set(key, kept(page, key, joined(each, live.get(key), indent, parts)));
  }
  for (const key of page.shown.keys()) if (!data.has(key)) page.shown.delete(key);
  page.rows.show([...data.keys()], (key) => data.get(key));
  put(page.tally, tally(told));
  page.empty.hidden = rows.length > 0;
  page.table.hidden = rows.length === 0;
  if (!rows.length) nothing(page.empty, told);
}

const keyOf = ({ tenant, session }) => JSON.stringify([tenant, session]);

// A row as it is shown: of the journal, and over it what is live. When it was active is the journal's, by which rows are sorted.
function joined(row, live, indent, { tenant_budgets }) {
  const own = Object.fromEntries(OVER.map((name) => [name, live?.[name] ?? row[name] ?? null]));
  const budgets = live ? held({ ...live, tenant: row.tenant }, tenant_budgets) : row.budgets;
  const at = live?.state === "running" ? null : (row.active_at ?? live?.active_at ?? null);
  return { ...row, ...own, budgets, active_at: at === null ? null : Math.round(at * 10) / 10, indent };
}

// The same object for a row of which nothing has changed: it is not drawn again.
function kept(page, key, data) {
  const text = JSON.stringify(data);
  const before = page.shown.get(key);
  if (before?.text === text) return before.data;
  page.shown.set(key, { text, data });
  return data;
}

// How many there are; where the server has not counted them, how many have been seen.
function tally({ matching, rows, total, error, number, more }) {
  if (error) return "";
  if (total !== undefined && total !== matching) return `${exact(matching)} of ${exact(total)}`;
  const seen = number * MANY + rows.length;
  return matching === null && more ? `more than ${exact(seen)}` : exact(Math.max(matching ?? seen, rows.length));
}

function nothing(empty, { error, number, total }) {
  if (error) return empty.replaceChildren(`${error} `, el("a", { href: "#sessions" }, "Show all"));
  const address = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/responses`;
  if (FILTERS.some((name) => here().get(name)) && total !== 0) empty.replaceChildren("None of the sessions is like this. ", el("a", { href: "#sessions" }, "Show all"));
  else if (number) empty.replaceChildren("There is nothing on this page.");
  else empty.replaceChildren("No session yet. Clients connect to ", el("code", {}, address), ".");
}

function turnPages(told, page) {
  const { number, matching, more, rows } = told;
  page.nav.hidden = !more && !number && !told.beyond;
  const all = told.pages ?? (matching === null ? null : Math.max(Math.ceil(matching / MANY), number + 1));
  const said = !rows.length ? `no page ${number + 1}` : all === null ? `page ${number + 1}` : `page ${number + 1} of ${exact(all)}`;
  const latest = (here().get("sort") || "recent") === "recent";
  page.turn(number, more ? number + 2 : number + 1, said, latest ? ["Newer", "Older"] : ["Previous", "Next"]);
  if (page.at !== null && page.at !== number && page.turned !== location.hash) page.heading.scrollIntoView({ block: "start" });
  page.at = number;
  page.turned = location.hash;
}

// The rows of a page, each behind the one that it is a part of, where that is among them.
function grouped(rows) {
  const here_ = new Map(rows.map((each) => [keyOf(each), each]));
  const above = (each) => (each.parent === null ? undefined : here_.get(keyOf({ tenant: each.tenant, session: each.parent })));
  const below = new Map();
  for (const each of rows) if (above(each)) below.set(above(each), [...(below.get(above(each)) ?? []), each]);
  const found = new Map();
  const add = (each, indent) => {
    const waiting = [[each, indent]];
    while (waiting.length) {
      const [next, deep] = waiting.pop();
      if (found.has(next)) continue;
      found.set(next, deep);
      for (const child of [...(below.get(next) ?? [])].reverse()) waiting.push([child, deep + 1]);
    }
  };
  for (const each of rows) if (!above(each)) add(each, 0);
  for (const each of rows) add(each, 0); // what names go round in has no root
  return [...found].map(([each, indent]) => ({ row: each, indent }));
}

function row(first) {
  const link = el("a", { href: sessionLink(first.tenant, first.session) }, first.session);
  const name = el("th", { scope: "row", title: first.session });
  const state = el("span", { class: "chip" });
  const meter = el("div", { class: "meter" }, el("b"), el("div", { class: "bar", "aria-hidden": "true" }, el("i", { class: "cached" })));
  const cell = (label, shade, ...inside) => el("td", { class: shade || null, "data-label": label }, ...inside);
  const cells = {
    turns: cell("Turns", "n"),
    hit: cell("From cache", "", meter),
    again: cell("Computed again", "why-cell", el("b"), el("span", { class: "dim" })),
    input: cell("Input", "n"),
    output: cell("Output", "n"),
    cost: cell("Cost", "n"),
    budget: cell("Budget left", ""),
  };
  const active = since(null);
  const node = el(
    "tr",
    { "data-session": first.session, "data-tenant-name": first.tenant },
    name,
    el("td", { class: "dim", "data-label": "Tenant" }, first.tenant),
    el("td", { "data-label": "State" }, state),
    ...Object.values(cells),
    el("td", { class: "n dim", "data-label": "Active" }, active),
  );
  name.append(link);
  return { node, update: (data) => fillRow(data, { name, link, state, meter, cells, active }) };
}

// A sub-agent stands deeper than what it is a part of. Where that is on another page, it is named.
function place(data, name, link) {
  name.className = data.indent ? "child" : "";
  name.style.setProperty("--indent", Math.min(data.indent, 16));
  const told = JSON.stringify([data.indent > 0, data.parent, data.labels, data.server]);
  if (name.dataset.told === told) return; // a link that has the focus keeps it
  name.dataset.told = told;
  for (const part of [...name.childNodes]) if (part !== link) part.remove();
  if (data.parent !== null && data.indent) link.before(el("span", { class: "dim", title: `sub-agent of ${data.parent}` }, "↳ "));
  else if (data.parent !== null) name.append(el("small", { class: "of" }, "sub-agent of ", el("a", { href: sessionLink(data.tenant, data.parent) }, data.parent)));
  if (data.server) name.append(el("small", { class: "of" }, `at ${data.server}`));
  const labels = Object.entries(data.labels ?? {});
  if (labels.length) name.append(el("small", { class: "of marks" }, ...labels.map(([key, value]) => el("span", { class: "label" }, `${key}:${value}`))));
}

function fillRow(data, { name, link, state, meter, cells, active }) {
  place(data, name, link);
  put(state, data.state.replaceAll("_", " "));
  state.className = "chip " + (SHADES[data.state] ?? "");
  cells.turns.replaceChildren(exact(data.turns), data.failed ? el("span", { class: "bad-mark", title: `${data.failed} failed` }, ` ${data.failed} failed`) : "");
  put(meter.querySelector("b"), percent(data.hit_ratio));
  width(meter.querySelector("i"), data.hit_ratio);
  put(cells.again.querySelector("b"), data.computed_again ? count(data.computed_again) : "–");
  put(cells.again.querySelector("span"), data.computed_again ? data.why : "");
  cells.again.title = data.why ?? "";
  put(cells.input, count(data.input_tokens));
  put(cells.output, count(data.output_tokens));
  cells.cost.replaceChildren(...money(data));
  cells.budget.replaceChildren(...budgetCell(data.budgets, data.session));
  if (data.state === "running") setSince(active, null, undefined, "now");
  else setSince(active, data.active_at);
}

function money(data) {
  const whole = data.tree && data.tree.turns > data.turns ? el("small", { class: "saved whole" }, `with sub-agents ${dollars(data.tree.cost)}`) : "";
  const saved = data.saved ? el("small", { class: "saved" }, `${dollars(data.saved)} saved`) : "";
  return [dollars(data.cost), whole, saved];
}
