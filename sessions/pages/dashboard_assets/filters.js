// The controls of the list of sessions. They say what the address says, however one came there, and write
// what they are set to into it.

import { byId, el } from "./dom.js";

export const SORTS = [
  ["recent", "latest first"],
  ["cost", "most expensive"],
  ["again", "most computed again"],
  ["hit", "lowest hit ratio"],
];
const STATES = ["running", "waiting_for_tools", "idle"];
const RANGES = [
  ["", "any time"],
  ["3600", "last hour"],
  ["86400", "last day"],
  ["604800", "last 7 days"],
  ["2592000", "last 30 days"],
  ["own", "from … to …"],
];
const TICKS = [
  ["several", "more than one turn", ""],
  ["budget", "with a budget", "Of its own, or of a tree that it is in"],
  ["failed", "with failures", ""],
];
export const FILTERS = ["q", "state", "tenant", "label", "since", "from", "to", "several", "budget", "failed"];

export const here = () => new URLSearchParams(location.hash.split("?")[1] ?? "");

// Change the address: names with their values, empty ones are left out; the first page unless it is said.
export function go(changes) {
  const next = here();
  for (const [name, value] of Object.entries({ page: "", cursor: "", ...changes })) {
    next.delete(name);
    for (const each of [value].flat()) if (each) next.append(name, each);
  }
  const address = "#sessions" + (String(next) ? "?" + next : "");
  if (location.hash !== address) location.hash = address;
}

function searching(id, words, changes) {
  const box = el("input", { type: "search", id, placeholder: words, "aria-label": words });
  let timer = 0;
  const set = () => {
    clearTimeout(timer);
    timer = 0;
    if (box.isConnected) go(changes(box.value));
  };
  box.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(set, 250);
  });
  return { box, waits: () => timer > 0 };
}

function choice(id, words, options, changed) {
  const list = el("select", { "aria-label": words, id }, ...options.map(([value, text]) => el("option", { value }, text)));
  list.addEventListener("change", () => changed(list.value));
  return list;
}

const local = (seconds) => {
  if (!seconds) return "";
  const at = new Date(Number(seconds) * 1000);
  return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
};

// Of when: a stretch up to now, or one with both ends.
function range() {
  const ends = ["from", "to"].map((name) => {
    const box = el("input", { type: "datetime-local", id: name, "aria-label": name === "from" ? "Used from" : "Used until" });
    box.addEventListener("change", () => go({ since: "", [name]: box.value ? String(Math.floor(Date.parse(box.value) / 1000)) : "" }));
    return box;
  });
  const own = el("span", { class: "range", hidden: true }, ...ends);
  const list = choice("since", "Used", RANGES, (value) => {
    own.hidden = value !== "own";
    if (value !== "own") go({ since: value, from: "", to: "" });
  });
  const sync = (query) => {
    const given = query.get("since") ? "" : query.get("from") || query.get("to");
    const since = query.get("since") ?? "";
    list.value = given ? "own" : RANGES.some(([value]) => value === since) ? since : "";
    own.hidden = list.value !== "own";
    ends.forEach((box, index) => (box.value = own.hidden ? "" : local(query.get(["from", "to"][index]))));
  };
  return { nodes: [list, own], sync };
}

// Labels that a session has to have, each as NAME:VALUE.
function labels() {
  const box = el("input", { type: "search", id: "label", placeholder: "Label name:value", "aria-label": "Label as name:value" });
  const chosen = el("span", { class: "labels" });
  box.addEventListener("change", () => {
    const given = here().getAll("label");
    if (box.value.includes(":") && !given.includes(box.value)) go({ label: [...given, box.value] });
    box.setCustomValidity(!box.value || box.value.includes(":") ? "" : "A label is name:value.");
    box.reportValidity();
  });
  const sync = (query) => {
    const given = query.getAll("label");
    if (given.includes(box.value)) box.value = "";
    chosen.replaceChildren(...given.map((label) =>
      el("button", { type: "button", class: "label", "aria-label": `Without the label ${label}`, onclick: () => go({ label: here().getAll("label").filter((each) => each !== label) }) }, label, el("span", { "aria-hidden": "true" }, " ×"))));
  };
  return { nodes: [box, chosen], sync };
}

// The controls, and what makes them show an address.
export function filters() {
  const search = searching("search", "Search names and labels", (q) => ({ q }));
  const tenant = searching("tenant", "Tenant", (name) => ({ tenant: name }));
  tenant.box.hidden = true;
  const state = choice("state", "State", [["", "any state"], ...STATES.map((each) => [each, each.replaceAll("_", " ")])], (value) => go({ state: value }));
  const sort = choice("sort", "Order", SORTS, (value) => go({ sort: value === "recent" ? "" : value }));
  const ticks = TICKS.map(([name, words, title]) => {
    const box = el("input", { type: "checkbox", id: name });
    box.addEventListener("change", () => go({ [name]: box.checked ? "1" : "" }));
    return [name, box, el("label", { class: "tick", title: title || null }, box, words)];
  });
  const [when, marks] = [range(), labels()];
  const bar = el("div", { class: "filters", role: "search" }, search.box, tenant.box, state, ...when.nodes, ...marks.nodes, sort, ...ticks.map(([, , label]) => label));
  const sync = (query) => {
    if (!search.waits()) search.box.value = query.get("q") ?? "";
    if (!tenant.waits()) tenant.box.value = query.get("tenant") ?? "";
    state.value = query.get("state") ?? "";
    sort.value = query.get("sort") ?? "recent";
    for (const [name, box] of ticks) box.checked = query.get(name) === "1";
    when.sync(query);
    marks.sync(query);
  };
  return { bar, sync };
}

export const showTenants = (operator) => (byId("tenant").hidden = !operator);
