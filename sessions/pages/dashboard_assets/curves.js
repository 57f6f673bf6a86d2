// The last hour and day, and where there is a journal the last week and month, drawn by uPlot (MIT, see uplot-1.6.32/LICENSE).

import { el, put } from "./dom.js";
import { count, dollars, duration, exact, many, percent } from "./format.js";
import uPlot from "./uPlot.js";

const share = (part, whole) => (whole ? part / whole : null);
const rate = (name) => (turns, _, width) => (turns ? turns[name] / width : 0);
const of = (name) => (turns) => turns?.[name] ?? null;
const gauge = (name) => (_, machine) => machine?.[name] ?? null;
const perSecond = (value) => (value >= 100 ? count(Math.round(value)) : value.toFixed(1));

const CHARTS = [
  { title: "Prompt tokens a second", lines: [["in", "--ink", rate("input")], ["from cache", "--warm", rate("cached")], ["out", "--cool", rate("output")]], show: perSecond },
  { title: "Share of the prompt from cache", lines: [["hit ratio", "--warm", (turns) => (turns ? share(turns.cached, turns.input) : null)]], show: percent, top: 1 },
  { title: "Dollars a minute", priced: true, lines: [["spent", "--ink", (turns, _, width) => (turns ? (60 * turns.cost) / width : 0)], ["saved by the cache", "--warm", (turns, _, width) => (turns ? (60 * turns.saved) / width : 0)]], show: dollars },
  { title: "Time to first token", lines: [["median", "--cool", of("ttft_p50")], ["95 % within", "--bad", of("ttft_p95")]], show: duration },
  { title: "Whole turns", lines: [["median", "--cool", of("turn_p50")], ["95 % within", "--bad", of("turn_p95")]], show: duration },
  { title: "Turns running and waiting", operator: true, lines: [["running", "--warm", gauge("running")], ["waiting", "--cool", gauge("waiting")]], show: (value) => value.toFixed(1), least: 1 },
  { title: "KV blocks taken, by tier", operator: true, lines: [["device", "--warm", gauge("kv_device")], ["of it running", "--ink", gauge("kv_running")], ["host", "--cool", gauge("kv_host")], ["disk", "--reserved", gauge("kv_disk")]], show: percent, top: 1 },
  { title: "Error of the predicted step times", operator: true, lines: [["mean error", "--reserved", gauge("step_error")]], show: percent },
  { title: "Engine restarts", operator: true, lines: [["restarts", "--bad", (_, machine) => machine?.restarts ?? 0]], show: (value) => (Number.isInteger(value) ? exact(value) : ""), least: 1 },
];

export const same = () => false;
const LEVELS = { hour: "last hour", day: "last day", week: "last week", month: "last month" };
export const wish = (query) => ({ level: Object.hasOwn(LEVELS, query.get("level")) ? query.get("level") : "hour" });

export function open(view, query) {
  const level = wish(query).level;
  const choices = Object.entries(LEVELS).map(([name, words]) => el("a", { href: `#curves?level=${name}`, "aria-current": name === level ? "true" : null }, words));
  const [, , ...long] = choices;
  const grid = el("div", { class: "charts" });
  const tally = el("small", { id: "curves-tally" });
  view.append(el("div", { class: "section-head" }, el("h2", {}, "Curves ", tally), el("p", { class: "choice" }, ...choices)), grid);
  const page = { grid, long, tally, charts: null, shades: "" };
  const resize = new ResizeObserver(() => page.charts?.forEach(({ plot, box }) => box.clientWidth && plot.setSize({ width: box.clientWidth, height: 170 })));
  resize.observe(grid);
  return { update: (parts) => update(parts, page) };
}

// Without a turn there is no latency: such points may stand alone and have to be seen.
const sparse = (chart) => chart.show === duration || chart.show === percent;

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function update(parts, page) {
  const { curve, server } = parts;
  for (const choice of page.long) choice.hidden = !server.journal;
  const kinds = `${server.priced}${server.operator}${color("--ink")}`;
  if (page.kinds !== kinds) {
    page.kinds = kinds;
    page.charts?.forEach(({ plot }) => plot.destroy());
    const wanted = CHARTS.filter((chart) => (server.priced || !chart.priced) && (server.operator || !chart.operator));
    page.grid.replaceChildren();
    page.charts = wanted.map((chart) => draw(chart, page.grid));
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
      return `${name} ${latest === undefined ? "nothing" : chart.show(latest)}`;
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
      scales: { y: { range: (_, low, high) => [0, chart.top ?? Math.max(high || 0, chart.least ?? 1e-9) * 1.1] } },
      axes: [axis, { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => chart.show(tick)) }],
      series: [{}, ...chart.lines.map(([label, name]) => ({ label, stroke: color(name), width: 1.75, spanGaps: true, points: { show: sparse(chart), size: 3 } }))],
    },
    [[], ...chart.lines.map(() => [])],
    box,
  );
  const keys = el("ul", { class: "legend" }, ...chart.lines.map(([label, name]) => el("li", { class: "line" + name }, label)));
  figure.append(keys);
  return { chart, plot, figure, box };
}
