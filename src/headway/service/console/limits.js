// The table of limits: a row for each, and what is below it when it is opened.

import { allow, limitActions } from "./actions.js";
import { draw } from "./chart.js";
import { count, keyed, make, rate, seconds, set, texts } from "./text.js";

export class LimitsView {
  constructor(state, api) {
    this.state = state;
    this.api = api;
    this.body = document.getElementById("limits");
    this.template = document.getElementById("limit-row").content;
    this.rows = new Map();
    this.filter = document.getElementById("filter");
    this.filter.addEventListener("input", () => this.show());
  }

  show() {
    const wanted = this.filter.value.trim().toLowerCase();
    for (const [name, row] of this.rows) {
      if (!this.state.limits.has(name)) {
        row.remove();
        this.rows.delete(name);
      }
    }
    let last = null;
    let shown = 0;
    for (const limit of this.state.limits.values()) {
      let row = this.rows.get(limit.name);
      if (row === undefined) {
        row = new LimitRow(this.template.cloneNode(true), limit.name, this.api);
        this.rows.set(limit.name, row);
      }
      row.place(this.body, last);
      last = row.detail;
      const seen = limit.name.toLowerCase().includes(wanted);
      row.see(seen);
      shown += seen ? 1 : 0;
      if (seen) row.update(limit, this.state);
    }
    const { size } = this.state.limits;
    document.getElementById("filter-field").hidden = size < 8 && !wanted;
    const more = this.state.more_limits ? ` of ${size + this.state.more_limits}, the busiest` : "";
    set(document.getElementById("limits-count"), `${size}${more}`);
    const empty = document.getElementById("limits-empty");
    empty.hidden = shown > 0;
    set(empty, size ? "No limit has such a name." : "No limits are served. [limits.api] in the file makes one, or PUT v1/limits/api.");
  }

  // What moves by itself.
  tick() {
    for (const [name, row] of this.rows) row.tick(this.state.limits.get(name), this.state);
  }

  allow() {
    for (const row of this.rows.values()) row.allow();
  }
}

class LimitRow {
  constructor(fragment, name, api) {
    this.name = name;
    this.api = api;
    this.row = fragment.querySelector(".limit");
    this.detail = fragment.querySelector(".detail");
    this.texts = { ...texts(this.row), ...texts(this.detail) };
    this.svg = this.row.querySelector(".chart svg");
    this.chips = this.row.querySelector(".chips");
    this.meter = this.row.querySelector(".meter");
    this.actions = this.detail.querySelector("[data-actions]");
    const button = this.row.querySelector(".disclose");
    this.detail.id = `detail-${Math.random().toString(36).slice(2)}`;
    button.setAttribute("aria-controls", this.detail.id);
    button.addEventListener("click", () => this.open(button.getAttribute("aria-expanded") !== "true"));
    this.button = button;
  }

  place(body, after) {
    const next = after === null ? body.firstElementChild : after.nextElementSibling;
    if (next !== this.row) body.insertBefore(this.row, next);
    if (this.row.nextElementSibling !== this.detail) this.row.after(this.detail);
  }

  remove() {
    this.row.remove();
    this.detail.remove();
  }

  see(seen) {
    this.row.hidden = !seen;
    this.detail.hidden = !seen || this.button.getAttribute("aria-expanded") !== "true";
  }

  open(wanted) {
    this.button.setAttribute("aria-expanded", String(wanted));
    this.detail.hidden = !wanted;
    if (wanted && !this.actions.hasChildNodes()) {
      this.actions.append(limitActions(this.name, this.api), make("p", { class: "quiet", "data-note": "" }, "This token may look, and not act."));
      this.allow();
    }
  }

  allow() {
    allow(this.actions, this.api);
    for (const note of this.actions.querySelectorAll("[data-note]")) note.hidden = this.api.may("use");
  }

  update(limit, state) {
    const figures = { granted_rate: rate(limit.granted_rate), denied_rate: rate(limit.denied_rate), waiting: count(limit.waiting), permits: count(limit.permits) };
    for (const [name, text] of Object.entries(figures)) {
      set(this.texts[name], text);
      this.texts[name].classList.toggle("zero", text === "0");
    }
    this.texts.denied_rate.classList.toggle("alarm", limit.denied_rate > 0);
    set(this.texts.name, limit.name);
    set(this.texts.limit, limit.unlimited ? "unlimited" : limit.limit);
    if (this.shown !== limit.limit) this.actions.querySelector("[data-action=change]")?.dispatchEvent(new Event("stale"));
    this.shown = limit.limit;
    set(this.texts.peak, draw(this.svg, limit, state.step));
    this.least(limit);
    const keys = limit.ledgers.length < limit.keys ? `${limit.ledgers.length} of ${count(limit.keys)}` : "";
    set(this.texts.keys, keys);
    keyed(this.detail.querySelector("[data-rows=ledgers]"), ledgerLines(limit), (line) => line.id, ledgerRow, updateLedger);
    set(this.texts.holders, limit.permits > limit.holders.length ? `${limit.holders.length} of ${count(limit.permits)}` : "");
    set(this.texts.totals, `${count(limit.granted)} granted and ${count(limit.denied)} denied since the server began`);
    this.tick(limit, state);
  }

  least(limit) {
    const parts = limit.ledgers.flatMap((ledger) => ledger.parts);
    const shares = parts.map((part) => part.remaining / Math.max(1, part.capacity));
    const least = parts[shares.indexOf(Math.min(...shares))];
    this.meter.hidden = least === undefined;
    if (least === undefined) {
      set(this.texts.left, limit.unlimited ? "no limit" : "…");
    } else {
      fillMeter(this.meter, least);
      showLeft(this.texts.left, least);
    }
  }

  tick(limit, state) {
    if (limit === undefined) return;
    const now = state.now();
    const chips = [];
    const paused = limit.paused_until === null ? 0 : limit.paused_until - now;
    if (paused > 0) chips.push(["hot", `paused, ${seconds(paused)}`]);
    if (limit.shadow) chips.push(["", "shadow"]);
    if (limit.source === "api") chips.push(["", "by the API"]);
    keyed(this.chips, chips, ([, text]) => text.replace(/\d+/g, ""), () => make("span", { class: "chip" }), (chip, [kind, text]) => {
      chip.classList.toggle("hot", kind === "hot");
      set(chip, text);
    });
    if (this.detail.hidden) return;
    const holders = limit.holders.length ? limit.holders : [null];
    keyed(this.detail.querySelector("[data-rows=holders]"), holders, (holder) => (holder ? `${holder.key ?? ""} ${holder.expires}` : "none"), pairRow, (row, holder) => {
      set(row.children[0], holder ? holder.key ?? "no key" : "none");
      row.children[0].classList.toggle("none", !holder || holder.key === null);
      set(row.children[1], holder ? seconds(holder.expires - now) : "");
    });
  }
}

// -- ledgers -----------------------------------------------------------------------------------

function ledgerLines(limit) {
  const lines = limit.ledgers.flatMap((ledger) =>
    ledger.parts.map((part, i) => ({ id: `${ledger.key ?? ""}\u0000${i}`, ledger, part, first: i === 0, several: ledger.parts.length > 1 })),
  );
  return lines.length ? lines : [{ id: "none", ledger: null }];
}

function ledgerRow() {
  const meter = make("span", { class: "meter" }, document.createElement("i"));
  return make("tr", {}, make("th", { scope: "row" }), make("td", { class: "figure" }, meter, make("span", { class: "meter-text" })));
}

function updateLedger(row, { ledger, part, several }) {
  const [name, figure] = row.children;
  const [meter, text] = figure.children;
  meter.hidden = ledger === null;
  name.classList.toggle("none", ledger === null || ledger.key === null);
  if (ledger === null) {
    set(name, "none");
    set(text, "");
    return;
  }
  const of = part.metric ?? part.limit;
  set(name, (ledger.key ?? "no key") + (several ? ` · ${of}` : ""));
  fillMeter(meter, part);
  showLeft(text, part);
}

function fillMeter(meter, part) {
  meter.classList.toggle("none", part.remaining === 0);
  meter.firstElementChild.style.width = `${(100 * Math.min(part.remaining, part.capacity)) / Math.max(1, part.capacity)}%`;
}

function showLeft(element, part) {
  const text = `${count(part.remaining)} of ${count(part.capacity)}`;
  if (element.textContent === text) return;
  element.replaceChildren(count(part.remaining), make("span", { class: "of" }, ` of ${count(part.capacity)}`));
}

export function pairRow() {
  return make("tr", {}, make("th", { scope: "row" }), make("td", { class: "when" }));
}
