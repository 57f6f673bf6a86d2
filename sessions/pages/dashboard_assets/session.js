// One session: what it cost and keeps to, its tree, its turns. What is live comes by the stream; its tree,
// and what memory has forgotten, from the journal.

import { held, tightest, whose } from "./budgets.js";
import { chip, el, put, svg, width } from "./dom.js";
import { count, dollars, exact, many, percent, setBlockTokens, tokenTime } from "./format.js";
import { Past } from "./past.js";
import { lastList, sessionLink } from "./sessions.js";
import { Detail, boundsPart, treePart } from "./tree.js";
import { turnsPart } from "./turns.js";

export const same = () => false;
export const wish = (query) => ({ tenant: query.get("tenant") ?? "", name: query.get("name") ?? "" });

export function open(view, query) {
  const name = query.get("name") ?? "";
  const page = {
    state: el("span"),
    account: el("div", { class: "tiles account" }),
    curve: el("div", { class: "money", hidden: true }),
    bounds: boundsPart(),
    tree: treePart(),
    turns: turnsPart(),
    detail: undefined,
    tenant: query.get("tenant") ?? "",
  };
  view.append(
    el("p", { class: "back" }, el("a", { href: lastList() }, "← Sessions")),
    el("div", { class: "session-head" }, el("h2", { id: "session-name" }, name), page.state, copyLink()),
    page.account,
    page.bounds.node,
    page.tree.node,
    page.turns.node,
    page.curve,
  );
  const told = () => page.parts && draw(page);
  page.past = new Past(wish(query), () => {
    if (page.past.turns.length) page.asked.again(0);
    told();
  });
  page.asked = new Detail(wish(query), (detail) => {
    page.detail = detail;
    told();
  });
  return {
    update: (parts, news) => update(parts, news, page),
    close: () => {
      page.asked.stop();
      page.past.stop();
    },
  };
}

function copyLink() {
  const button = el("button", { type: "button", title: "Keys of this tenant can open it" }, "Copy link");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      put(button, "Copied");
    } catch {
      put(button, "The address bar has it");
    }
    setTimeout(() => put(button, "Copy link"), 2000);
  });
  return button;
}

function update(parts, news, page) {
  page.parts = parts;
  if (news.server) {
    setBlockTokens(parts.server.kv_block_tokens);
    page.theirs = !parts.server.operator && ![parts.server.tenant, ""].includes(page.tenant);
    page.journal = parts.server.journal && !page.theirs;
    if (page.journal && page.startedAt !== parts.server.started_at) {
      page.startedAt = parts.server.started_at;
      page.past.ask();
    }
  }
  if (page.journal && (parts.session || page.past.turns.length) && (news.totals || news.account || news.session)) page.asked.changed();
  if (Object.keys(news).some((name) => /^(t\d+|session|account|tenant_budgets|server)$/.test(name))) draw(page);
}

function draw(page) {
  const { parts, detail } = page;
  const row = parts.account ?? detail?.session;
  if (!row) {
    page.told = page.shown = null;
    page.account.replaceChildren();
    page.state.replaceChildren(parts.session ? chip("closed") : "", parts.session ? chip(`tenant ${parts.session.tenant}`) : "");
  } else {
    state(row, page);
    account(row, page);
  }
  const budgets = parts.account ? held(parts.account, parts.tenant_budgets) : (detail?.bounds ?? []);
  page.bounds.update(budgets, row?.session);
  if (detail) page.tree.update(detail, parts.server.priced);
  else page.tree.node.hidden = true;
  const turns = allTurns(page);
  const visible = parts.session?.items_visible ?? (row ? row.tenant === parts.server.tenant : false);
  const costs = page.turns.update(turns, { visible, priced: parts.server.priced, whole: row?.cost, more: row && row.turns > turns.length, said: nothing(page, row) });
  money(costs, row, budgets, page);
}

function nothing({ journal, detail, past }, row) {
  if (row) return past.asking && !row.turns ? "Asking the journal." : "No turn has ended yet.";
  if (journal && (past.asking || (past.turns.length && detail === undefined))) return "Asking the server.";
  return "There is no such session here, or it was forgotten, or it is another tenant's.";
}

// Those of the journal that memory has forgotten, and then those that the server has seen end.
function allTurns({ parts, past }) {
  const live = Object.keys(parts).filter((key) => /^t\d+$/.test(key)).sort().map((key) => ({ ...parts[key], key }));
  const known = new Set(live.map((turn) => turn.response));
  const since = live.length ? live[0].began_at : Infinity;
  return [...past.turns.filter((turn) => !known.has(turn.response) && turn.began_at < since), ...live];
}

function tile(title, big, sub, bar) {
  const shade = el("i", { class: bar?.[1] ?? "" });
  if (bar) width(shade, bar[0]);
  return el("article", {}, el("h3", {}, title), el("p", { class: "big" }, big), bar ? el("div", { class: "bar", "aria-hidden": "true" }, shade) : null, el("p", { class: "sub" }, sub));
}

// The number large, its unit small.
function unit(text) {
  const [number, ...words] = text.split(" ");
  const node = document.createDocumentFragment();
  node.append(`${number} `, el("small", {}, words.join(" ")));
  return node;
}

function account(row, page) {
  const again = row.computed_again ?? row.avoidable_tokens;
  const { priced } = page.parts.server;
  const shown = JSON.stringify([row, priced]);
  if (page.shown === shown) return;
  page.shown = shown;
  page.account.replaceChildren(
    tile("Prompt from cache", percent(row.hit_ratio), `${exact(row.cached_tokens)} of ${exact(row.input_tokens)} tokens`, [row.hit_ratio, "cached"]),
    tile("Computed again", count(again), row.why ? `lately: ${row.why}` : again ? "tokens that had been said before" : "nothing that was said before"),
    priced
      ? tile("Spent", dollars(row.cost), `${many(row.turns, "turn")}, ${count(row.output_tokens)} tokens out; ${dollars(row.saved)} saved by the cache`)
      : tile("Output", count(row.output_tokens), `tokens in ${many(row.turns, "turn")}; for money, serve with --price`),
    tile("KV kept in the cache", unit(tokenTime(row.block_seconds)), "tokens kept, times how long; counted when a turn ends or the KV goes"),
  );
}

function state(row, page) {
  const labels = page.detail?.session.labels ?? {};
  const told = JSON.stringify([row.state, row.tenant, row.parent, labels]);
  if (page.told === told) return; // a link that has the focus keeps it
  page.told = told;
  const parent = row.parent === null ? "" : el("a", { href: sessionLink(row.tenant, row.parent) }, `sub-agent of ${row.parent}`);
  const marks = Object.entries(labels).map(([name, value]) => el("a", { class: "label", href: "#sessions?" + new URLSearchParams({ label: `${name}:${value}` }) }, `${name}:${value}`));
  page.state.replaceChildren(chip(row.state, { running: "warm", waiting_for_tools: "cool" }[row.state] ?? ""), chip(`tenant ${row.tenant}`), parent, ...marks);
}

// Cost as it adds up

function money(costs, row, budgets, page) {
  const total = costs.at(-1) ?? 0;
  page.curve.hidden = !page.parts.server.priced || costs.length < 2;
  if (page.curve.hidden) return;
  // The budget that ends the session first, as far up as it lets it come.
  const bound = tightest(budgets).find(({ kind }) => kind === "cost");
  const told = JSON.stringify([costs, bound?.left]);
  if (page.curveShown === told) return;
  page.curveShown = told;
  const near = bound && (bound.budget.scope !== "tenant" || bound.left < 3 * total);
  const most = near ? total + bound.left : null; // one that is far above would flatten the rest
  const top = Math.max(total, most ?? 0) || 1;
  const x = (index) => ((600 * index) / costs.length).toFixed(1);
  const y = (cost) => (116 - 106 * (cost / top)).toFixed(1);
  const steps = costs.map((cost, index) => `H${x(index)}V${y(cost)}`).join("") + "H600";
  const words = `${dollars(total)} in ${many(row?.turns ?? costs.length, "turn")}` + (bound ? `; ${dollars(bound.left)} of ${dollars(bound.limit)} left to ${whose(bound.budget, row?.session)}` : "");
  const drawn = svg("svg", { viewBox: "0 0 600 120", preserveAspectRatio: "none", role: "img", "aria-label": `Cost after each turn: ${words}` }, svg("path", { class: "area", d: `M0 ${y(0)}${steps}V118H0Z` }), svg("path", { class: "line", d: `M0 ${y(0)}${steps}` }), most === null ? null : svg("path", { class: "budget", d: `M0 ${y(most)}H600` }));
  page.curve.replaceChildren(el("h2", {}, "Cost as it adds up ", el("small", {}, words)), drawn);
}
