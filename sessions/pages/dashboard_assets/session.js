// One session: where its time went, what it cost, what the cache did not hold and why, its forks,
// and, for keys of its own tenant, what was said.

import { held, shade, share, tightest, whose } from "./budgets.js";
import { since } from "./clock.js";
import { Rows, chip, el, put, stack, svg, width } from "./dom.js";
import { agoInWords, blockSeconds, count, dollars, duration, exact, many, percent } from "./format.js";
import { journal } from "./journal.js";
import { lastList, sessionLink } from "./sessions.js";

const SHADES = { completed: "good", incomplete: "cool", failed: "bad", cancelled: "" };
const PHASES = [
  ["tools", "waiting for tools"],
  ["queue", "queue"],
  ["prefill", "prefill"],
  ["decode", "decode"],
];
const LANE = 14;

export const same = () => false;
export const wish = (query) => ({ tenant: query.get("tenant") ?? "", name: query.get("name") ?? "" });

export function open(view, query) {
  const name = query.get("name") ?? "";
  const page = {
    state: el("span"),
    account: el("div", { class: "tiles account" }),
    curve: el("div", { class: "money", hidden: true }),
    body: el("tbody"),
    empty: el("p", { class: "empty" }, "Asking the server."),
    byResponse: new Map(),
  };
  page.table = el(
    "table",
    { class: "turns", hidden: true },
    el("caption", { class: "hidden" }, "Turns, the latest first"),
    el("thead", {}, el("tr", {}, ...["Turn", "Time", "Prompt", "Why tokens were computed", "Output", "Cost", ""].map((title) => el("th", { scope: "col", "data-column": title || "Items" }, title || el("span", { class: "hidden" }, "Items"))))),
    page.body,
  );
  view.append(
    el("p", { class: "back" }, el("a", { href: lastList() }, "← Sessions")),
    el("div", { class: "session-head" }, el("h2", { id: "session-name" }, name), page.state, copyLink()),
    page.account,
    el("section", { "aria-labelledby": "turns-title" },
      el("div", { class: "section-head" }, el("h2", { id: "turns-title" }, "Turns"), legend()),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Turns" }, page.table, page.empty)),
    page.curve,
    (page.kept = journal("All turns in the journal", () => wish(query), null).node),
  );
  page.kept.hidden = true;
  page.rows = new Rows(page.body, (turn) => turnRow(turn, page));
  return { update: (parts, news) => update(parts, news, page) };
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

const legend = () =>
  el("ul", { class: "legend" }, ...PHASES.map(([kind, words]) => el("li", { class: "phase " + kind }, words)));

function update(parts, news, page) {
  if (news.server) page.kept.hidden = !parts.server.journal;
  if (parts.session === null || parts.session === undefined) {
    page.table.hidden = true;
    page.empty.hidden = false;
    page.state.replaceChildren();
    page.told = null;
    page.account.replaceChildren();
    page.curve.hidden = true;
    put(page.empty, "There is no such session here, or it was forgotten, or it is another tenant's." + (parts.server.journal ? " What the journal has of it stands below." : ""));
    if (parts.server.journal) page.kept.open = true;
    return;
  }
  const turns = Object.keys(parts).filter((key) => /^t\d+$/.test(key)).sort();
  const changed = Object.keys(news).some((key) => /^t\d+$/.test(key));
  page.visible = parts.session.items_visible;
  page.priced = parts.server.priced;
  if (parts.account) account(parts.account, parts, page);
  else gone(parts.session, page);
  if (!changed && !news.session) return news.account || news.tenant_budgets ? money(parts, page) : undefined;
  const rows = turns.map((key) => parts[key]);
  page.longest = Math.max(...rows.map((turn) => turn.total_s + (turn.tool_wait_s ?? 0)), 1e-6);
  page.lanes = lanes(rows);
  page.costs = sums(rows.map((turn) => turn.cost), parts.account?.cost);
  page.table.classList.toggle("unpriced", !page.priced);
  page.table.classList.toggle("straight", page.lanes.width === 1);
  page.table.hidden = rows.length === 0;
  page.empty.hidden = rows.length > 0;
  put(page.empty, "No turn has ended yet.");
  const order = turns.map((key, index) => [key, { ...parts[key], index }]).reverse();
  const data = new Map(order);
  page.rows.show(order.map(([key]) => key), (key) => data.get(key));
  money(parts, page);
}

// What was spent up to each turn: what is not shown any more comes before.
function sums(costs, whole) {
  const shown = costs.reduce((sum, cost) => sum + cost, 0);
  let sum = Math.max((whole ?? shown) - shown, 0);
  return costs.map((cost) => (sum += cost));
}

function tile(title, big, sub, bar) {
  const shade = el("i", { class: bar?.[1] ?? "" });
  if (bar) width(shade, bar[0]);
  return el("article", {}, el("h3", {}, title), el("p", { class: "big" }, big), bar ? el("div", { class: "bar", "aria-hidden": "true" }, shade) : null, el("p", { class: "sub" }, sub));
}

function account(row, parts, page) {
  const tenants = parts.tenant_budgets;
  if (page.accountShown === row && page.tenantsShown === tenants) return;
  if (page.accountShown !== row) state(row, page);
  page.accountShown = row;
  page.tenantsShown = tenants;
  const tiles = [
    tile("Prompt from cache", percent(row.hit_ratio), `${exact(row.cached_tokens)} of ${exact(row.input_tokens)} tokens`, [row.hit_ratio, "warm"]),
    tile("Computed again", count(row.avoidable_tokens), row.why ? `lately: ${row.why}` : "nothing that was said before"),
    page.priced
      ? tile("Spent", dollars(row.cost), `${many(row.turns, "turn")}, ${count(row.output_tokens)} tokens out; ${dollars(row.saved)} saved by the cache`)
      : tile("Output", count(row.output_tokens), `tokens in ${many(row.turns, "turn")}; for money, serve with --price`),
  ];
  tiles.push(tile("KV in the cache", blockSeconds(row.block_seconds), "block-seconds, recorded when a turn ends or the KV goes"));
  for (const budget of held(row, tenants)) tiles.push(budgetTile(budget, row.session));
  page.account.replaceChildren(...tiles);
}

function state(row, page) {
  const told = JSON.stringify([row.state, row.tenant, row.parent]);
  if (page.told === told) return; // a link that has the focus keeps it
  page.told = told;
  page.state.replaceChildren(chip(row.state, { running: "warm", waiting_for_tools: "cool" }[row.state] ?? ""), chip(`tenant ${row.tenant}`), row.parent === null ? "" : el("a", { href: sessionLink(row.tenant, row.parent) }, `sub-agent of ${row.parent}`));
}

const BOUNDS = { cost: "", input_uncached: "computed input", input_cached: "cached input", output: "output", reasoning: "thinking", residency: "block-seconds" };

// A tile for each budget, with whatever it bounds.
function budgetTile(budget, session) {
  const kinds = Object.entries(budget.limit);
  const parts = kinds.flatMap(([kind, bound]) => {
    const show = { cost: dollars, residency: blockSeconds }[kind] ?? count;
    const left = budget.left[kind];
    const bar = el("i", { class: shade(share(left, bound)) });
    width(bar, share(left, bound));
    const soft = kind in budget.soft ? `; turns warn from ${show(budget.soft[kind])}` : "";
    return [
      el("p", { class: kinds.length > 1 ? "big several" : "big" }, show(left), " ", el("small", {}, `${BOUNDS[kind] ?? kind} left`.trim())),
      el("div", { class: "bar", "aria-hidden": "true" }, bar),
      el("p", { class: "sub" }, `${show(Math.max(bound - left, 0))} of ${show(bound)} used${kinds.length > 1 ? "" : " or set aside"}${soft}`),
    ];
  });
  return parts.length ? el("article", {}, el("h3", {}, `Budget of ${whose(budget, session)}`), ...parts) : "";
}

function gone(told, page) {
  page.told = null;
  page.state.replaceChildren(chip("closed"), chip(`tenant ${told.tenant}`));
  page.account.replaceChildren();
}

// Turns

function turnRow(first, page) {
  const cells = Object.fromEntries(["turn", "time", "prompt", "why", "output", "cost", "more"].map((name) => [name, el("td", { class: "t-" + name })]));
  const node = el("tr", { "data-turn": first.turn, "data-response": first.response }, ...Object.values(cells));
  return { node, update: (turn) => fillTurn(turn, cells, page) };
}

function recast(context) {
  const gone = Math.max(context.before - context.after, 0);
  const mark = chip(`-${count(gone)}`, "cool");
  mark.title = `Context recast from ${exact(context.before)} to ${exact(context.after)} tokens: ${many(context.cleared.length, "result")} cleared, ${many(context.summarised.turns, "turn")} summed up for ${dollars(context.cost)}; each turn from here on reads ${exact(gone)} tokens less`;
  return mark;
}

function fillTurn(turn, cells, page) {
  cells.turn.style.setProperty("--lanes", page.lanes.width);
  cells.turn.replaceChildren(graph(turn.index, page.lanes), el("b", {}, exact(turn.turn)), turn.status === "completed" ? "" : chip(turn.reason ?? turn.status, SHADES[turn.status]), turn.context ? recast(turn.context) : "");
  cells.time.replaceChildren(...time(turn, page.longest));
  cells.prompt.replaceChildren(...prompt(turn));
  cells.why.replaceChildren(el("ul", { class: "reasons" }, ...turn.misses.map(reason)));
  cells.output.replaceChildren(el("b", {}, exact(turn.output_tokens)), " tokens", el("span", { class: "dim" }, extras(turn)));
  cells.cost.replaceChildren(el("b", {}, dollars(turn.cost)), el("span", { class: "dim" }, ` of ${dollars(page.costs[turn.index])}`));
  const shown = cells.more.querySelector("details");
  if (!shown) cells.more.replaceChildren(page.visible ? items(turn) : el("span", { class: "dim", title: "Items are shown to keys of the session's own tenant" }, "not yours"));
}

const reason = (miss) =>
  el("li", { class: `why ${miss.reason}${miss.own ? " own" : ""}`, "data-reason": miss.reason }, `${miss.words} `, el("b", {}, count(miss.tokens)));

function extras(turn) {
  const parts = [];
  if (turn.reasoning_tokens) parts.push(`${exact(turn.reasoning_tokens)} thinking`);
  if (turn.forced_tokens) parts.push(`${exact(turn.forced_tokens)} forced`);
  if (turn.drafted_tokens) parts.push(`${exact(turn.accepted_tokens)} of ${exact(turn.drafted_tokens)} drafted kept`);
  return parts.join(" · ");
}

function time(turn, longest) {
  const first = turn.ttft_s ?? turn.total_s;
  const seconds = { tools: turn.tool_wait_s ?? 0, queue: Math.min(turn.queue_s, first), prefill: Math.max(first - turn.queue_s, 0), decode: Math.max(turn.total_s - first, 0) };
  const bar = el("div", { class: "bar phases", "aria-hidden": "true" });
  stack(bar, PHASES.map(([kind, words]) => [seconds[kind] / longest, "phase " + kind, `${words} ${duration(seconds[kind])}`]));
  const words = PHASES.filter(([kind]) => seconds[kind] > 0.0005).map(([kind, said]) => `${said} ${duration(seconds[kind])}`);
  return [bar, el("p", { class: "sub" }, el("b", {}, duration(turn.total_s)), " · " + words.join(" · "), " · ", since(turn.began_at, agoInWords))];
}

function prompt(turn) {
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  const again = turn.misses.filter((miss) => !miss.own).reduce((sum, miss) => sum + miss.tokens, 0);
  const own = turn.input_tokens - turn.cached_tokens - again;
  const whole = turn.input_tokens || 1;
  stack(bar, [[turn.cached_tokens / whole, "warm", "from cache"], [again / whole, "bad", "computed again"], [own / whole, "own", "new"]]);
  const words = [`${exact(turn.cached_tokens)} cached`];
  if (again) words.push(`${exact(again)} again`);
  if (own) words.push(`${exact(own)} new`);
  return [bar, el("p", { class: "sub" }, el("b", {}, exact(turn.input_tokens)), " · " + words.join(" · "))];
}

// Forks: a turn goes on in its parent's lane if it is the first to do so, else in a lane of its own.

function lanes(turns) {
  const place = new Map(turns.map((turn, index) => [turn.response, index]));
  const lane = [];
  const parent = [];
  const taken = new Set();
  let used = 0;
  turns.forEach((turn, index) => {
    const from = place.get(turn.parent) ?? -1;
    parent.push(from);
    if (from >= 0 && !taken.has(from)) lane.push(lane[from]);
    else lane.push(used++);
    if (from >= 0) taken.add(from);
  });
  const last = new Map();
  turns.forEach((_, index) => {
    last.set(lane[index], index);
    if (parent[index] >= 0) last.set(lane[parent[index]], Math.max(last.get(lane[parent[index]]) ?? 0, parent[index]));
  });
  return { lane, parent, last, width: Math.min(used, 8) };
}

function graph(index, { lane, parent, last, width: count_ }) {
  const x = (at) => LANE / 2 + LANE * Math.min(at, 7);
  const parts = [];
  const line = (x1, y1, x2, y2) => parts.push(svg("path", { d: x1 === x2 ? `M${x1} ${y1}V${y2}` : `M${x1} ${y1}C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}` }));
  // The latest turn stands on top: a lane runs on above a turn if it has one later, below if earlier.
  for (const [other, end] of last) {
    const begins = lane.indexOf(other);
    const from = parent[begins] >= 0 ? parent[begins] : begins;
    if (other === lane[index]) {
      if (end > index) line(x(other), 0, x(other), 24);
      if (begins < index) line(x(other), 24, x(other), 48);
      else if (from < index) line(x(other), 24, x(lane[from]), 48);
    } else if (begins < index && end > index) line(x(other), 0, x(other), 48);
    else if (from === index && begins > index) line(x(other), 0, x(lane[index]), 24);
    else if (from < index && begins > index) line(x(lane[from]), 0, x(lane[from]), 48);
  }
  const from = parent[index];
  const said = from < 0 ? "begins the session" : lane[from] === lane[index] ? "goes on" : "forks";
  return svg("svg", { class: "graph", viewBox: `0 0 ${LANE * count_} 48`, width: LANE * count_, preserveAspectRatio: "none", role: "img", "aria-label": said }, ...parts, svg("circle", { cx: x(lane[index]), cy: 24, r: 4 }));
}

// What was said

function items(turn) {
  const body = el("div", { class: "items" }, "Asking the server.");
  const details = el("details", {}, el("summary", {}, "Items"), body);
  details.addEventListener("toggle", async () => {
    if (!details.open || body.dataset.asked) return;
    body.dataset.asked = "1";
    body.replaceChildren(...(await said(turn.response)));
  });
  return details;
}

async function said(response) {
  try {
    const answer = await fetch(`${location.origin}/dashboard/items/${encodeURIComponent(response)}`, { cache: "no-store" });
    if (answer.status === 404) return ["Not kept: it was not stored, or has been forgotten."];
    if (!answer.ok) return [`The server refused (${answer.status}).`];
    const found = await answer.json();
    const tools = found.tools.length ? [part("tools", found.tools.join(", "))] : [];
    const begin = found.instructions ? [part("instructions", found.instructions)] : [];
    return [...begin, ...tools, ...found.input.map((item) => one(item, "in")), ...found.output.map((item) => one(item, "out"))];
  } catch {
    return ["The server cannot be reached."];
  }
}

function one(item, way) {
  if (item.type === "message" || item.content) {
    const texts = typeof item.content === "string" ? [item.content] : (item.content ?? []).map((each) => each.text ?? `[${each.type}]`);
    return part(item.role ?? item.type, texts.join("\n"), way);
  }
  if (item.type === "function_call") return part(`call ${item.name}`, item.arguments, way);
  if (item.type === "function_call_output") return part("result", typeof item.output === "string" ? item.output : JSON.stringify(item.output), way);
  return part(item.type, JSON.stringify(item), way);
}

const part = (title, text, way = "") => el("div", { class: "said " + way }, el("b", {}, title), el("pre", {}, text));

// Cost as it adds up

function money(parts, page) {
  const total = page.costs.at(-1) ?? 0;
  page.curve.hidden = !page.priced || page.costs.length < 2;
  if (page.curve.hidden) return;
  // The budget that ends the session first, as far up as it lets it come.
  const bound = parts.account && tightest(held(parts.account, parts.tenant_budgets)).find(({ kind }) => kind === "cost");
  const near = bound && (bound.budget.scope !== "tenant" || bound.left < 3 * total);
  const most = near ? total + bound.left : null; // one that is far above would flatten the rest
  const top = Math.max(total, most ?? 0) || 1;
  const x = (index) => ((600 * index) / page.costs.length).toFixed(1);
  const y = (cost) => (116 - 106 * (cost / top)).toFixed(1);
  const steps = page.costs.map((cost, index) => `H${x(index)}V${y(cost)}`).join("") + "H600";
  const words = `${dollars(total)} in ${many(parts.account?.turns ?? page.costs.length, "turn")}` + (bound ? `; ${dollars(bound.left)} of ${dollars(bound.limit)} left to ${whose(bound.budget, parts.account.session)}` : "");
  const drawn = svg("svg", { viewBox: "0 0 600 120", preserveAspectRatio: "none", role: "img", "aria-label": `Cost after each turn: ${words}` }, svg("path", { class: "area", d: `M0 ${y(0)}${steps}V118H0Z` }), svg("path", { class: "line", d: `M0 ${y(0)}${steps}` }), most === null ? null : svg("path", { class: "budget", d: `M0 ${y(most)}H600` }));
  page.curve.replaceChildren(el("h2", {}, "Cost as it adds up ", el("small", {}, words)), drawn);
}
