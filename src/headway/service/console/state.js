// What the server has said, put together: the whole state at first, and then changes of it.

const BINS = 150;
const SERIES = ["granted_series", "denied_series"];

export class State {
  constructor() {
    this.limits = new Map();
    this.gates = new Map();
    this.bin = 0;
    this.ahead = -Infinity; // the server's clock minus ours, as far as messages tell it
  }

  // The server's time. A message that was slow only makes a lesser guess, so the largest one is the best.
  now() {
    return Date.now() / 1000 + this.ahead;
  }

  whole(state) {
    this.limits = new Map(state.limits.map((limit) => [limit.name, limit]));
    this.gates = new Map(state.gates.map((gate) => [gate.name, gate]));
    this.ahead = -Infinity;
    this.head(state);
  }

  change(change) {
    const moved = Math.min(Math.max(change.bin - this.bin, 0), BINS);
    for (const limit of this.limits.values()) for (const series of SERIES) shift(limit, series, moved);
    for (const limit of change.limits) {
      const known = this.limits.get(limit.name);
      if (known) for (const series of SERIES) limit[series] = [...known[series].slice(0, -1), ...limit[series]];
      this.limits.set(limit.name, limit);
    }
    for (const gate of change.gates) this.gates.set(gate.name, gate);
    for (const gone of change.gone) {
      const [part, name] = [gone.slice(0, gone.indexOf("/")), gone.slice(gone.indexOf("/") + 1)];
      this[part].delete(name);
    }
    this.head(change);
  }

  head(state) {
    for (const name of ["bin", "step", "engine", "engine_up", "more_limits", "more_gates"]) this[name] = state[name];
    this.ahead = Math.max(this.ahead, state.time - Date.now() / 1000);
  }
}

function shift(limit, series, moved) {
  if (moved > 0) limit[series] = [...limit[series], ...new Array(moved).fill(0)].slice(-BINS);
}
