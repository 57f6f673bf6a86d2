// The list of sessions: what costs, what the cache holds, and what it did not hold and why.

import { Rows, chip, el, put, width } from "./dom.js";
import { journal } from "./journal.js";
import { ago, count, dollars, exact, left, percent } from "./format.js";

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

function go(changes) {
  const [, query = ""] = location.hash.split("?");
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries({ page: "", ...changes })) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  location.hash = "#sessions" + (String(next) ? "?" + next : "");
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
  const pages = el("nav", { class: "pages", "aria-label": "Pages", hidden: true });
  view.append(
    el("section", { "aria-labelledby": "sessions-title" }, el("h2", { id: "sessions-title" }, "Sessions ", tally), filters(query), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Sessions" }, table, empty), pages),
  );
  const rows = new Rows(body, row);
  const search = () => ({ q: document.getElementById("search").value });
  const kept = journal("Sessions in the journal", search, (each) => sessionLink(each.tenant, each.session));
  kept.hidden = true;
  view.append(kept);
  const page = { rows, table, tally, empty, pages, kept };
  return { update: (parts, news) => update(parts, news, page) };
}

function filters(query) {
  const search = el("input", { type: "search", id: "search", placeholder: "Search sessions", "aria-label": "Search sessions", value: query.get("q") ?? "" });
  let timer = 0;
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => go({ q: search.value }), 250);
  });
  const choice = (name, label, options) => {
    const list = el("select", { "aria-label": label, id: name }, ...options.map(([value, text]) => el("option", { value }, text)));
    list.value = query.get(name) ?? options[0][0];
    list.addEventListener("change", () => go({ [name]: list.value }));
    return list;
  };
  const tick = (name, label) => {
    const box = el("input", { type: "checkbox", id: name });
    box.checked = query.get(name) === "1";
    box.addEventListener("change", () => go({ [name]: box.checked ? "1" : name === "several" ? "0" : "" }));
    return el("label", { class: "tick" }, box, label);
  };
  const tenant = el("input", { type: "search", id: "tenant", placeholder: "Tenant", "aria-label": "Tenant", "data-operator": true, hidden: true, value: query.get("tenant") ?? "" });
  tenant.addEventListener("change", () => go({ tenant: tenant.value }));
  return el(
    "div",
    { class: "filters", role: "search" },
    search,
    tenant,
    choice("state", "State", [["", "any state"], ...STATES.map((state) => [state, state.replaceAll("_", " ")])]),
    choice("sort", "Order", SORTS),
    tick("several", "more than one turn"),
    tick("budget", "with a budget"),
    tick("failed", "with failures"),
  );
}

function update(parts, news, page) {
  const { rows, table, tally, empty, pages } = page;
  const list = parts.list;
  const asked = new URLSearchParams(location.hash.split("?")[1] ?? "");
  if (news.server) page.kept.hidden = !parts.server.journal;
  if (news.server) document.getElementById("tenant").hidden = !parts.server.operator;
  if (list.total > MANY && !asked.has("several") && !page.chosen) {
    page.chosen = true; // many sessions are one question each: those that go on come first
    document.getElementById("several").checked = true;
    return go({ several: "1" });
  }
  page.chosen = true;
  table.classList.toggle("unpriced", !parts.server.priced);
  table.classList.toggle("single", !parts.server.operator);
  rows.show(parts.order, (key) => parts[key]);
  const hidden = list.total - list.matching;
  put(tally, list.matching === list.total ? exact(list.total) : `${exact(list.matching)} of ${exact(list.total)}`);
  empty.hidden = parts.order.length > 0;
  table.hidden = parts.order.length === 0;
  if (!empty.hidden) nothing(empty, list, hidden);
  turnPages(pages, list, parts.order.length);
}

function nothing(empty, list, hidden) {
  const address = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/responses`;
  if (!list.total) empty.replaceChildren("No session yet. Clients connect to ", el("code", {}, address), ".");
  else if (list.page) empty.replaceChildren("There is nothing on this page.");
  else empty.replaceChildren(`None of ${exact(hidden)} sessions is like this. `, el("a", { href: "#sessions?several=0" }, "Show all"));
}

function turnPages(nav, list, rows) {
  const most = Math.max(1, Math.ceil(list.matching / MANY));
  nav.hidden = most === 1 && !list.page;
  if (nav.hidden || nav.dataset.at === `${list.page}/${most}`) return;
  nav.dataset.at = `${list.page}/${most}`;
  const to = (page, text, off) => el("button", { type: "button", disabled: off, onclick: () => go({ page: String(page) }) }, text);
  nav.replaceChildren(to(list.page - 1, "Newer", list.page === 0), el("span", {}, `page ${list.page + 1} of ${exact(most)}`), to(list.page + 1, "Older", rows < MANY || list.page + 1 >= most));
}

function row(first) {
  const link = el("a", { href: sessionLink(first.tenant, first.session) }, first.session);
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
  const active = el("span");
  const node = el(
    "tr",
    { "data-session": first.session, "data-tenant-name": first.tenant },
    el("th", { scope: "row", title: first.session, class: first.parent === null ? "" : `child depth-${Math.min(first.depth, 4)}` }, first.parent === null ? "" : el("span", { class: "dim", title: `sub-agent of ${first.parent}` }, "↳ "), link),
    el("td", { class: "dim", "data-label": "Tenant" }, first.tenant),
    el("td", { "data-label": "State" }, state),
    cells.turns, cells.hit, cells.again, cells.input, cells.output, cells.cost, cells.budget,
    el("td", { class: "n dim", "data-label": "Active" }, active),
  );
  return { node, update: (data) => fillRow(data, { state, meter, cells, active }) };
}

function fillRow(data, { state, meter, cells, active }) {
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
  cells.budget.replaceChildren(...budget(data));
  if (data.state === "running") {
    delete active.dataset.at;
    put(active, "now");
  } else {
    active.dataset.at = data.active_at;
    put(active, ago(Date.now() / 1000 - data.active_at));
  }
}

function budget(data) {
  const names = Object.keys(data.budget_left);
  if (!names.length) return ["–"];
  const share = Math.min(...names.map((name) => (data.budget[name] ? data.budget_left[name] / data.budget[name] : 0)));
  const bar = el("i", { class: share < 0.1 ? "bad" : share < 0.3 ? "reserved" : "good" });
  width(bar, share);
  return [el("div", { class: "meter" }, el("span", {}, left(data.budget_left)), el("div", { class: "bar", "aria-hidden": "true" }, bar))];
}

export { chip };
