// Forks as a graph beside the turns: who goes on from whom.

import { svg } from "./dom.js";

const LANE = 14;

// A turn goes on in its parent's lane if it is the first to do so, else in a lane of its own.

export function lanes(turns) {
  const place = new Map(turns.map((turn, index) => [turn.response, index]));
  const lane = [];
  const parent = [];
  const taken = new Set();
  let used = 0;
  turns.forEach((turn, index) => {
    const from = place.get(turn.parent) ?? -1;
    parent.push(from);
    if (from >= 0 && !taken.has(from)) lane.push(lane[from]);
    else lane.push(used++);
    if (from >= 0) taken.add(from);
  });
  const last = new Map();
  turns.forEach((_, index) => {
    last.set(lane[index], index);
    if (parent[index] >= 0) last.set(lane[parent[index]], Math.max(last.get(lane[parent[index]]) ?? 0, parent[index]));
  });
  return { lane, parent, last, width: Math.min(used, 8) };
}

export function graph(index, { lane, parent, last, width: count_ }) {
  const x = (at) => LANE / 2 + LANE * Math.min(at, 7);
  const parts = [];
  const line = (x1, y1, x2, y2) => parts.push(svg("path", { d: x1 === x2 ? `M${x1} ${y1}V${y2}` : `M${x1} ${y1}C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}` }));
  // The latest turn stands on top: a lane runs on above a turn if it has one later, below if earlier.
  for (const [other, end] of last) {
    const begins = lane.indexOf(other);
    const from = parent[begins] >= 0 ? parent[begins] : begins;
    if (other === lane[index]) {
      if (end > index) line(x(other), 0, x(other), 24);
      if (begins < index) line(x(other), 24, x(other), 48);
      else if (from < index) line(x(other), 24, x(lane[from]), 48);
    } else if (begins < index && end > index) line(x(other), 0, x(other), 48);
    else if (from === index && begins > index) line(x(other), 0, x(lane[index]), 24);
    else if (from < index && begins > index) line(x(lane[from]), 0, x(lane[from]), 48);
  }
  const from = parent[index];
  const said = from < 0 ? "begins the session" : lane[from] === lane[index] ? "goes on" : "forks";
  return svg("svg", { class: "graph", viewBox: `0 0 ${LANE * count_} 48`, width: LANE * count_, preserveAspectRatio: "none", role: "img", "aria-label": said }, ...parts, svg("path", { class: "dot", d: `M${x(lane[index])} 24h0.01` }));
}
