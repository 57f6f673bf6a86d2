// Ages that go on while a page is looked at. The clock touches the elements that were made here, by
// their name in HTML, and nothing else: no attribute of another element can be taken for a time.

import { el, put } from "./dom.js";
import { ago } from "./format.js";

// How long ago something was, in seconds since the epoch; null: it never was. `words` makes of the
// age what is shown.
export function since(seconds, words = ago) {
  const node = el("time");
  setSince(node, seconds, words);
  return node;
}

const wordings = new WeakMap();

// The same element tells another time. `never`: what stands there without one.
export function setSince(node, seconds, words = ago, never = "–") {
  wordings.set(node, words);
  if (!Number.isFinite(seconds)) {
    node.removeAttribute("datetime");
    node.removeAttribute("title");
    return put(node, never);
  }
  const at = new Date(seconds * 1000);
  node.dateTime = at.toISOString();
  node.title = at.toLocaleString();
  tell(node);
}

function tell(node) {
  const words = wordings.get(node);
  if (words) put(node, words((Date.now() - Date.parse(node.dateTime)) / 1000));
}

export const tellTimes = () => document.querySelectorAll("time[datetime]").forEach(tell);
