// Bars over time, one above the other, drawn by uPlot: a bucket without usage is a gap.

import { el, put } from "./dom.js";
import uPlot from "./uPlot.js";

const MOST = 6; // values with a colour of their own; the rest are one
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const keyOf = (row) => JSON.stringify([row.kind, row.value]);

export function stacked() {
  const box = el("div", { class: "plot", "aria-hidden": "true" });
  const [title, note, legend] = [el("span"), el("small"), el("ul", { class: "legend" })];
  const node = el("figure", { class: "stacked", hidden: true }, el("figcaption", {}, title, note), box, legend);
  const page = { plot: null, shown: null, ink: "" };
  const resize = new ResizeObserver(() => box.clientWidth && page.plot?.setSize({ width: box.clientWidth, height: 220 }));
  resize.observe(node);

  function show(told, how) {
    page.shown = [told, how];
    page.ink = color("--ink");
    put(title, how.words[0].toUpperCase() + how.words.slice(1));
    const { times, layers } = layered(told, how);
    put(note, ` the most in one bar: ${how.form(Math.max(...layers[0]?.sums ?? [0], 0))}`);
    legend.replaceChildren(...[...layers].reverse().map(({ name }, index) => el("li", { class: `layer-${index}` }, name)));
    page.plot?.destroy();
    page.plot = draw(box, times, layers, told.bucket, how);
  }

  return {
    node,
    show,
    recolour: () => page.shown && page.ink !== color("--ink") && show(...page.shown),
    close: () => {
      resize.disconnect();
      page.plot?.destroy();
    },
  };
}

const HOURS = { "1h": 3600, "1d": 86400 };
const MOST_BARS = 2000;

// The starts of all buckets of the range, those without usage too; of very many only those with some.
function starts({ from, to, bucket, data }) {
  const there = [...new Set(data.map((row) => Date.parse(row.start) / 1000))].sort((a, b) => a - b);
  const [first, end] = [Date.parse(from) / 1000, Date.parse(to) / 1000];
  const found = [];
  if (bucket === "1mo") {
    const at = new Date(first * 1000);
    for (let month = at.getUTCMonth(); found.length <= MOST_BARS; month += 1) {
      const start = Date.UTC(at.getUTCFullYear(), month, 1) / 1000;
      if (start >= end) break;
      found.push(start);
    }
  } else {
    const step = HOURS[bucket];
    for (let start = Math.floor(first / step) * step; start < end && found.length <= MOST_BARS; start += step) found.push(start);
  }
  return found.length > MOST_BARS ? there : [...new Set([...found, ...there])].sort((a, b) => a - b);
}

// Cumulative sums, the whole first: what is drawn later covers the lower part of what was drawn before.
function layered(told, { value, name }) {
  const { data } = told;
  const times = starts(told);
  const place = new Map(times.map((at, index) => [at, index]));
  const totals = new Map();
  for (const row of data) totals.set(keyOf(row), { row, sum: (totals.get(keyOf(row))?.sum ?? 0) + value(row) });
  const sorted = [...totals].sort(([, a], [, b]) => b.sum - a.sum);
  const own = sorted.slice(0, sorted.length > MOST + 1 ? MOST : MOST + 1).map(([key, { row }]) => [key, name(row)]);
  const layer = new Map(own.map(([key], index) => [key, index]));
  const names = own.map(([, each]) => each);
  if (sorted.length > own.length) names.push(`${sorted.length - own.length} others`);
  const values = names.map(() => times.map(() => 0));
  for (const row of data) values[layer.get(keyOf(row)) ?? names.length - 1][place.get(Date.parse(row.start) / 1000)] += value(row);
  for (let index = 1; index < values.length; index += 1) values[index] = values[index].map((each, at) => each + values[index - 1][at]);
  const layers = names.map((each, index) => ({ name: each, sums: values[index], shade: `--layer-${index}` }));
  return { times, layers: layers.reverse() };
}

function label(at, bucket) {
  const text = new Date(at * 1000).toISOString();
  if (bucket === "1mo") return text.slice(0, 7);
  return bucket === "1d" || text.slice(11, 16) === "00:00" ? text.slice(5, 10) : text.slice(11, 16);
}

function draw(box, times, layers, bucket, { form }) {
  const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "11px system-ui" };
  const gap = times.length > 1 ? Math.min(...times.slice(1).map((at, index) => at - times[index])) : 3600;
  return new uPlot(
    {
      width: box.clientWidth || 600,
      height: 220,
      legend: { show: false },
      cursor: { show: false },
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      scales: { x: { range: () => [times[0] - 0.6 * gap, times.at(-1) + 0.6 * gap] }, y: { range: (_, low, high) => [0, Math.max(high || 0, 1e-9) * 1.1] } },
      axes: [{ ...axis, space: 64, values: (_, ticks) => ticks.map((tick) => label(tick, bucket)) }, { ...axis, size: 70, values: (_, ticks) => ticks.map((tick) => form(tick)) }],
      series: [{}, ...layers.map(({ shade }) => ({ fill: color(shade), stroke: color(shade), width: 0, paths: uPlot.paths.bars({ size: [0.7, 48] }), points: { show: false } }))],
    },
    [times, ...layers.map(({ sums }) => sums)],
    box,
  );
}
