// Numbers and times as they are read, and the few ways in which the page touches the document.

export function count(value) {
  if (value >= 1e6) return short(value / 1e6) + "M";
  if (value >= 1e4) return short(value / 1e3) + "k";
  return String(value);
}

function short(value) {
  return String(Number(value.toFixed(value < 100 ? 1 : 0)));
}

export function rate(value) {
  if (value === 0) return "0";
  if (value < 10) return value.toFixed(value < 1 ? 2 : 1);
  return count(Math.round(value));
}

export function seconds(value) {
  const left = Math.max(0, Math.ceil(value - 0.05));
  if (left < 100) return `${left} s`;
  if (left < 6000) return both(Math.floor(left / 60), "min", left % 60, "s");
  return both(Math.floor(left / 3600), "h", Math.floor((left % 3600) / 60), "min");
}

function both(large, unit, small, smallUnit) {
  return small ? `${large} ${unit} ${small} ${smallUnit}` : `${large} ${unit}`;
}

export function ago(value) {
  return value < 1 ? "now" : `${seconds(value)} ago`;
}

// Sets what is shown only where it differs: a screen reader and a selection are left in peace.
export function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// The elements that a template's copy marks with data-text, by that name.
export function texts(root) {
  const found = {};
  for (const element of root.querySelectorAll("[data-text]")) found[element.dataset.text] = element;
  return found;
}

// Makes the children of `parent` one for each item, in order; those of a known key stay the elements they were.
export function keyed(parent, items, keyOf, build, update) {
  const known = new Map();
  for (const child of [...parent.children]) known.set(child.dataset.key, child);
  const uses = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const base = keyOf(item);
    const number = (uses.get(base) ?? 0) + 1;
    uses.set(base, number);
    const key = number > 1 ? `${base}\u0000${number}` : base;
    let element = known.get(key);
    if (element === undefined) {
      element = build(item);
      element.dataset.key = key;
    }
    known.delete(key);
    update(element, item);
    if (element !== place) parent.insertBefore(element, place);
    else place = place.nextElementSibling;
  }
  for (const element of known.values()) element.remove();
}
