// One view, kept true by the server: parts by name, of which only those that changed are sent.
//
// A page that nobody looks at asks for nothing: the stream is closed while the page is hidden and
// opened anew when it is seen, so that pages left open for a night cost nothing and a browser's few
// connections to one server are left to the pages that are looked at.

const SOONEST_MS = 1000;
const LATEST_MS = 15000;
const REFUSALS = { 400: "nonsense", 401: "refused", 403: "forbidden", 429: "full" };

export class Stream {
  constructor({ onParts, onState }) {
    this.onParts = onParts;
    this.onState = onState;
    this.address = null;
    this.source = null;
    this.timer = 0;
    this.pause = SOONEST_MS;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", () => this.open());
  }

  watch(query) {
    this.address = location.origin + "/dashboard/events?" + new URLSearchParams(query);
    this.close();
    this.open();
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  open() {
    if (this.source || document.hidden || !this.address) return;
    clearTimeout(this.timer);
    const source = (this.source = new EventSource(this.address));
    let parts = {};
    source.addEventListener("open", () => {
      parts = {};
    });
    source.addEventListener("parts", (event) => {
      this.pause = SOONEST_MS;
      const news = JSON.parse(event.data);
      // A new object for every update: a row is drawn again only where its part is another one.
      for (const [name, part] of Object.entries(news)) {
        if (part === null) delete parts[name];
        else parts[name] = part;
      }
      this.onState("live");
      this.onParts(parts, news);
    });
    source.addEventListener("bye", () => this.again("restarting"));
    source.addEventListener("error", () => this.again("lost"));
  }

  // The browser's own attempts end at an answer that is no stream (a wrong key, a server that
  // starts): ask what the matter is, and try again with growing pauses.
  async again(state) {
    this.close();
    let told = state;
    try {
      const answer = await fetch(this.address, { method: "HEAD", cache: "no-store" });
      told = REFUSALS[answer.status] ?? state;
    } catch {
      told = state === "restarting" ? state : "unreachable";
    }
    this.onState(told);
    this.timer = setTimeout(() => this.open(), this.pause * (0.75 + 0.5 * Math.random()));
    this.pause = Math.min(2 * this.pause, LATEST_MS);
  }
}
