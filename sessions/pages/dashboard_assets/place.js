// Where somebody was on a page: the browser's way back leads to the same lines as before.
//
// The place is kept with the entry of the browser's history, so that it lasts as long as that does. What
// is shown comes later than the address: the place is taken again as soon as the page is long enough.

let wanted = null;
let timer = 0;

const keep = () => {
  clearTimeout(timer);
  timer = 0;
  if (wanted === null) history.replaceState({ ...history.state, y: Math.round(scrollY) }, "");
};

export function watchPlace() {
  history.scrollRestoration = "manual";
  addEventListener("scroll", () => {
    const here = location.href;
    timer ||= setTimeout(() => {
      timer = 0;
      if (location.href === here) keep();
    }, 250);
  }, { passive: true });
  addEventListener("click", keep, true);
  for (const kind of ["wheel", "touchstart", "keydown", "pointerdown"]) addEventListener(kind, () => (wanted = null), { capture: true, passive: true });
  wanted = history.state?.y ?? null;
}

// Another view is shown: from where it was left, or from its beginning.
export function enterPlace() {
  comeBack();
  if (wanted === null) scrollTo(0, 0);
}

// The same view shows something else.
export function comeBack() {
  wanted = history.state?.y ?? null;
}

// Something was drawn: perhaps the place is there now.
export function takePlace() {
  if (wanted === null) return;
  const there = document.documentElement.scrollHeight - innerHeight >= wanted;
  if (!there) return;
  scrollTo(0, wanted);
  wanted = null;
}
