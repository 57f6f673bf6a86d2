// For operators: the servers of the cluster, as their rows in the database say. Asked again every two seconds
// while the page is looked at.

import { Rows, el, put, width } from "./dom.js";
import { duration, exact, percent } from "./format.js";
import { takePlace } from "./place.js";

export const same = () => true;
// The stream has no view of it: what stands around every view is enough.
export const wish = () => ({ view: "session", name: "" });

const BETWEEN_MS = 2000;
const CELLS = [
  ["state", "State", ""],
  ["slot", "Slot", "n"],
  ["sockets", "Sockets", "n"],
  ["sessions", "Sessions", "n"],
  ["kv", "KV in use", ""],
  ["hit", "From cache", "n"],
  ["running", "Turns", "n"],
  ["version", "Version", ""],
];
const SHADES = { ready: "good", silent: "bad" };

export function open(view) {
  const body = el("tbody");
  const tally = el("small");
  const titles = ["Server", ...CELLS.map(([, title]) => title)];
  const table = el("table", { class: "cards cluster" }, el("caption", { class: "hidden" }, "Servers"), el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", { scope: "col" }, title)))), body);
  const empty = el("p", { class: "empty" }, "asking …");
  view.append(el("section", { "aria-labelledby": "cluster-title" }, el("h2", { id: "cluster-title" }, "Cluster ", tally), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Servers" }, table, empty)));
  const rows = new Rows(body, row);
  let [timer, stopped] = [0, false];

  async function ask() {
    try {
      const answer = await fetch(`${location.origin}/cluster.json`, { cache: "no-store" });
      const told = await answer.json().catch(() => ({}));
      if (!answer.ok) throw new Error(told.error?.message ?? `The server refused (${answer.status}).`);
      if (!stopped) show(told);
    } catch (error) {
      if (!stopped) say(String(error.message ?? error));
    }
    if (!stopped) timer = setTimeout(again, BETWEEN_MS);
  }

  function again() {
    if (document.hidden) timer = setTimeout(again, BETWEEN_MS);
    else ask();
  }

  function show({ cluster, servers }) {
    const known = new Map(servers.map((each) => [each.server, each]));
    rows.show([...known.keys()], (key) => known.get(key));
    put(tally, cluster === null ? "" : `${cluster}, ${servers.filter((each) => each.state === "ready").length} ready`);
    table.hidden = servers.length === 0;
    say(cluster === null ? "This server stands in no cluster (serve --cluster NAME)." : servers.length ? "" : "No server is there.");
    takePlace();
  }

  function say(words) {
    put(empty, words);
    empty.hidden = !words;
  }

  table.hidden = true;
  ask();
  return {
    update() {},
    close() {
      stopped = true;
      clearTimeout(timer);
    },
  };
}

function row(first) {
  const cells = Object.fromEntries(CELLS.map(([name, label, kind]) => [name, el("td", { "data-label": label, class: kind })]));
  const state = el("span", { class: "chip" });
  cells.state.append(state);
  const [text, bar] = [el("b"), el("i", { class: "own" })];
  cells.kv.append(el("div", { class: "meter" }, text, el("div", { class: "bar", "aria-hidden": "true" }, bar)));
  const node = el("tr", { "data-server": first.server }, el("th", { scope: "row", title: first.server }, first.address), ...Object.values(cells));
  const update = (data) => {
    put(state, data.state === "silent" ? `silent for ${duration(data.heard_s)}` : data.state);
    state.className = `chip ${SHADES[data.state] ?? ""}`;
    put(cells.slot, data.slot || "–");
    for (const name of ["sockets", "sessions"]) put(cells[name], exact(data[name]));
    put(text, percent(data.kv));
    width(bar, Math.min(data.kv, 1));
    put(cells.hit, percent(data.hit_ratio));
    put(cells.running, exact(data.running) + (data.waiting ? `, ${exact(data.waiting)} waiting` : ""));
    put(cells.version, data.version || "–");
  };
  return { node, update };
}
