// Turning pages: two buttons that stay the same ones, so that whoever has the focus keeps it.

import { el, put } from "./dom.js";

// `turn` is called with the page to go to.
export function pager(node, turn) {
  const back = el("button", { type: "button", onclick: () => turn(to.back) });
  const on = el("button", { type: "button", onclick: () => turn(to.on) });
  const words = el("span", { role: "status" });
  const to = { back: 0, on: 0 };
  node.append(back, words, on);

  // Pages count from 0; `names` are those of the two directions.
  return function show(page, pages, said, names = ["Newer", "Older"]) {
    to.back = Math.min(page, pages) - 1;
    to.on = page + 1;
    put(back, names[0]);
    put(on, names[1]);
    put(words, said);
    const focused = document.activeElement;
    back.disabled = to.back < 0;
    on.disabled = to.on >= pages;
    back.hidden = on.hidden = back.disabled && on.disabled;
    if (focused === back && back.disabled) on.focus();
    if (focused === on && on.disabled) back.focus();
  };
}
