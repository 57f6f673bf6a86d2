// A session's turns as a conversation: what was asked and answered and which tools were called, where the
// time went, what the cache did not hold and why; what was said in whole where it is opened.

import { since } from "./clock.js";
import { Rows, chip, el, put, stack } from "./dom.js";
import { graph, lanes } from "./forks.js";
import { agoInWords, count, dollars, duration, exact, many } from "./format.js";

const SHADES = { completed: "good", incomplete: "low", failed: "bad", cancelled: "" };
const PHASES = [
  ["tools", "waiting for tools"],
  ["queue", "queue"],
  ["prefill", "prefill"],
  ["decode", "decode"],
];
const PARTS = [
  ["cached", "from cache"],
  ["again", "computed again"],
  ["own", "new"],
];
const HEADS = ["Turn", "What was said", "Time", "Prompt, and why it was computed", "Output", "Cost"];
const MOST_RUNS = 8;
let opened = 0;

const legend = (words, kinds) => el("ul", { class: "legend", "aria-label": words }, ...kinds.map(([kind, each]) => el("li", { class: "phase " + kind }, each)));

export function turnsPart() {
  const page = { body: el("tbody"), empty: el("p", { class: "empty" }, "Asking the server."), costs: [] };
  page.table = el(
    "table",
    { class: "turns", hidden: true },
    el("caption", { class: "hidden" }, "Turns, the latest first"),
    el("thead", {}, el("tr", {}, ...HEADS.map((title) => el("th", { scope: "col", "data-column": title }, title)))),
    page.body,
  );
  const head = el("div", { class: "section-head" }, el("h2", { id: "turns-title" }, "Turns ", (page.tally = el("small"))), legend("Colours of the time", PHASES), legend("Colours of the prompt", PARTS));
  const node = el("section", { "aria-labelledby": "turns-title", class: "part" }, head, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Turns" }, page.table, page.empty));
  page.rows = new Rows(page.body, (turn) => turnRow(turn, page));
  return { node, page, update: (turns, facts) => update(turns, facts, page) };
}

// `turns`, the oldest first; `facts`: {visible, priced, whole, more}. Returns what was spent up to each.
function update(turns, { visible, priced, whole, more, said }, page) {
  page.visible = visible;
  page.longest = Math.max(...turns.map((turn) => (turn.total_s ?? 0) + (turn.tool_wait_s ?? 0)), 1e-6);
  page.lanes = lanes(turns);
  page.costs = sums(turns.map((turn) => turn.cost), whole);
  page.table.classList.toggle("unpriced", !priced);
  page.table.classList.toggle("straight", page.lanes.width === 1);
  page.table.hidden = turns.length === 0;
  page.empty.hidden = turns.length > 0;
  put(page.empty, said);
  put(page.tally, more ? `the latest ${exact(turns.length)}` : "");
  const order = turns.map((turn, index) => [turn.key, { ...turn, index }]).reverse();
  const data = new Map(order);
  page.rows.show([...data.keys()], (key) => data.get(key));
  return page.costs;
}

// What was spent up to each turn: what is not shown any more comes before.
function sums(costs, whole) {
  const shown = costs.reduce((sum, cost) => sum + cost, 0);
  let sum = Math.max((whole ?? shown) - shown, 0);
  return costs.map((cost) => (sum += cost));
}

function turnRow(first, page) {
  const names = ["turn", "said", "time", "prompt", "output", "cost"];
  const cells = Object.fromEntries(names.map((name) => [name, el("td", { class: "t-" + name })]));
  const row = { node: el("tr", { "data-turn": first.turn, "data-response": first.response }, ...Object.values(cells)), below: null };
  cells.button = opener(first, row, page);
  row.update = (turn) => fill(turn, cells, page);
  return row;
}

function recast(context) {
  const gone = Math.max(context.before - context.after, 0);
  const mark = chip(`-${count(gone)}`, "cool");
  mark.title = `Context recast from ${exact(context.before)} to ${exact(context.after)} tokens: ${many(context.cleared.length, "result")} cleared, ${many(context.summarised.turns, "turn")} summed up for ${dollars(context.cost)}; each turn from here on reads ${exact(gone)} tokens less`;
  return mark;
}

function fill(turn, cells, page) {
  const kv = turn.status === "residency";
  cells.turn.style.setProperty("--lanes", page.lanes.width);
  const mark = turn.status === "completed" || kv ? "" : chip(turn.reason ?? turn.status, SHADES[turn.status]);
  cells.turn.replaceChildren(graph(turn.index, page.lanes), el("b", {}, kv ? `after ${exact(turn.turn)}` : exact(turn.turn)), turn.context ? recast(turn.context) : "");
  cells.said.replaceChildren(...(kv ? ["KV left the cache; it is paid for until then."] : [...words(turn, page), mark, page.visible ? (turn.said ? cells.button : "") : el("span", { class: "dim not-yours", title: "Items are shown to keys of the session's own tenant" }, "not yours")]));
  cells.time.replaceChildren(...time(turn, page.longest));
  cells.prompt.replaceChildren(...(kv ? [] : [...prompt(turn), el("ul", { class: "reasons" }, ...turn.misses.map(reason)), ...turn.resumed.map(resumed)]));
  cells.output.replaceChildren(...(kv ? [] : [el("b", {}, exact(turn.output_tokens)), " tokens", el("span", { class: "dim" }, extras(turn))]));
  cells.cost.replaceChildren(el("b", {}, dollars(turn.cost)), el("span", { class: "dim" }, ` of ${dollars(page.costs[turn.index])}`));
}

// The first words of both sides, and the tools between them.
function words({ said, open_calls, tools }, page) {
  if (!page.visible) return [];
  if (!said) return [el("p", { class: "dim" }, "Not kept.")];
  const lines = [];
  if (said.asked !== null) lines.push(el("p", { class: "asked" }, said.asked));
  if (said.results) lines.push(el("p", { class: "asked dim" }, `${many(said.results, "result")} of tools`));
  if (tools?.length) lines.push(el("p", { class: "runs", title: "As its client told" }, ...ran(tools)));
  if (said.answered) lines.push(el("p", { class: "answered" }, said.answered));
  const more = said.more_calls ? [el("span", { class: "dim" }, `and ${exact(said.more_calls)} more`)] : [];
  if (said.calls.length) lines.push(el("p", { class: "calls" }, open_calls ? "calls " : "called ", ...said.calls.map((name) => el("code", {}, name)), ...more));
  return lines;
}

// Each tool that ran before the turn: how long, and whether it failed.
function ran(tools) {
  const shown = tools.slice(0, MOST_RUNS).map(({ name, ms, failed }) => el("span", { class: failed ? "run failed" : "run" }, el("code", {}, name || "a tool"), ms === null ? "" : ` ${duration(ms / 1000)}`, failed ? " failed" : ""));
  return tools.length > MOST_RUNS ? [...shown, el("span", { class: "dim" }, `and ${exact(tools.length - MOST_RUNS)} more`)] : shown;
}

const reason = (miss) =>
  el("li", { class: `why ${miss.reason}${miss.own ? " own" : ""}`, "data-reason": miss.reason }, `${miss.words} `, el("b", {}, count(miss.tokens)));

// Where it began, with a model that has recurrent layers.
const resumed = (point) => el("p", { class: "sub resumed", "data-kind": point.kind || "none" }, `resumed ${point.words}`);

function extras(turn) {
  const parts = [];
  if (turn.adapter) parts.push(`adapter ${turn.adapter}`);
  if (turn.reasoning_tokens) parts.push(`${exact(turn.reasoning_tokens)} thinking`);
  if (turn.forced_tokens) parts.push(`${exact(turn.forced_tokens)} forced`);
  if (turn.drafted_tokens) parts.push(`${exact(turn.accepted_tokens)} of ${exact(turn.drafted_tokens)} drafted kept`);
  return parts.join(" · ");
}

function time(turn, longest) {
  if (turn.total_s === null) return [el("p", { class: "sub" }, since(turn.began_at, agoInWords))];
  const first = turn.ttft_s ?? turn.total_s;
  const seconds = { tools: turn.tool_wait_s ?? 0, queue: Math.min(turn.queue_s, first), prefill: Math.max(first - turn.queue_s, 0), decode: Math.max(turn.total_s - first, 0) };
  const bar = el("div", { class: "bar phases", "aria-hidden": "true" });
  stack(bar, PHASES.map(([kind, said]) => [seconds[kind] / longest, "phase " + kind, `${said} ${duration(seconds[kind])}`]));
  const told = PHASES.filter(([kind]) => seconds[kind] > 0.0005).map(([kind, said]) => `${said} ${duration(seconds[kind])}`);
  return [bar, el("p", { class: "sub" }, el("b", {}, duration(turn.total_s)), " · " + told.join(" · "), " · ", since(turn.began_at, agoInWords))];
}

function prompt(turn) {
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  const known = turn.misses.length > 0;
  const again = turn.misses.filter((miss) => !miss.own).reduce((sum, miss) => sum + miss.tokens, 0);
  const own = turn.input_tokens - turn.cached_tokens - again;
  const whole = turn.input_tokens || 1;
  stack(bar, [[turn.cached_tokens / whole, "cached", "from cache"], [again / whole, "again", "computed again"], [own / whole, "own", "new"]]);
  const told = [`${exact(turn.cached_tokens)} cached`];
  if (again) told.push(`${exact(again)} again`);
  if (own) told.push(`${exact(own)} ${known ? "new" : "computed"}`);
  return [bar, el("p", { class: "sub" }, el("b", {}, exact(turn.input_tokens)), " · " + told.join(" · "))];
}

// What was said in whole: a row of its own, over the whole width.

function opener(turn, row, page) {
  const id = `items-${++opened}`;
  const button = el("button", { type: "button", class: "open", "aria-expanded": "false" }, "Items");
  button.addEventListener("click", async () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    if (row.below) return (row.below.hidden = !open);
    const body = el("div", { class: "items" }, "Asking the server.");
    row.below = el("tr", { class: "opened", id }, el("td", { colspan: HEADS.length }, body));
    button.setAttribute("aria-controls", id);
    row.node.after(row.below);
    body.replaceChildren(...(await said(turn)));
  });
  return button;
}

async function said({ response, past }) {
  const id = encodeURIComponent(response);
  try {
    const answer = await fetch(`${location.origin}/dashboard/${past ? `journal?items=${id}` : `items/${id}`}`, { cache: "no-store" });
    if (answer.status === 404) return ["Not kept: it was not stored, or has been forgotten."];
    if (!answer.ok) return [`The server refused (${answer.status}).`];
    const found = await answer.json();
    if (found.kept === false) return ["Not kept: it was not stored, or was deleted."];
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

const part = (title, text, way = "") => el("div", { class: "said " + way }, el("b", {}, title), el("pre", { tabindex: "0", "aria-label": title }, text));
