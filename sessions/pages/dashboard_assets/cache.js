// The cache as a picture: the upper part of the radix tree, from the first token rightwards. What
// several sessions share stands once, with those that go on from it beside it.

import { Rows, el, put } from "./dom.js";
import { duration, exact, many } from "./format.js";
import { sessionLink } from "./sessions.js";

const STATES = { running: "read by a running turn", queued: "wanted by a turn that waits, or published", leased: "leased while tools run", idle: "idle: first to be evicted" };
const TIERS = { device: "on the device", host: "in host memory", disk: "on disk" };

export const same = () => true;
export const wish = () => ({});

export function open(view) {
  const page = {
    tally: el("small"),
    tree: el("div", { class: "tree", role: "group", "aria-label": "Cached prefixes" }),
    side: el("aside", { class: "node-side" }, el("p", { class: "dim" }, "Choose a piece to see its sessions.")),
    chosen: null,
  };
  page.parts = sideParts();
  page.picture = el("div", { class: "cache", hidden: true }, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Picture of the cache" }, page.tree), page.side);
  const legend = el("ul", { class: "legend" }, ...Object.entries(STATES).map(([state, words]) => el("li", { class: "node " + state }, words)), el("li", { class: "node host" }, "in host memory"), el("li", { class: "node disk" }, "on disk"));
  view.append(
    el("div", { class: "section-head" }, el("h2", {}, "The cache ", page.tally), legend),
    el("p", { class: "sub" }, "Each piece is a run of tokens; what follows it stands to its right. The paler, the longer ago it was used."),
    page.picture,
  );
  page.tree.addEventListener("keydown", (event) => walk(event, page));
  return { update: (parts, news) => news.cache && update(parts.cache, page) };
}

function update(cache, page) {
  const nodes = cache.nodes.map((node, index) => ({ ...node, index, below: [] }));
  const roots = [];
  for (const node of nodes) (node.parent === null ? roots : nodes[node.parent].below).push(node);
  for (const node of [...nodes].reverse()) {
    node.leaves = node.below.reduce((sum, child) => sum + child.leaves, 0) || 1;
    node.sharing = new Map([...node.sessions, ...node.below.flatMap((child) => [...child.sharing.values()])].map((each) => [JSON.stringify(each), each]));
  }
  const rest = cache.num_nodes > nodes.length ? ` of ${exact(cache.num_nodes)}` : "";
  put(page.tally, !cache.ready ? "asking the engine" : nodes.length ? (rest ? `${exact(nodes.length)}${rest} pieces` : many(nodes.length, "piece")) : "holds nothing yet");
  page.picture.hidden = !nodes.length;
  const focused = document.activeElement?.dataset?.path;
  let y = 0;
  for (const root of roots) {
    place(root, y, "");
    y += root.leaves;
  }
  const longest = Math.max(...nodes.map((node) => node.start + node.tokens), 1);
  page.nodes = nodes;
  page.tree.style.height = Math.max(y * 22, 120) + "px";
  page.tree.replaceChildren(...nodes.map((node) => piece(node, longest, page)));
  if (focused) page.tree.querySelector(`[data-path="${CSS.escape(focused)}"]`)?.focus();
  const chosen = nodes.find((node) => node.path === page.chosen);
  if (chosen) describe(chosen, page);
}

function place(node, y, above) {
  node.y = y;
  node.path = `${above}/${node.start}.${node.tokens}.${node.owner}.${(node.text ?? "").slice(0, 40).replaceAll("/", "∕")}`;
  let at = y;
  for (const child of node.below) {
    place(child, at, node.path);
    at += child.leaves;
  }
}

function piece(node, longest, page) {
  const title = node.text ? node.text.replaceAll("\n", " ⏎ ") : node.owner ? `of ${node.owner}` : "published";
  const button = el(
    "button",
    {
      type: "button",
      class: `node ${node.state} ${node.tier}`,
      "data-path": node.path,
      "aria-pressed": String(node.path === page.chosen),
      "aria-label": `${exact(node.tokens)} tokens from ${exact(node.start)}, ${STATES[node.state]}, ${TIERS[node.tier]}, ${node.sharing.size} sessions: ${title}`,
      tabindex: node.index === 0 ? "0" : "-1",
      onclick: () => choose(node, page),
    },
    el("span", {}, title),
  );
  button.style.left = (100 * node.start) / longest + "%";
  button.style.width = `max(6px, calc(${(100 * node.tokens) / longest}% - 2px))`;
  button.style.top = node.y * 22 + "px";
  button.style.height = node.leaves * 22 - 2 + "px";
  if (node.state === "idle") button.style.setProperty("--heat", (0.25 + 0.75 / (1 + node.age / 40)).toFixed(2));
  return button;
}

function choose(node, page) {
  page.chosen = node.path;
  for (const other of page.tree.children) other.setAttribute("aria-pressed", String(other.dataset.path === node.path));
  describe(node, page);
}

// What is told of a piece is filled in anew while somebody reads it, or has a link of it in focus.
function sideParts() {
  const names = el("ul", { class: "names" });
  return {
    title: el("h3"),
    text: el("pre", { "aria-live": "polite" }),
    facts: el("dl"),
    heading: el("h3"),
    names,
    rows: new Rows(names, (link) => ({ node: el("li", {}, el("a", { href: link.href }, link.name)), update() {} })),
    none: el("p", { class: "dim" }, "None that has not been forgotten."),
  };
}

function describe(node, page) {
  const { title, text, facts, heading, names, rows, none } = page.parts;
  if (!title.isConnected) page.side.replaceChildren(title, text, facts, heading, names, none);
  put(title, node.text === null ? "Another tenant's tokens" : "Begins with");
  put(text, node.text ?? "");
  text.hidden = node.text === null;
  tellFacts(facts, [
    ["Tokens", `${exact(node.tokens)}, from ${exact(node.start)}`],
    ["Where", TIERS[node.tier]],
    ["State", STATES[node.state] + (node.lease_s ? `, for another ${duration(node.lease_s)}` : "")],
    ["Tenant", node.owner || "published for all"],
    ["Goes on in", many(node.children, "way")],
    ["Last used", node.age ? `${many(node.age, "use")} of the cache ago` : "just now"],
  ]);
  const links = new Map([...node.sharing].slice(0, 100).map(([key, [tenant, name]]) => [key, { href: sessionLink(tenant, name), name }]));
  put(heading, `Sessions (${exact(node.sharing.size)})`);
  rows.show([...links.keys()], (key) => links.get(key));
  names.hidden = !links.size;
  none.hidden = links.size > 0;
}

function tellFacts(list, facts) {
  if (!list.childElementCount) list.append(...facts.flatMap(([name]) => [el("dt", {}, name), el("dd")]));
  facts.forEach(([, value], index) => put(list.children[2 * index + 1], value));
}

// Arrow keys: left to what it follows, right to what follows, up and down between neighbours.
function walk(event, page) {
  const at = [...page.tree.children].indexOf(document.activeElement);
  if (at < 0) return;
  const node = page.nodes[at];
  const beside = node.parent === null ? page.nodes.filter((each) => each.parent === null) : page.nodes[node.parent].below;
  const place_ = beside.indexOf(node);
  const to = { ArrowLeft: page.nodes[node.parent ?? -1], ArrowRight: node.below[0], ArrowUp: beside[place_ - 1], ArrowDown: beside[place_ + 1] }[event.key];
  if (!to) return;
  event.preventDefault();
  const next = page.tree.children[to.index];
  document.activeElement.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
