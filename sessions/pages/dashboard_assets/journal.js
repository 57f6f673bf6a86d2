// What the journal has: sessions and turns that memory has forgotten, asked for only when opened.

import { budgetCell } from "./budgets.js";
import { since } from "./clock.js";
import { el } from "./dom.js";
import { count, dollars, exact, percent } from "./format.js";
import { pager } from "./pager.js";

const PAGE = 50;

// A folded part of the page. `query` says what of; `link` makes the address of a session's row.
// `again` asks anew if what is wanted has changed.
export function journal(title, query, link) {
  const body = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title });
  const nav = el("nav", { class: "pages", "aria-label": `Pages: ${title}`, hidden: true });
  const turn = pager(nav, load);
  const node = el("details", { class: "journal" }, el("summary", {}, title), body, nav);
  node.addEventListener("toggle", () => node.open && load(0));
  let asked = 0;
  let wanted = null;

  async function load(page) {
    const number = ++asked; // an answer that comes after the next question is nobody's
    wanted = JSON.stringify(query());
    if (!body.childElementCount) body.replaceChildren(el("p", { class: "nothing" }, "Asking the journal."));
    let told;
    try {
      const address = `${location.origin}/dashboard/journal?` + new URLSearchParams({ ...query(), page });
      const answer = await fetch(address, { cache: "no-store" });
      if (!answer.ok) throw new Error(`The server refused (${answer.status}).`);
      told = await answer.json();
    } catch (error) {
      told = { error: String(error.message ?? error) };
    }
    if (number === asked) show(told);
  }

  function show({ error, total, page, rows, more }) {
    nav.hidden = !rows?.length;
    if (error) return body.replaceChildren(el("p", { class: "nothing" }, error));
    const head = link ? ["Session", "Turns", "From cache", "Input", "Output", "Cost", "Budget left", "Ago"] : ["Turn", "Ended", "From cache", "Input", "Output", "Cost", "Ago"];
    const table = el("table", { class: "kept" }, el("thead", {}, el("tr", {}, ...head.map((word) => el("th", { scope: "col", class: NUMBERS.has(word) ? "n" : null }, word)))), el("tbody", {}, ...rows.map((row) => line(row, link))));
    body.replaceChildren(rows.length ? table : el("p", { class: "nothing" }, query().q ? "The journal has none of that name." : "The journal has none."));
    const all = !more ? `${exact(total)} in all` : link ? `${exact(total)} among the latest; older ones are not shown` : `the latest ${exact(rows.length)} of ${exact(total)}`;
    turn(page, link ? Math.ceil(total / PAGE) : 1, all);
  }

  return { node, again: () => node.open && wanted !== JSON.stringify(query()) && load(0) };
}

const NUMBERS = new Set(["Turns", "From cache", "Input", "Output", "Cost", "Ago"]);

function line(row, link) {
  const kv = row.status === "residency"; // no turn's
  const name = link ? el("a", { href: link(row) }, row.session) : kv ? `after ${exact(row.turn)}` : exact(row.turn);
  const number = (text) => el("td", { class: "n" }, text);
  return el(
    "tr",
    { "data-journal": link ? row.session : row.response },
    el("th", { scope: "row" }, name),
    link ? number(exact(row.turns)) : el("td", {}, kv ? "KV left the cache" : (row.reason ?? row.status).replaceAll("_", " ")),
    number(percent(row.hit_ratio)),
    number(count(row.input_tokens)),
    number(count(row.output_tokens)),
    number(row.cost ? dollars(row.cost) : "–"),
    link ? el("td", {}, ...budgetCell(row.budgets, row.session)) : null,
    el("td", { class: "n dim" }, since(row.active_at)),
  );
}
