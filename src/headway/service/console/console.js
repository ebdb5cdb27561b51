// Puts the page together: the stream feeds the state, and the views show it.

import { Api } from "./actions.js";
import { GatesView } from "./gates.js";
import { LimitsView } from "./limits.js";
import { State } from "./state.js";
import { Stream } from "./stream.js";
import { set } from "./text.js";

const TOKEN = "headway-token";
const at = (id) => document.getElementById(id);
const token = () => sessionStorage.getItem(TOKEN) ?? "";

const state = new State();
const api = new Api(token);
const limits = new LimitsView(state, api);
const gates = new GatesView(state, api);

function show() {
  set(at("engine"), state.engine + (state.engine_up ? "" : ", which does not answer"));
  limits.show();
  gates.show();
}

// A link cannot send a token.
function offerLinks(wanted) {
  for (const link of document.querySelectorAll("[data-without-token]")) link.hidden = !wanted;
}

// Said when it has lasted: a screen reader need not hear of every attempt.
let said = "";
function status(kind, text) {
  at("connection").dataset.state = kind;
  if (text !== said) set(at("connection-text"), text);
  said = text;
}

const stream = new Stream("v1/live", token, {
  hello(hello) {
    api.role = hello.role;
    set(at("role"), hello.token ? `${hello.token}, ${hello.role}` : "");
    set(at("version"), `headway ${hello.version}`);
    limits.allow();
    gates.allow();
    offerLinks(!hello.token);
  },
  state(whole) {
    state.whole(whole);
    show();
  },
  change(change) {
    state.change(change);
    show();
  },
  status(kind, text) {
    status(kind, kind === "lost" ? `${text}; trying again` : text);
  },
  refused(problem) {
    status("lost", token() && problem.detail ? problem.detail : "a token is needed");
    offerLinks(false);
    openToken(true);
  },
});

setInterval(() => {
  if (document.hidden || !Number.isFinite(state.ahead)) return;
  limits.tick();
  gates.tick();
}, 500);

// -- the token -----------------------------------------------------------------------------------

function openToken(wanted) {
  at("token").hidden = !wanted;
  at("token-open").setAttribute("aria-expanded", String(wanted));
  if (wanted) at("token-text").focus();
}

at("token-open").addEventListener("click", () => openToken(at("token").hidden));
at("token").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, at("token-text").value.trim());
  at("token-text").value = "";
  openToken(false);
  at("token-open").focus();
  stream.restart();
});
at("token-forget").addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN);
  openToken(false);
  at("token-open").focus();
  stream.restart();
});
