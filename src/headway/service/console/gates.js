// Gates: a card for each, with pending events counting down.

import { allow, gateActions } from "./actions.js";
import { pairRow } from "./limits.js";
import { ago, count, keyed, make, seconds, set, texts } from "./text.js";

export class GatesView {
  constructor(state, api) {
    this.state = state;
    this.api = api;
    this.root = document.getElementById("gates");
    this.template = document.getElementById("gate-card").content;
  }

  show() {
    keyed(this.root, [...this.state.gates.values()], (gate) => gate.name, (gate) => this.build(gate), (card, gate) => this.update(card, gate));
    const { size } = this.state.gates;
    set(document.getElementById("gates-count"), String(size + this.state.more_gates));
    document.getElementById("gates-empty").hidden = size > 0;
    this.tick();
  }

  build(gate) {
    const card = this.template.cloneNode(true).querySelector(".gate");
    // Where events are published at once, none is pending.
    card.classList.toggle("at-once", gate.mode !== "strict");
    card.querySelector("[data-rows=upcoming]").closest(".pane").hidden = gate.mode !== "strict";
    const heading = card.querySelector("h3");
    heading.id = `gate-${Math.random().toString(36).slice(2)}`;
    card.setAttribute("aria-labelledby", heading.id);
    gateActions(card.querySelector("form"), gate.name, this.api);
    return card;
  }

  update(card, gate) {
    const found = texts(card);
    set(found.name, gate.name);
    set(found.terms, `${gate.mode}, ${seconds(gate.duration)}`);
    for (const name of ["pending", "published", "invalidated", "subscribers"]) set(found[name], count(gate[name]));
    set(found.more, gate.pending > gate.upcoming.length ? `the first ${gate.upcoming.length} of ${count(gate.pending)}` : "");
    keyed(card.querySelector(".chips"), gate.readable ? [] : ["the engine does not answer"], (text) => text, (text) => make("span", { class: "chip hot" }, text), () => undefined);
  }

  allow() {
    for (const card of this.root.children) allow(card, this.api);
  }

  // The countdowns.
  tick() {
    const now = this.state.now();
    for (const card of this.root.children) {
      const gate = this.state.gates.get(card.dataset.key);
      if (gate) this.count(card, gate, now);
    }
  }

  count(card, gate, now) {
    const upcoming = gate.upcoming.length ? gate.upcoming : [null];
    keyed(card.querySelector("[data-rows=upcoming]"), upcoming, (one) => one?.id ?? "none", pairRow, (row, one) => {
      row.classList.toggle("due", one !== null);
      row.children[0].classList.toggle("none", one === null);
      set(row.children[0], one ? one.event : "nothing");
      set(row.children[1], one ? seconds(one.due - now) : "");
      if (one) row.style.setProperty("--part", Math.min(1, Math.max(0, (one.due - now) / gate.duration)).toFixed(3));
    });
    const recent = gate.recent.length ? gate.recent : [null];
    keyed(card.querySelector("[data-rows=recent]"), recent, (one) => (one ? `${one.id} ${one.status}` : "none"), happenedRow, (row, one) => {
      set(row.children[0], one ? one.event : "nothing while this page watched");
      row.children[0].classList.toggle("none", one === null);
      row.children[1].dataset.status = one?.status ?? "";
      set(row.children[1], one ? one.status.toLowerCase() : "");
      set(row.children[2], one ? ago(now - one.time) : "");
    });
  }
}

function happenedRow() {
  return make("tr", {}, make("th", { scope: "row" }), make("td", { class: "status" }), make("td", { class: "when" }));
}
