// What the journal has: sessions and turns that memory has forgotten, asked for only when opened.

import { el } from "./dom.js";
import { ago, count, dollars, exact, percent } from "./format.js";

const PAGE = 50;

// A folded part of the page. `query` says what of; `link` makes the address of a session's row.
export function journal(title, query, link) {
  const body = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title });
  const pages = el("p", { class: "pages" });
  const details = el("details", { class: "journal" }, el("summary", {}, title), body, pages);
  details.addEventListener("toggle", () => details.open && load(0));

  async function load(page) {
    body.replaceChildren(el("p", { class: "empty" }, "Asking the journal."));
    try {
      const address = `${location.origin}/dashboard/journal?` + new URLSearchParams({ ...query(), page });
      const answer = await fetch(address, { cache: "no-store" });
      if (!answer.ok) throw new Error(`The server refused (${answer.status}).`);
      show(await answer.json());
    } catch (error) {
      body.replaceChildren(el("p", { class: "empty" }, String(error.message ?? error)));
    }
  }

  function show({ total, page, rows, more }) {
    const head = [link ? "Session" : "Turn", link ? "Turns" : "Ended", "From cache", "Input", "Output", "Cost", "Ago"];
    const table = el("table", {}, el("thead", {}, el("tr", {}, ...head.map((word) => el("th", { scope: "col" }, word)))), el("tbody", {}, ...rows.map((row) => line(row, link))));
    body.replaceChildren(rows.length ? table : el("p", { class: "empty" }, "The journal has none."));
    const to = (at, text, off) => el("button", { type: "button", disabled: off, onclick: () => load(at) }, text);
    const many = link && total > PAGE;
    const all = !more ? `${exact(total)} in all` : link ? `${exact(total)} among the latest; older ones are not shown` : `the latest ${exact(rows.length)} of ${exact(total)}`;
    const turns = many ? [to(page - 1, "Newer", page === 0), all, to(page + 1, "Older", (page + 1) * PAGE >= total)] : [all];
    pages.replaceChildren(...turns);
  }
  return details;
}

function line(row, link) {
  const name = link ? el("a", { href: link(row) }, row.session) : exact(row.turn);
  return el(
    "tr",
    { "data-journal": link ? row.session : row.response },
    el("th", { scope: "row" }, name),
    el("td", {}, link ? exact(row.turns) : (row.reason ?? row.status).replaceAll("_", " ")),
    el("td", {}, percent(row.hit_ratio)),
    el("td", {}, count(row.input_tokens)),
    el("td", {}, count(row.output_tokens)),
    el("td", {}, row.cost ? dollars(row.cost) : "–"),
    el("td", { class: "dim", "data-at": row.active_at }, ago(Date.now() / 1000 - row.active_at)),
  );
}
