// Pages of the one list of sessions, live or in the journal alone: asked of the server, kept true, and the
// cursors that lead from one page to the next.

const NAMES = ["q", "state", "tenant", "budget", "failed", "several", "sort", "to"];
const BETWEEN_MS = 2000;
const SELDOM_MS = 10000; // what others do to the journal, commands and other servers, no stream tells

// What an address asks for; `since` is a time before now, for pages on from the first it is fixed.
export function asked(query, now = Date.now()) {
  const found = new URLSearchParams({ list: "1" });
  for (const name of NAMES) if (query.get(name) && !(name === "several" && query.get(name) === "0")) found.set(name, query.get(name));
  for (const label of query.getAll("label")) found.append("label", label);
  const since = Number(query.get("since"));
  const from = since && !query.get("cursor") ? Math.floor(now / 60000) * 60 - since : query.get("from");
  if (from) found.set("from", String(Math.max(Math.floor(Number(from)), 0)));
  return found;
}

export class Listed {
  // `onPage` is handed {rows, matching, number, more} or {error}.
  constructor(onPage) {
    this.onPage = onPage;
    this.number = 0; // of the question: what answers an earlier one is nobody's
    this.timer = 0;
    this.asking = false;
    this.trail = [];
    this.question = null;
  }

  // Ask for the page of an address.
  show(query) {
    this.query = query;
    const question = new URLSearchParams(query);
    for (const name of ["page", "cursor", "from"]) if (name !== "from" || query.get("since")) question.delete(name);
    if (this.question !== String(question)) this.trail = [];
    this.question = String(question);
    this.page = Math.min(Math.max(Math.floor(Number(query.get("page"))) || 0, 0), 9999);
    if (query.get("cursor")) this.trail[this.page] = { cursor: query.get("cursor"), from: query.get("from") ?? "" };
    this.ask();
  }

  // Something has changed on the server: ask again, not too often.
  again() {
    if (this.question === null || this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = 0;
      if (document.hidden || this.stopped) return;
      if (this.asking) this.again();
      else this.ask();
    }, BETWEEN_MS);
  }

  // Ask again after a while, whatever is heard.
  later() {
    clearTimeout(this.seldom);
    if (this.stopped) return;
    this.seldom = setTimeout(() => {
      if (document.hidden || this.asking) this.later();
      else this.ask();
    }, SELDOM_MS);
  }

  stop() {
    this.stopped = true;
    this.number += 1;
    clearTimeout(this.timer);
    clearTimeout(this.seldom);
  }

  // What the address of a page has to say.
  place(page) {
    const { cursor = "", from = "" } = this.trail[page] ?? {};
    return { page: page ? String(page) : "", cursor, ...(from || this.query.get("since") ? { from } : {}) };
  }

  async ask() {
    const number = ++this.number;
    this.asking = true;
    let told;
    try {
      told = await this.walk(number);
    } catch (error) {
      told = { error: String(error.message ?? error) };
    }
    if (number !== this.number) return;
    this.asking = false;
    this.onPage(told);
    this.later();
  }

  // The page, by way of those before it where no cursor of it is known.
  async walk(number) {
    let page = this.page;
    while (page > 0 && !this.trail[page]) page -= 1;
    for (;;) {
      const answer = await this.fetch(page);
      if (number !== this.number) return null;
      if (answer.next_cursor) this.trail[page + 1] = { cursor: answer.next_cursor, from: answer.from };
      else this.trail.length = page + 1;
      if (page >= this.page || !answer.next_cursor) return { ...answer, number: page, more: Boolean(answer.next_cursor), beyond: page < this.page };
      page += 1;
    }
  }

  async fetch(page) {
    const wanted = asked(page ? this.query : without(this.query));
    const at = page ? this.trail[page] : {};
    if (at.cursor) wanted.set("cursor", at.cursor);
    if (at.from) wanted.set("from", at.from);
    const answer = await fetch(`${location.origin}/sessions.json?${wanted}`, { cache: "no-store" });
    const told = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(told.error?.message ?? `The server refused (${answer.status}).`);
    return { ...told, from: wanted.get("from") ?? "" };
  }
}

function without(query) {
  const found = new URLSearchParams(query);
  found.delete("cursor");
  return found;
}
