// The connection: server-sent events by fetch, since an EventSource cannot send a token.
//
// A connection that is lost is tried again at growing intervals, for ever. One that is silent for longer than the server
// ever is counts as lost. A tab that is not seen gives its connection back, and has a new one when it is seen again.

const FIRST_RETRY = 250;
const LAST_RETRY = 4000;
const SILENT = 12000;

export class Stream {
  // `on` has hello(data), state(data), change(data), status(state, text), refused(problem).
  constructor(url, token, on) {
    this.url = url;
    this.token = token;
    this.on = on;
    this.retry = FIRST_RETRY;
    this.attempt = 0;
    document.addEventListener("visibilitychange", () => this.restart());
    window.addEventListener("online", () => this.restart());
    this.restart();
  }

  // Begins anew, now. What the connection before had to say is not heard any more.
  restart() {
    this.stop();
    this.retry = FIRST_RETRY;
    if (document.hidden) this.on.status("resting", "resting while hidden");
    else this.run(this.attempt);
  }

  stop() {
    this.attempt += 1;
    clearTimeout(this.timer);
    clearTimeout(this.watchdog);
    this.abort?.abort();
  }

  async run(attempt) {
    const abort = (this.abort = new AbortController());
    let reason = "the server has ended";
    this.watch(abort);
    try {
      const headers = { Accept: "text/event-stream" };
      const token = this.token();
      if (token) headers.Authorization = `Bearer ${token}`;
      const response = await fetch(this.url, { headers, signal: abort.signal, cache: "no-store" });
      if (response.status === 401 || response.status === 403) {
        const problem = await response.json().catch(() => ({ detail: response.statusText }));
        if (attempt === this.attempt) this.on.refused(problem);
        return; // until another token is given
      }
      if (response.ok) await this.read(response.body, attempt, abort);
      else reason = `the server answered ${response.status}`;
    } catch {
      reason = abort.signal.aborted ? "the server is silent" : "the server cannot be reached";
    }
    if (attempt !== this.attempt) return;
    clearTimeout(this.watchdog);
    this.on.status("lost", reason);
    this.timer = setTimeout(() => this.run(attempt), this.retry * (0.6 + 0.4 * Math.random()));
    this.retry = Math.min(2 * this.retry, LAST_RETRY);
  }

  watch(abort) {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => abort.abort(), SILENT);
  }

  async read(body, attempt, abort) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done || attempt !== this.attempt) return;
      this.watch(abort);
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        this.take(text.slice(0, end));
        text = text.slice(end + 2);
      }
    }
  }

  take(block) {
    let kind = "";
    let data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) kind = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (!data) return;
    this.on[kind]?.(JSON.parse(data));
    if (kind === "state") {
      this.retry = FIRST_RETRY;
      this.on.status("live", "live");
    }
  }
}
