"use strict";

// Names and numbers come from clients: they go into text nodes only, never into markup.

const POLL_MS = 2000;
const DATA = location.origin + "/sessions.json"; // without a password that the page's address may hold
const HISTORY = 60;
const SMOOTH = 5; // polls that the shown rate is a mean of
const byId = (id) => document.getElementById(id);
const rates = [];
let previous = null;

// Numbers as people read them.

function count(n) {
  if (n < 10000) return String(n);
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (n >= size) return (n / size).toFixed(n < 10 * size ? 2 : n < 100 * size ? 1 : 0) + unit;
  }
}

function dollars(x) {
  if (x === 0) return "$0";
  if (x < 0.000001) return "<$0.000001";
  const digits = x >= 100 ? 0 : x >= 0.1 ? 2 : Math.min(6, 1 - Math.floor(Math.log10(x)));
  return "$" + x.toFixed(digits);
}

function percent(ratio) {
  if (ratio === null) return "–";
  const value = 100 * ratio;
  // Not rounded up to 100: a cache that missed anything did not hit everything.
  return (value > 99 && value < 100 ? (Math.floor(value * 10) / 10).toFixed(1) : value.toFixed(0)) + "%";
}

function duration(s) {
  if (s === null) return "–";
  if (s < 0.9995) return Math.round(s * 1000) + " ms";
  if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
}

function ago(s) {
  return s < 1 ? "now" : duration(Math.floor(s)).replace(".0", "");
}

function budget(left) {
  const parts = [];
  if ("cost" in left) parts.push(dollars(left.cost));
  if ("input_uncached" in left) parts.push(count(left.input_uncached) + " in");
  if ("output" in left) parts.push(count(left.output) + " out");
  return parts.join(" · ") || "–";
}

// Cells. Each is made once and then only updated, so that a selection survives a poll.

const text = (of, shade) => ({
  make: (cell) => { if (shade) cell.className = shade; },
  update: (cell, row) => put(cell, of(row)),
});

const name = {
  make: () => {},
  update: (cell, row) => {
    put(cell, row.session);
    cell.title = row.session; // long ones are cut
  },
};

const meter = {
  make: (cell) => {
    const box = cell.appendChild(document.createElement("div"));
    box.className = "meter";
    box.appendChild(document.createElement("b"));
    const bar = box.appendChild(document.createElement("div"));
    bar.className = "bar";
    bar.appendChild(document.createElement("i")).className = "warm";
  },
  update: (cell, row) => {
    put(cell.querySelector("b"), percent(row.hit_ratio));
    fill(cell.querySelector("i"), row.hit_ratio);
  },
};

const chip = (of, shades) => ({
  make: (cell) => cell.appendChild(document.createElement("span")),
  update: (cell, row) => {
    const [word, title] = of(row);
    put(cell.firstChild, word.replaceAll("_", " "));
    cell.firstChild.className = "chip " + (shades[word] ?? "");
    cell.title = title ?? "";
  },
});

const tenant = { ...text((row) => row.tenant, "dim"), ifSeveral: true };

const SESSIONS = [
  name,
  tenant,
  chip((s) => [s.state], { running: "warm", waiting_for_tools: "cool" }),
  text((s) => s.turns, "n"),
  text((s) => count(s.input_tokens), "n"),
  meter,
  text((s) => count(s.output_tokens), "n"),
  text((s) => percent(s.output_tokens ? s.forced_tokens / s.output_tokens : null), "n"),
  text((s) => dollars(s.cost), "n"),
  text((s) => dollars(s.saved), "n"),
  text((s) => budget(s.budget_left), "n"),
  text((s) => (s.state === "running" ? "–" : ago(s.idle_s)), "n dim"),
];

const TURNS = [
  name,
  tenant,
  text((t) => t.turn, "n"),
  chip((t) => [t.status, t.reason], { completed: "good", incomplete: "cool", failed: "bad" }),
  text((t) => count(t.input_tokens), "n"),
  meter,
  text((t) => count(t.output_tokens), "n"),
  text((t) => duration(t.ttft_s), "n"),
  text((t) => (t.tokens_per_s === null ? "–" : count(Math.round(t.tokens_per_s))), "n"),
  text((t) => dollars(t.cost), "n"),
  text((t) => ago(t.ago_s), "n dim"),
];

function put(node, value) {
  const wanted = String(value);
  if (node.textContent !== wanted) node.textContent = wanted;
}

function fill(bar, ratio) {
  bar.style.width = 100 * (ratio ?? 0) + "%";
}

function show(body, columns, rows, several) {
  const shown = columns.filter((column) => several || !column.ifSeveral);
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, index) => {
    let line = body.rows[index];
    if (line && line.cells.length !== shown.length) {
      body.deleteRow(index);
      line = null;
    }
    if (!line) {
      line = body.insertRow(index);
      for (const column of shown) column.make(line.insertCell());
    }
    shown.forEach((column, at) => column.update(line.cells[at], row));
  });
}

// The parts of the page.

function header(server) {
  const facts = [];
  if (server.model) {
    facts.push(server.model, server.device, server.dtype, count(server.parameters) + " parameters");
    facts.push(count(server.max_context_tokens) + " context");
    facts.push(count(server.kv_capacity_tokens) + " tokens of KV");
  }
  facts.push("up " + duration(Math.max(1, Math.floor(server.uptime_s))).replace(".0", ""), "v" + server.version);
  put(byId("facts"), facts.join(" · "));
  status(server.engine_up ? "engine up" : "engine restarting", server.engine_up ? "good" : "bad");
}

function status(word, shade) {
  put(byId("status"), word);
  byId("status").className = "chip " + shade;
}

function tiles(data) {
  const { totals, engine, server } = data;
  put(byId("hit"), percent(totals.hit_ratio));
  fill(byId("hit-bar"), totals.hit_ratio);
  put(byId("hit-sub"), `${count(totals.cached_tokens)} of ${count(totals.input_tokens)} tokens`);

  const whole = totals.cost + totals.saved;
  put(byId("saved"), whole ? dollars(totals.saved) : "–");
  fill(byId("saved-bar"), whole ? totals.saved / whole : 0);
  put(byId("saved-sub"), whole ? `${dollars(totals.cost)} spent` : "nothing spent yet");

  const forced = totals.output_tokens ? totals.forced_tokens / totals.output_tokens : 0;
  put(byId("rate-sub"), `${count(totals.streamed_tokens)} so far · ${percent(forced)} forced`);

  const failed = totals.failed ? `, ${count(totals.failed)} failed` : "";
  put(byId("turns-sub"), `${count(totals.turns)} turns ended${failed}`);
  if (!engine) return;
  put(byId("running"), engine.running);
  put(byId("waiting"), engine.waiting ? `+ ${engine.waiting} waiting` : "");
  put(byId("connections"), `${server.connections} connections open`);
  put(byId("kv"), percent(engine.kv_usage));
  const blocks = engine.kv_blocks;
  const all = blocks.protected + blocks.reserved + blocks.evictable + blocks.free;
  for (const part of byId("kv-bar").children) fill(part, all ? blocks[part.className] / all : 0);
}

function throughput(data, now) {
  const tokens = data.totals.streamed_tokens;
  if (previous && tokens < previous.tokens) rates.length = 0; // the server has restarted
  else if (previous) rates.push((1000 * (tokens - previous.tokens)) / Math.max(1, now - previous.now));
  previous = { tokens, now };
  if (rates.length > HISTORY) rates.shift();
  if (!rates.length) return;
  const latest = rates.slice(-SMOOTH);
  const rate = latest.reduce((sum, each) => sum + each) / latest.length;
  put(byId("rate"), rate >= 10 || rate === 0 ? count(Math.round(rate)) : rate.toFixed(1));
  const top = Math.max(1, ...rates);
  const x = (index) => (120 - (rates.length - 1 - index) * (120 / (HISTORY - 1))).toFixed(1);
  const points = rates.map((each, index) => `${x(index)},${(27 - 25 * (each / top)).toFixed(1)}`);
  const [area, line] = byId("spark").children;
  line.setAttribute("points", points.join(" "));
  area.setAttribute("points", `${x(0)},28 ${points.join(" ")} 120,28`);
}

function render(data) {
  const several = new Set([...data.sessions, ...data.turns].map((row) => row.tenant)).size > 1;
  for (const part of document.querySelectorAll("[data-tenant]")) part.hidden = !several;
  for (const part of document.querySelectorAll("[data-operator]")) part.hidden = !data.server.operator;
  header(data.server);
  tiles(data);
  throughput(data, performance.now());
  show(byId("sessions"), SESSIONS, data.sessions, several);
  show(byId("turns"), TURNS, data.turns, several);
  byId("no-sessions").hidden = data.sessions.length > 0;
  byId("no-turns").hidden = data.turns.length > 0;
  const hidden = data.num_sessions - data.sessions.length;
  put(byId("num-sessions"), data.num_sessions + (hidden ? `, the latest ${data.sessions.length} shown` : ""));
}

async function poll() {
  if (!document.hidden) {
    try {
      const answer = await fetch(DATA, { cache: "no-store" });
      if (answer.ok) render(await answer.json());
      else status(`refused (${answer.status})`, "bad");
    } catch {
      status("server not reachable", "bad");
    }
  }
  setTimeout(poll, POLL_MS);
}

put(byId("address"), `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/responses`);
poll();
