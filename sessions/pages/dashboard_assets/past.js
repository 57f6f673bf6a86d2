// A session's turns as the journal has them: those that memory has forgotten, or that ended before the
// server was started. Of these the journal knows no times but when they ended, and no reasons.

const UNKNOWN = { queue_s: 0, ttft_s: null, total_s: null, tool_wait_s: null, open_calls: 0, misses: [], resumed: [], context: null, drafted_tokens: 0, accepted_tokens: 0 };

export class Past {
  constructor(wish, onTurns) {
    this.address = `${location.origin}/dashboard/journal?` + new URLSearchParams({ name: wish.name, ...(wish.tenant ? { tenant: wish.tenant } : {}) });
    this.onTurns = onTurns;
    this.turns = [];
    this.asking = false;
    this.stopped = false;
  }

  stop() {
    this.stopped = true;
  }

  // `turns`, the oldest first, in the words of the stream.
  async ask() {
    this.asking = true;
    try {
      const answer = await fetch(this.address, { cache: "no-store" });
      if (answer.ok) this.turns = (await answer.json()).rows.reverse().map((row) => ({ ...UNKNOWN, ...row, key: `j${row.response}`, past: true, began_at: row.active_at }));
    } catch {
      // the stream says that the server cannot be reached
    }
    this.asking = false;
    if (!this.stopped) this.onTurns();
  }
}
