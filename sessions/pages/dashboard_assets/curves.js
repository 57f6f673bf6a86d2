// The last hour and day, and where there is a journal the last week and month, drawn by uPlot (MIT, see uplot-1.6.32/LICENSE).

import { el, put } from "./dom.js";
import { count, dollars, duration, exact, many, percent } from "./format.js";
import uPlot from "./uPlot.js";

const share = (part, whole) => (whole ? part / whole : null);
const rate = (name) => (turns, _, width) => (turns ? turns[name] / width : 0);
const of = (name) => (turns) => turns?.[name] ?? null;
const gauge = (name) => (_, machine) => machine?.[name] ?? null;
const perSecond = (value) => (value >= 100 ? count(Math.round(value)) : value >= 1 ? value.toFixed(1) : String(Number(value.toPrecision(2))));

// The top of a scale while every value is 0 or missing, so that its numbers differ.
const EMPTY = new Map([[dollars, 0.01], [duration, 0.1], [percent, 0.1]]);

// What is paid for stands apart from how long it takes and from the machine. A colour means one thing.
const GROUPS = [["paid", "Tokens and money"], ["time", "How long turns take"], ["machine", "The machine, for operators"]];
const CHARTS = [
  { group: "paid", title: "Tokens a second", lines: [["in", "--ink", rate("input")], ["from cache", "--cached", rate("cached")], ["out", "--decode", rate("output")]], show: perSecond },
  { group: "paid", title: "Share of the prompt from cache", lines: [["from cache", "--cached", (turns) => (turns ? share(turns.cached, turns.input) : null)]], show: percent, top: 1 },
  { group: "paid", title: "Dollars a minute", priced: true, lines: [["spent", "--ink", (turns, _, width) => (turns ? (60 * turns.cost) / width : 0)], ["saved by the cache", "--cached", (turns, _, width) => (turns ? (60 * turns.saved) / width : 0)]], show: dollars },
  { group: "time", title: "Time to first token", lines: [["median", "--layer-0", of("ttft_p50")], ["95 % within", "--layer-5", of("ttft_p95")]], show: duration },
  { group: "time", title: "Whole turns", lines: [["median", "--layer-0", of("turn_p50")], ["95 % within", "--layer-5", of("turn_p95")]], show: duration },
  { group: "machine", title: "Turns running and waiting", lines: [["running", "--warm", gauge("running")], ["waiting", "--queue", gauge("waiting")]], show: (value) => value.toFixed(1), least: 1 },
  { group: "machine", title: "KV blocks taken, by tier", lines: [["device", "--layer-3", gauge("kv_device")], ["of it running", "--warm", gauge("kv_running")], ["host", "--layer-2", gauge("kv_host")], ["disk", "--layer-4", gauge("kv_disk")]], show: percent, top: 1 },
  { group: "machine", title: "Error of the predicted step times", lines: [["mean error", "--layer-6", gauge("step_error")]], show: percent },
  { group: "machine", title: "Engine restarts", lines: [["restarts", "--bad", (_, machine) => machine?.restarts ?? 0]], show: (value) => (Number.isInteger(value) ? exact(value) : ""), least: 1 },
];

export const same = () => false;
const LEVELS = { hour: "last hour", day: "last day", week: "last week", month: "last month" };
export const wish = (query) => ({ level: Object.hasOwn(LEVELS, query.get("level")) ? query.get("level") : "hour" });

export function open(view, query) {
  const level = wish(query).level;
  const choices = Object.entries(LEVELS).map(([name, words]) => el("a", { href: `#curves?level=${name}`, "aria-current": name === level ? "true" : null }, words));
  const [, , ...long] = choices;
  const grid = el("div");
  const tally = el("small", { id: "curves-tally" });
  view.append(el("div", { class: "section-head" }, el("h2", {}, "Curves ", tally), el("p", { class: "choice" }, ...choices)), grid);
  const page = { grid, long, tally, charts: null, shades: "" };
  const resize = new ResizeObserver(() => page.charts?.forEach(({ plot, box }) => box.clientWidth && plot.setSize({ width: box.clientWidth, height: 170 })));
  resize.observe(grid);
  return { update: (parts) => update(parts, page) };
}

// Without a turn there is no latency, and the line has a gap: points that stand alone have to be seen.
const sparse = (chart) => chart.show === duration || chart.show === percent;

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function update(parts, page) {
  const { curve, server } = parts;
  for (const choice of page.long) choice.hidden = !server.journal;
  const kinds = `${server.priced}${server.operator}${color("--ink")}`;
  if (page.kinds !== kinds) {
    page.kinds = kinds;
    page.charts?.forEach(({ plot }) => plot.destroy());
    const wanted = CHARTS.filter((chart) => (server.priced || !chart.priced) && (server.operator || chart.group !== "machine"));
    page.grid.replaceChildren();
    page.charts = GROUPS.flatMap(([group, title]) => {
      const own = wanted.filter((chart) => chart.group === group);
      const grid = el("div", { class: "charts" });
      if (own.length) page.grid.append(el("section", { class: "part", "data-group": group, "aria-label": title }, el("h3", {}, title), grid));
      return own.map((chart) => draw(chart, grid));
    });
  }
  // Curves begin with the server, or with what the journal has of the time before.
  const began = Math.floor((server.started_at - curve.epoch_s) / curve.width_s);
  const oldest = Object.keys(parts).reduce((least, name) => (/^[bm]-?\d+$/.test(name) ? Math.min(least, Number(name.slice(1))) : least), began);
  const length = Math.min(curve.buckets, Math.max(curve.newest - oldest + 1, 30));
  const numbers = Array.from({ length }, (_, index) => curve.newest - length + 1 + index);
  const times = numbers.map((number) => curve.epoch_s + number * curve.width_s);
  put(page.tally, together(numbers.map((number) => parts["b" + number]), server));
  for (const { chart, plot, figure } of page.charts) {
    const values = chart.lines.map(([, , of_]) => numbers.map((number) => of_(parts["b" + number], parts["m" + number], curve.width_s)));
    plot.setData([times, ...values]);
    const said = chart.lines.map(([name], line) => {
      const latest = values[line].findLast((value) => value !== null);
      return `${name} ${latest === undefined ? "–" : chart.show(latest)}`;
    });
    put(figure.querySelector("figcaption small"), said.join(" · "));
  }
}

function together(buckets, server) {
  const sum = (name) => buckets.reduce((whole, turns) => whole + (turns?.[name] ?? 0), 0);
  const turns = sum("turns");
  const failed = sum("failed") ? `, ${exact(sum("failed"))} failed` : "";
  const said = [`${many(turns, "turn")}${failed}`, `${count(sum("input"))} tokens in, ${percent(share(sum("cached"), sum("input")))} from cache`, `${count(sum("output"))} out`];
  return [...said, ...(server.priced ? [`${dollars(sum("cost"))} spent, ${dollars(sum("saved"))} saved`] : [])].join(" · ");
}

// A tick of the time's axis, in the time of whoever looks: midnight is the day that begins.
function moment(at) {
  const then = new Date(at * 1000);
  const two = (n) => String(n).padStart(2, "0");
  const [hour, minute, second] = [then.getHours(), then.getMinutes(), then.getSeconds()].map(two);
  if (second !== "00") return `${hour}:${minute}:${second}`;
  return hour === "00" && minute === "00" ? `${two(then.getMonth() + 1)}-${two(then.getDate())}` : `${hour}:${minute}`;
}

function draw(chart, grid) {
  const box = el("div", { class: "plot", "aria-hidden": "true" });
  const figure = el("figure", {}, el("figcaption", {}, `${chart.title} `, el("small", {})), box);
  grid.append(figure);
  const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "11px system-ui" };
  const plot = new uPlot(
    {
      width: box.clientWidth || 400,
      height: 170,
      legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, chart.top ?? Math.max(high || (EMPTY.get(chart.show) ?? 1), chart.least ?? 0) * 1.1] } },
      axes: [{ ...axis, space: 64, values: (_, ticks) => ticks.map(moment) }, { ...axis, size: 74, values: (_, ticks) => ticks.map((tick) => chart.show(tick)) }],
      series: [{}, ...chart.lines.map(([label, name]) => ({ label, stroke: color(name), width: 1.75, spanGaps: false, points: { show: sparse(chart), size: 3 } }))],
    },
    [[], ...chart.lines.map(() => [])],
    box,
  );
  const keys = el("ul", { class: "legend" }, ...chart.lines.map(([label, name]) => el("li", { class: "line" + name }, label)));
  figure.append(keys);
  return { chart, plot, figure, box };
}
