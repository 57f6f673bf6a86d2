// Elements by hand. Names and numbers come from clients: they go into text nodes and attributes
// only, never into markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const el = (tag, properties = {}, ...children) =>
  fill(document.createElement(tag), properties, children);

export const svg = (tag, properties = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), properties, children);

export function put(node, value) {
  const wanted = String(value);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function width(node, ratio) {
  node.style.width = (100 * Math.min(Math.max(ratio ?? 0, 0), 1)).toFixed(2) + "%";
}

// Rows that are made once and then only updated, so that selection and focus survive an update.
// `make` gives {node, update}; keys say which row is which. A row may get a node `below` it later.
export class Rows {
  constructor(body, make) {
    this.body = body;
    this.make = make;
    this.rows = new Map();
  }

  show(keys, dataOf) {
    const wanted = new Set(keys);
    for (const [key, row] of this.rows) {
      if (wanted.has(key)) continue;
      row.node.remove();
      row.below?.remove();
      this.rows.delete(key);
    }
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    let before = this.body.firstChild;
    for (const key of keys) {
      let row = this.rows.get(key);
      const data = dataOf(key);
      if (!row) {
        row = this.make(data);
        this.rows.set(key, row);
      }
      if (row.shown !== data) {
        row.update(data);
        row.shown = data;
      }
      for (const node of [row.node, row.below]) {
        if (node && node === before) before = before.nextSibling;
        else if (node) this.body.insertBefore(node, before);
      }
    }
    if (focused?.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
  }
}

export const chip = (word, shade = "") =>
  el("span", { class: `chip ${shade}` }, String(word).replaceAll("_", " "));

// A bar of several parts, each [share, class, title].
export function stack(node, parts) {
  while (node.children.length > parts.length) node.lastChild.remove();
  while (node.children.length < parts.length) node.append(el("i"));
  parts.forEach(([share, kind, title], index) => {
    const part = node.children[index];
    part.className = kind;
    part.title = title ?? "";
    width(part, share);
  });
}

export function sparkline(node, values, top) {
  const known = values.map((value, index) => [value, index]).filter(([value]) => value !== null);
  node.classList.toggle("none", known.length < 2);
  if (known.length < 2) return node.replaceChildren();
  const most = top ?? Math.max(...known.map(([value]) => value), 1e-9);
  const first = Math.min(known[0][1], values.length - 10); // a young server fills the line sooner
  const x = (index) => ((120 * (index - first)) / (values.length - 1 - first)).toFixed(1);
  const y = (value) => (28 - 26 * (value / most)).toFixed(1);
  const points = known.map(([value, index]) => `${x(index)},${y(value)}`);
  const area = `${x(known[0][1])},30 ${points.join(" ")} ${x(known.at(-1)[1])},30`;
  node.replaceChildren(svg("polygon", { points: area }), svg("polyline", { points: points.join(" ") }));
}
