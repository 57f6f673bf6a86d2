// Beside a session's turns: its tree with what each part cost, and every bound that it keeps to. Asked of
// the server anew when something has changed, not too often.

import { share, shade, whose } from "./budgets.js";
import { Rows, chip, el, put, width } from "./dom.js";
import { KINDS, count, dollars, exact, percent, tokenTime } from "./format.js";
import { sessionLink } from "./sessions.js";

const BETWEEN_MS = 2000;
const SHADES = { running: "warm", waiting_for_tools: "cool" };

// {session, parents, bounds, tree} of /sessions.json?session=NAME; null: there is none.
export class Detail {
  constructor(wish, onDetail) {
    this.address = `${location.origin}/sessions.json?` + new URLSearchParams({ session: wish.name, ...(wish.tenant ? { tenant: wish.tenant } : {}) });
    this.onDetail = onDetail;
    this.timer = 0;
    this.stopped = false;
  }

  again(soon = BETWEEN_MS) {
    if (this.timer || this.stopped) return;
    this.timer = setTimeout(async () => {
      await this.ask();
      this.timer = 0;
      if (this.missed) this.again();
    }, soon);
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
  }

  async ask() {
    this.missed = false;
    try {
      const answer = await fetch(this.address, { cache: "no-store" });
      if (this.stopped) return;
      if (answer.ok) this.onDetail(await answer.json());
      else if (answer.status === 404) this.onDetail(null);
    } catch {
      // the stream says that the server cannot be reached
    }
  }

  changed() {
    if (this.timer) this.missed = true;
    else this.again();
  }
}

function table(name, titles, label) {
  const body = el("tbody");
  const heads = titles.map(([title, number]) => el("th", { scope: "col", class: number ? "n" : null }, title));
  const node = el("table", { class: name }, el("caption", { class: "hidden" }, label), el("thead", {}, el("tr", {}, ...heads)), body);
  return { node, body };
}

// The tree

const TREE = [["Session"], ["State"], ["Turns", true], ["Cost", true], ["With sub-agents", true], ["Share of the whole"]];

export function treePart() {
  const { node: made, body } = table("cards tree-rows", TREE, "The session and its sub-agents");
  const tally = el("small");
  const above = el("p", { class: "sub above", hidden: true });
  const rows = new Rows(body, treeRow);
  const sum = el("tfoot", {}, el("tr", {}, el("th", { scope: "row" }, "In all"), el("td"), ...[["turns", "Turns"], ["cost", "Cost"]].map(([name, label]) => el("td", { class: `n sum-${name}`, "data-label": label })), el("td"), el("td")));
  made.append(sum);
  const node = el("section", { "aria-labelledby": "tree-title", class: "part", hidden: true }, el("h2", { id: "tree-title" }, "With its sub-agents ", tally), above, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Tree" }, made));
  const shown = new Map();

  function update({ session, parents, tree }, priced) {
    node.hidden = tree.rows.length < 2 && !parents.length;
    made.classList.toggle("unpriced", !priced);
    put(tally, tree.rows.length > 1 ? `${exact(tree.rows.length)}${tree.more ? " and more" : ""} sessions` : "none so far");
    path(above, session, parents);
    const data = new Map(tree.rows.map((row) => [row.session, same(shown, { ...row, tenant: session.tenant, first: row === tree.rows[0] })]));
    rows.show([...data.keys()], (key) => data.get(key));
    put(sum.querySelector(".sum-turns"), exact(tree.turns));
    put(sum.querySelector(".sum-cost"), dollars(tree.cost));
  }

  return { node, update };
}

function same(shown, row) {
  const text = JSON.stringify(row);
  const before = shown.get(row.session);
  if (before?.text === text) return before.row;
  shown.set(row.session, { text, row });
  return row;
}

// Whose part it is, from the top down.
function path(node, session, parents) {
  const text = JSON.stringify(parents);
  if (node.dataset.told === text) return;
  node.dataset.told = text;
  node.hidden = !parents.length;
  const links = [...parents].reverse().flatMap((name, index) => [index ? " › " : "", el("a", { href: sessionLink(session.tenant, name) }, name)]);
  node.replaceChildren("A part of ", ...links);
}

function treeRow(first) {
  const link = first.first ? el("b", {}, first.session) : el("a", { href: sessionLink(first.tenant, first.session) }, first.session);
  const name = el("th", { scope: "row", class: first.depth ? "child" : null, title: first.session }, first.depth ? el("span", { class: "dim" }, "↳ ") : "", link);
  name.style.setProperty("--indent", Math.min(first.depth, 16));
  const state = el("td", { "data-label": "State" });
  const cells = { turns: ["Turns"], cost: ["Cost"], tree_cost: ["With sub-agents"] };
  for (const [key, [label]] of Object.entries(cells)) cells[key] = el("td", { class: "n", "data-label": label });
  const bar = el("i", { class: "own" });
  const text = el("b");
  const part = el("td", { "data-label": "Share" }, el("div", { class: "meter" }, text, el("div", { class: "bar", "aria-hidden": "true" }, bar)));
  const node = el("tr", { "data-part": first.session }, name, state, ...Object.values(cells), part);
  const update = (row) => {
    state.replaceChildren(chip(row.state, SHADES[row.state] ?? ""));
    put(cells.turns, exact(row.turns) + (row.failed ? `, ${exact(row.failed)} failed` : ""));
    put(cells.cost, dollars(row.cost));
    put(cells.tree_cost, row.tree_cost_nano === row.cost_nano ? "–" : dollars(row.tree_cost));
    put(text, percent(row.share));
    width(bar, row.share);
  };
  return { node, update };
}

// Bounds

const BOUNDS = [["Bound of"], ["On"], ["Left"], ["Spent", true], ["Held by turns that run", true], ["Limit", true]];
const WORDS = { cost: "money", input_uncached: "computed input", input_cached: "cached input", output: "output", reasoning: "thinking", residency: "KV kept in the cache" };
const SHOWN = { cost: dollars, residency: tokenTime };

export function boundsPart() {
  const { node: made, body } = table("cards bounds", BOUNDS, "Bounds that hold for the session");
  const node = el("section", { "aria-labelledby": "bounds-title", class: "part", hidden: true }, el("h2", { id: "bounds-title" }, "Budgets"), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Budgets" }, made));
  let told = "";

  function update(budgets, session) {
    const text = JSON.stringify([budgets, session]);
    if (text === told) return;
    told = text;
    const rows = budgets.flatMap((budget) => KINDS.filter((kind) => kind in budget.limit).map((kind) => bound(budget, kind, session)));
    node.hidden = !rows.length;
    body.replaceChildren(...rows);
  }

  return { node, update };
}

const AGAIN = { day: "a day", month: "a month" };

function bound(budget, kind, session) {
  const show = SHOWN[kind] ?? count;
  const [limit, left] = [budget.limit[kind], budget.left[kind]];
  const bar = el("i", { class: shade(share(left, limit)) });
  width(bar, share(left, limit));
  const soft = budget.soft && kind in budget.soft ? `turns warn from ${show(budget.soft[kind])}` : "";
  const cell = (label, shade_, ...inside) => el("td", { class: shade_ || null, "data-label": label }, ...inside);
  return el(
    "tr",
    { "data-scope": budget.scope, "data-kind": kind },
    el("th", { scope: "row" }, whose(budget, session), budget.every ? el("small", { class: "of" }, `for ${AGAIN[budget.every] ?? budget.every}`) : ""),
    cell("On", "", WORDS[kind] ?? kind),
    cell("Left", "", el("div", { class: "budgets" }, el("p", {}, show(left)), el("div", { class: "bar", "aria-hidden": "true" }, bar), soft ? el("small", {}, soft) : "")),
    cell("Spent", "n", show(budget.spent[kind] ?? 0)),
    cell("Held", "n", budget.held[kind] ? show(budget.held[kind]) : "–"),
    cell("Limit", "n", show(limit)),
  );
}
