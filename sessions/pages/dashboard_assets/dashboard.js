// The page: which view is shown, the stream that keeps it true, and the summary above it.
//
// The address behind the # says everything that is shown, so that a view can be kept and shared.

import { tellTimes } from "./clock.js";
import { byId, el, put, sparkline, stack, width } from "./dom.js";
import { REASONS, count, dollars, duration, many, percent } from "./format.js";
import { comeBack, enterPlace, takePlace, watchPlace } from "./place.js";
import { Stream } from "./stream.js";
import * as cache from "./cache.js";
import * as cluster from "./cluster.js";
import * as curves from "./curves.js";
import * as session from "./session.js";
import * as sessions from "./sessions.js";
import * as tenants from "./tenants.js";
import * as usage from "./usage.js";

const VIEWS = { sessions, session, usage, curves, cache, tenants, cluster };
const STATES = {
  live: null,
  lost: ["connection lost, trying again", "bad"],
  restarting: ["server restarting", "bad"],
  unreachable: ["server not reachable", "bad"],
  refused: ["key refused: load the page again", "bad"],
  full: ["too many pages are open", "bad"],
  forbidden: ["not for this key", "bad"],
  nonsense: ["there is no such view: look at the address", "bad"],
};

let shown = null;
let startedAt = null;
let facts = "";
const stream = new Stream({ onParts, onState });

export function route() {
  const [, name = "", query = ""] = location.hash.match(/^#([a-z]*)\??(.*)$/) ?? [];
  return { name: Object.hasOwn(VIEWS, name) ? name : "sessions", query: new URLSearchParams(query) };
}

function show() {
  if (location.hash === "#view") return; // the link past the navigation
  const { name, query } = route();
  const again = shown?.name === name && VIEWS[name].same?.(query, shown.query);
  if (again) {
    comeBack();
    shown.view.sync?.(query);
  } else {
    const before = shown;
    before?.view.close?.();
    byId("view").replaceChildren();
    shown = { name, query, view: VIEWS[name].open(byId("view"), query) };
    if (before) begin();
    for (const link of document.querySelectorAll("nav [data-view]")) {
      const current = link.dataset.view === name || (name === "session" && link.dataset.view === "sessions");
      if (current) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = name === "session" ? `${query.get("name")} · Keepwarm` : "Keepwarm";
    byId("summary").hidden = ["session", "usage", "cluster"].includes(name);
  }
  shown.query = query;
  stream.watch({ view: name, ...VIEWS[name].wish(query) });
}

// Another view is read from its beginning, or from where it was left by whoever comes back; by whoever has
// no link left to stand on too.
function begin() {
  enterPlace();
  if (document.activeElement === document.body) byId("view").focus({ preventScroll: true });
}

function onState(state) {
  byId("view").setAttribute("aria-busy", state !== "live");
  const told = STATES[state];
  if (told) status(...told);
}

function status(word, shade, why = "") {
  put(byId("status"), word);
  byId("status").className = "chip " + shade;
  byId("status").title = why;
}

function onParts(parts, news) {
  if (news.server) header(parts.server);
  summary(parts, news);
  shown.view.update(parts, news);
  if (shown.name !== "sessions") takePlace(); // the list is there later
}

function header(server) {
  startedAt = server.started_at;
  const told = [];
  if (server.model) {
    told.push(server.model, server.device, server.dtype, count(server.parameters) + " parameters");
    told.push(count(server.max_context_tokens) + " context", count(server.kv_capacity_tokens) + " tokens of KV");
  }
  facts = [...told, "v" + server.version].join(" · ");
  uptime();
  for (const part of document.querySelectorAll("[data-operator]")) part.hidden = !server.operator;
  for (const part of document.querySelectorAll("[data-cluster]")) part.hidden = !server.operator || !server.cluster;
  const reasons = Object.entries(server.not_ready).map(([part, reason]) => `${part}: ${reason}`);
  if (server.engine_up && reasons.length) status("not ready", "bad", reasons.join("; "));
  else status(server.engine_up ? "engine up" : "engine restarting", server.engine_up ? "good" : "bad");
}

function uptime() {
  if (startedAt === null) return;
  const up = duration(Math.max(1, Math.floor(Date.now() / 1000 - startedAt))).replace(".0", "");
  put(byId("facts"), `${facts} · up ${up}`);
}

function summary(parts, news) {
  if (news.totals || news.server) money(parts.totals, parts.server);
  if (news.misses) why(parts.misses);
  if (news.spark) latency(parts.spark);
  if (news.engine) engine(parts.engine);
}

function money(totals, server) {
  put(byId("hit"), percent(totals.hit_ratio));
  put(byId("hit-sub"), `${count(totals.cached_tokens)} of ${count(totals.input_tokens)} tokens`);
  byId("hit").dataset.cached = totals.cached_tokens;
  byId("hit").dataset.input = totals.input_tokens;
  byId("hit").dataset.output = totals.output_tokens;
  byId("saved").dataset.cost = totals.cost;
  const failed = totals.failed ? `, ${count(totals.failed)} failed` : "";
  const turns = `${many(totals.turns, "turn")} since the start${failed}`;
  if (!server.priced) {
    put(byId("saved-title"), "Tokens not computed again");
    put(byId("saved"), count(totals.cached_tokens));
    width(byId("saved-bar"), totals.hit_ratio);
    put(byId("saved-sub"), `${turns}. For money, serve with --price.`);
    return;
  }
  const whole = totals.cost + totals.saved;
  put(byId("saved-title"), "Spent");
  put(byId("saved"), dollars(totals.cost));
  width(byId("saved-bar"), whole ? totals.saved / whole : 0);
  put(byId("saved-sub"), `${dollars(totals.saved)} saved by the cache in ${turns}`);
}

function why(misses) {
  const whole = misses.reduce((sum, miss) => sum + miss.tokens, 0);
  // What somebody could have avoided comes first.
  const sorted = [...misses].sort((a, b) => a.own - b.own || b.tokens - a.tokens);
  stack(byId("why-bar"), sorted.map((miss) => [miss.tokens / whole, "why " + miss.reason, miss.words]));
  const lines = sorted.map((miss) =>
    el(
      "li",
      { class: "why " + miss.reason, "data-reason": miss.reason, "data-tokens": miss.tokens },
      `${REASONS[miss.reason] ?? miss.words} `,
      el("b", {}, count(miss.tokens)),
    ),
  );
  byId("why").replaceChildren(...(lines.length ? lines : [el("li", { class: "none" }, "no token so far")]));
}

function latency(spark) {
  const hits = spark.map((point) => (point && point[0] ? point[1] / point[0] : null));
  sparkline(byId("hit-spark"), hits, 1);
  const medians = spark.map((point) => point && point[3]);
  sparkline(byId("ttft-spark"), medians);
  const newest = spark.findLast((point) => point && point[3] !== null);
  put(byId("ttft"), newest ? duration(newest[3]) : "–");
  put(byId("ttft-sub"), newest ? `median; 95 % within ${duration(newest[4])}` : "no turn in the last hour");
}

function engine(state) {
  put(byId("running"), state.running);
  put(byId("waiting"), state.waiting ? `+ ${state.waiting} waiting` : "");
  const blocks = state.kv_blocks;
  const all = blocks.protected + blocks.reserved + blocks.evictable + blocks.free;
  for (const part of byId("kv-bar").children) width(part, all ? blocks[part.className] / all : 0);
  put(byId("kv"), `KV: ${percent(state.kv_usage)} in use, ${percent(all ? blocks.evictable / all : 0)} kept warm`);
  const restarts = state.restarts ? `, ${many(state.restarts, "engine restart")}` : "";
  put(byId("connections"), many(state.connections, "connection") + restarts);
}

setInterval(() => {
  uptime();
  tellTimes();
}, 1000);
watchPlace();
addEventListener("hashchange", show);
show();
