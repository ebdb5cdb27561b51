// What can be done by hand: forms that send what they say, and say what came of it.

import { count, make, seconds } from "./text.js";

const ROLES = ["read", "use", "admin"];

export class Api {
  constructor(token) {
    this.token = token;
    this.role = "read";
  }

  may(role) {
    return ROLES.indexOf(this.role) >= ROLES.indexOf(role);
  }

  async call(method, path, body) {
    const headers = {};
    const token = this.token();
    if (token) headers.Authorization = `Bearer ${token}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const options = { method, headers, body: body === undefined ? undefined : JSON.stringify(body) };
    const response = await fetch(path, options);
    const answer = await response.json();
    if (!response.ok) throw new Refused(answer);
    return answer;
  }
}

class Refused extends Error {
  constructor(problem) {
    super(problem.detail ?? problem.title ?? "it was refused");
    this.problem = problem;
  }
}

// Shows of a form's kind only what the role may do.
export function allow(root, api) {
  for (const form of root.querySelectorAll("[data-role]")) form.hidden = !api.may(form.dataset.role);
}

function say(form, text, how = "") {
  const output = form.querySelector("output");
  output.className = how;
  output.textContent = text;
}

async function attempt(form, act) {
  const buttons = [...form.querySelectorAll("button")];
  if (form.dataset.busy) return;
  form.dataset.busy = "yes";
  for (const button of buttons) button.setAttribute("aria-disabled", "true");
  try {
    say(form, ...(await act()));
  } catch (error) {
    say(form, error instanceof Refused ? error.message : "the server cannot be reached", "bad");
  } finally {
    delete form.dataset.busy;
    for (const button of buttons) button.removeAttribute("aria-disabled");
  }
}

function onSubmit(form, act) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(form, act);
  });
}

// -- limits ------------------------------------------------------------------------------------

export function limitActions(name, api) {
  const fragment = document.getElementById("limit-actions").content.cloneNode(true);
  const [take, pause, change] = fragment.querySelectorAll("form");
  const path = `v1/limits/${encodeURIComponent(name)}`;
  const fillCosts = takeForm(take, name, api);
  pauseForm(pause, path, api);
  changeForm(change, path, api, fillCosts);
  for (const form of [take, pause, change]) {
    form.setAttribute("aria-label", `${form.querySelector("h3").textContent}: ${name}`);
  }
  allow(fragment, api);
  return fragment;
}

function takeForm(form, name, api) {
  const end = form.querySelector("[data-end]");
  const held = [];
  onSubmit(form, async () => {
    const body = { limit: name, cost: costOf(form) };
    if (form.elements.key.value) body.key = form.elements.key.value;
    const grant = await api.call("POST", "v1/acquire", body);
    if (grant.permit) held.push(grant.permit);
    end.hidden = held.length === 0;
    if (grant.would_deny) return [`granted; it would be denied if this were no shadow (${grant.would_deny})`, "good"];
    const left = grant.status ? `, ${count(grant.status.remaining)} left` : "";
    const lease = grant.permit ? `, held for ${seconds(grant.expires_in)}` : "";
    return [`granted${left}${lease}`, "good"];
  });
  end.addEventListener("click", () =>
    attempt(form, async () => {
      const permit = held.at(-1);
      try {
        await api.call("POST", `v1/permits/${encodeURIComponent(permit)}/release`, { how: "complete" });
      } catch (error) {
        if (!(error instanceof Refused)) throw error; // it is still held, and can be ended when the server is back
        forget(permit);
        throw error;
      }
      forget(permit);
      return ["ended", "good"];
    }),
  );
  const forget = (permit) => {
    held.splice(held.indexOf(permit), 1);
    if (held.length) return;
    end.hidden = true;
    form.querySelector("[type=submit]").focus();
  };
  // One field, or one for each metric.
  return (config) => {
    const metrics = metricsOf(config).map(([metric]) => metric);
    const known = [...form.querySelectorAll("[data-metric]")].map((input) => input.dataset.metric);
    if (metrics.join() === known.join()) return;
    for (const input of form.querySelectorAll("[data-metric]")) input.closest("label").remove();
    for (const metric of metrics) {
      const input = make("input", { name: "cost", "data-metric": metric, type: "number", min: metric ? "0" : "1", step: "1", inputmode: "numeric" });
      input.value = "1";
      form.querySelector("[type=submit]").before(make("label", { class: "short" }, metric ? `Cost, ${metric}` : "Cost", " ", input));
    }
  };
}

function costOf(form) {
  const inputs = [...form.querySelectorAll("[data-metric]")];
  if (inputs.length === 1 && inputs[0].dataset.metric === "") return Number(inputs[0].value) || 1;
  return Object.fromEntries(inputs.map((input) => [input.dataset.metric, Number(input.value)]));
}

function metricsOf(config) {
  return typeof config.limit === "object" && config.limit ? Object.entries(config.limit) : [["", config.limit ?? ""]];
}

function pauseForm(form, path, api) {
  const pause = (length) => api.call("POST", `${path}/pause`, { seconds: length });
  onSubmit(form, async () => {
    const length = Number(form.elements.seconds.value);
    await pause(length);
    return [`nothing is granted for ${seconds(length)}`, "good"];
  });
  form.querySelector("[data-lift]").addEventListener("click", () =>
    attempt(form, async () => {
      await pause(0);
      return ["the pause is lifted", "good"];
    }),
  );
}

function changeForm(form, path, api, onConfig) {
  const fields = form.querySelector("[data-fields]");
  const button = fields.querySelector("button");
  // One field, or one for each metric, with what the limit is now.
  const fill = (config) => {
    for (const label of [...fields.querySelectorAll("label")]) label.remove();
    onConfig(config);
    for (const [metric, value] of metricsOf(config)) {
      const input = make("input", { name: "limit", "data-metric": metric, autocomplete: "off", spellcheck: "false", required: "", placeholder: "100/minute" });
      input.defaultValue = value;
      button.before(make("label", {}, metric || "Limit", " ", input));
    }
  };
  fill({ limit: "" });
  const load = () => api.call("GET", path).then((info) => fill(info.config), () => undefined);
  load();
  // It was changed elsewhere: what is typed here stays.
  form.addEventListener("stale", () => {
    const typed = [...fields.querySelectorAll("input")].some((input) => input.value !== input.defaultValue);
    if (!typed && !form.dataset.busy) load();
  });
  onSubmit(form, async () => {
    const { config } = await api.call("GET", path);
    const inputs = [...fields.querySelectorAll("input")];
    const metrics = inputs.map((input) => [input.dataset.metric, input.value]);
    const limit = metrics[0][0] === "" ? metrics[0][1] : Object.fromEntries(metrics);
    const { unlimited, ...rest } = config;
    const info = await api.call("PUT", path, { ...rest, limit });
    fill(info.config);
    return [`changed to ${info.limit}; the file still says what it said`, "good"];
  });
}

// -- gates -------------------------------------------------------------------------------------

export function gateActions(form, name, api) {
  form.setAttribute("aria-label", `Submit an event: ${name}`);
  onSubmit(form, async () => {
    const field = form.elements.event;
    const answer = await api.call("POST", `v1/gates/${encodeURIComponent(name)}/events`, { event: field.value });
    field.value = "";
    return [answer.mode === "strict" ? `accepted; published in ${seconds(answer.duration)} unless it is repeated` : "accepted and published", "good"];
  });
  allow(form.parentElement, api);
}
