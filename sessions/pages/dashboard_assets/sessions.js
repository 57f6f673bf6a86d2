// The list of sessions: what costs, what the cache holds, and what it did not hold and why.

import { budgetCell, held } from "./budgets.js";
import { setSince, since } from "./clock.js";
import { Rows, el, put, width } from "./dom.js";
import { count, dollars, exact, percent } from "./format.js";
import { journal } from "./journal.js";
import { pager } from "./pager.js";

const SORTS = [
  ["recent", "latest first"],
  ["cost", "most expensive"],
  ["missed", "most computed again"],
  ["hit", "lowest hit ratio"],
  ["input", "most input"],
  ["output", "most output"],
  ["turns", "most turns"],
];
const STATES = ["running", "waiting_for_tools", "idle"];
const MANY = 50;
const SHADES = { running: "warm", waiting_for_tools: "cool" };

export const same = () => true;

export function wish(query) {
  const asked = Object.fromEntries(query);
  if (asked.several === "0") delete asked.several;
  return asked;
}

export const sessionLink = (tenant, name) => "#session?" + new URLSearchParams({ tenant, name });

// The list as it was looked at last: where a session's page leads back to.
let last = "#sessions";
export const lastList = () => last;

function go(changes, replace = false) {
  const [, query = ""] = location.hash.split("?");
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries({ page: "", ...changes })) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  const address = "#sessions" + (String(next) ? "?" + next : "");
  if (replace) location.replace(address);
  else location.hash = address;
}

export function open(view, query) {
  const head = ["Session", "Tenant", "State", "Turns", "From cache", "Computed again", "Input", "Output", "Cost", "Budget left", "Active"];
  const body = el("tbody");
  const table = el(
    "table",
    { class: "cards" },
    el("caption", { class: "hidden" }, "Sessions"),
    el("thead", {}, el("tr", {}, ...head.map((title) => el("th", { scope: "col", "data-column": title }, title)))),
    body,
  );
  const tally = el("small", { id: "tally" });
  const empty = el("p", { class: "empty", hidden: true });
  const nav = el("nav", { class: "pages", "aria-label": "Pages", hidden: true });
  const heading = el("h2", { id: "sessions-title" }, "Sessions ", tally);
  const { bar, sync } = filters();
  view.append(el("section", { "aria-labelledby": "sessions-title" }, heading, bar, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Sessions" }, table, empty), nav));
  const rows = new Rows(body, row);
  const search = () => ({ q: document.getElementById("search").value });
  const kept = journal("Sessions in the journal", search, (each) => sessionLink(each.tenant, each.session));
  kept.node.hidden = true;
  view.append(kept.node);
  const page = { rows, table, tally, empty, nav, heading, kept, at: null };
  page.turn = pager(nav, (to) => go({ page: to ? String(to) : "" }));
  const told = (asked) => {
    last = location.hash || "#sessions";
    sync(asked);
    kept.again();
  };
  told(query);
  return { update: (parts, news) => update(parts, news, page), sync: told };
}

// The controls, and what makes them show an address, wherever that came from.
function filters() {
  const search = el("input", { type: "search", id: "search", placeholder: "Search sessions", "aria-label": "Search sessions" });
  let timer = 0;
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      timer = 0;
      go({ q: search.value });
    }, 250);
  });
  const choice = (name, label, options) => {
    const list = el("select", { "aria-label": label, id: name }, ...options.map(([value, text]) => el("option", { value }, text)));
    list.addEventListener("change", () => go({ [name]: list.value }));
    return list;
  };
  const tick = (name, label, title) => {
    const box = el("input", { type: "checkbox", id: name });
    box.addEventListener("change", () => go({ [name]: box.checked ? "1" : name === "several" ? "0" : "" }));
    return el("label", { class: "tick", title }, box, label);
  };
  const tenant = el("input", { type: "search", id: "tenant", placeholder: "Tenant", "aria-label": "Tenant", "data-operator": true, hidden: true });
  tenant.addEventListener("change", () => go({ tenant: tenant.value }));
  const lists = { state: choice("state", "State", [["", "any state"], ...STATES.map((state) => [state, state.replaceAll("_", " ")])]), sort: choice("sort", "Order", SORTS) };
  const ticks = { several: tick("several", "more than one turn"), budget: tick("budget", "with a budget", "Of its own, or of a tree that it is in"), failed: tick("failed", "with failures") };
  const sync = (query) => {
    if (!timer) search.value = query.get("q") ?? "";
    tenant.value = query.get("tenant") ?? "";
    for (const [name, list] of Object.entries(lists)) list.value = query.get(name) ?? list.options[0].value;
    for (const [name, label] of Object.entries(ticks)) label.querySelector("input").checked = query.get(name) === "1";
  };
  return { bar: el("div", { class: "filters", role: "search" }, search, tenant, ...Object.values(lists), ...Object.values(ticks)), sync };
}

function update(parts, news, page) {
  const { rows, table, tally, empty } = page;
  const list = parts.list;
  if (news.server) page.kept.node.hidden = !parts.server.journal;
  if (news.server) document.getElementById("tenant").hidden = !parts.server.operator;
  if (chooses(list, page)) return;
  table.classList.toggle("unpriced", !parts.server.priced);
  table.classList.toggle("single", !parts.server.operator);
  if (news.tenant_budgets) page.tenants = parts.tenant_budgets;
  rows.show(parts.order, (key) => rowData(parts[key], page.tenants));
  const hidden = list.total - list.matching;
  put(tally, list.matching === list.total ? exact(list.total) : `${exact(list.matching)} of ${exact(list.total)}`);
  empty.hidden = parts.order.length > 0;
  table.hidden = parts.order.length === 0;
  if (!empty.hidden) nothing(empty, list, hidden);
  turnPages(parts, page);
}

// Many sessions are one question each: those that go on come first, unless the address says what is
// wanted, or there are none.
function chooses(list, page) {
  const asked = new URLSearchParams(location.hash.split("?")[1] ?? "");
  const free = !["several", "q", "state", "budget", "failed", "page"].some((name) => asked.has(name));
  if (list.total > MANY && free && !page.chosen) {
    page.chosen = "several";
    go({ several: "1" }, true);
    return true;
  }
  if (page.chosen === "several" && list.total && !list.matching && asked.get("several") === "1") {
    page.chosen = "all";
    go({ several: "0" }, true);
    return true;
  }
  page.chosen ??= "nothing";
  return false;
}

// One object for each pair of a row and its tenant's budget: what has not changed is not drawn again.
const joined = new WeakMap();

function rowData(row, tenants) {
  const budget = tenants?.[row.tenant];
  const found = joined.get(row);
  if (found && found.budget === budget) return found;
  const made = { row, budget, budgets: held(row, tenants) };
  joined.set(row, made);
  return made;
}

function nothing(empty, list, hidden) {
  const address = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/responses`;
  if (!list.total) empty.replaceChildren("No session yet. Clients connect to ", el("code", {}, address), ".");
  else if (list.page) empty.replaceChildren("There is nothing on this page.");
  else empty.replaceChildren(`None of ${exact(hidden)} sessions is like this. `, el("a", { href: "#sessions?several=0" }, "Show all"));
}

function turnPages({ list, order, pages }, page) {
  page.nav.hidden = pages < 2 && !list.page;
  const beyond = list.matching > pages * MANY ? `, of ${exact(Math.ceil(list.matching / MANY))}` : "";
  const said = order.length ? `page ${list.page + 1} of ${exact(pages)}${beyond}` : `no page ${list.page + 1}`;
  const latest = ["", null, "recent"].includes(new URLSearchParams(location.hash.split("?")[1] ?? "").get("sort"));
  page.turn(list.page, pages, said, latest ? ["Newer", "Older"] : ["Previous", "Next"]);
  if (page.at !== null && page.at !== list.page) page.heading.scrollIntoView({ block: "start" });
  page.at = list.page;
}

function row({ row: first }) {
  const link = el("a", { href: sessionLink(first.tenant, first.session) }, first.session);
  const name = el("th", { scope: "row", title: first.session });
  const state = el("span", { class: "chip" });
  const meter = el("div", { class: "meter" }, el("b"), el("div", { class: "bar", "aria-hidden": "true" }, el("i", { class: "warm" })));
  const cells = {
    turns: el("td", { class: "n", "data-label": "Turns" }),
    hit: el("td", { "data-label": "From cache" }, meter),
    again: el("td", { class: "why-cell", "data-label": "Computed again" }, el("b"), el("span", { class: "dim" })),
    input: el("td", { class: "n", "data-label": "Input" }),
    output: el("td", { class: "n", "data-label": "Output" }),
    cost: el("td", { class: "n", "data-label": "Cost" }),
    budget: el("td", { "data-label": "Budget left" }),
  };
  const active = since(null);
  const node = el(
    "tr",
    { "data-session": first.session, "data-tenant-name": first.tenant },
    name,
    el("td", { class: "dim", "data-label": "Tenant" }, first.tenant),
    el("td", { "data-label": "State" }, state),
    cells.turns, cells.hit, cells.again, cells.input, cells.output, cells.cost, cells.budget,
    el("td", { class: "n dim", "data-label": "Active" }, active),
  );
  name.append(link);
  return { node, update: (data) => fillRow(data, { name, link, state, meter, cells, active }) };
}

// A sub-agent stands deeper than what it is a part of. Where that is another than its parent, or on
// another page, its parent is named.
function place(data, name, link) {
  name.className = data.indent ? "child" : "";
  name.style.setProperty("--indent", Math.min(data.indent, 16));
  const parts = [...name.childNodes].filter((part) => part !== link);
  for (const part of parts) part.remove();
  if (data.parent === null) return;
  const said = `sub-agent of ${data.parent}`;
  if (data.indent) link.before(el("span", { class: "dim", title: said }, "↳ "));
  if (data.under !== data.parent) name.append(el("small", { class: "of" }, "sub-agent of ", el("a", { href: sessionLink(data.tenant, data.parent) }, data.parent)));
}

function fillRow({ row: data, budgets }, { name, link, state, meter, cells, active }) {
  place(data, name, link);
  put(state, data.state.replaceAll("_", " "));
  state.className = "chip " + (SHADES[data.state] ?? "");
  cells.turns.replaceChildren(exact(data.turns), data.failed ? el("span", { class: "bad-mark", title: `${data.failed} failed` }, ` ${data.failed} failed`) : "");
  put(meter.querySelector("b"), percent(data.hit_ratio));
  width(meter.querySelector("i"), data.hit_ratio);
  put(cells.again.querySelector("b"), data.avoidable_tokens ? count(data.avoidable_tokens) : "–");
  put(cells.again.querySelector("span"), data.avoidable_tokens ? data.why : "");
  cells.again.title = data.why ?? "";
  put(cells.input, count(data.input_tokens));
  put(cells.output, count(data.output_tokens));
  cells.cost.replaceChildren(dollars(data.cost), data.saved ? el("small", { class: "saved" }, `${dollars(data.saved)} saved`) : "");
  cells.budget.replaceChildren(...budgetCell(budgets, data.session));
  if (data.state === "running") setSince(active, null, undefined, "now");
  else setSince(active, data.active_at);
}
