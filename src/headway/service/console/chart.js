// The use of a limit over the last minutes: a step for each bin, granted below and denied on top of it.

import { rate } from "./text.js";

const BINS = 150;
const HEIGHT = 32;

export function draw(svg, limit, step) {
  const { granted_series: granted, denied_series: denied } = limit;
  const sums = granted.map((value, i) => value + denied[i]);
  const most = Math.max(...sums, 1);
  const [below, above] = svg.querySelectorAll("path");
  below.setAttribute("d", area(granted, null, most));
  above.setAttribute("d", area(sums, granted, most));
  const all = (series) => series.reduce((sum, value) => sum + value, 0);
  svg.setAttribute("aria-label", `last 5 minutes: ${all(granted)} granted, ${all(denied)} denied`);
  return all(sums) ? `${rate(Math.max(...sums) / step)}/s` : "";
}

// The area between two series as a path of steps. Runs of nothing are left out.
function area(top, bottom, most) {
  const y = (value) => (HEIGHT - (value / most) * (HEIGHT - 2)).toFixed(1);
  const offset = BINS - top.length;
  let path = "";
  for (let i = 0; i < top.length; i += 1) {
    const base = bottom === null ? 0 : bottom[i];
    if (top[i] > base) path += `M${offset + i} ${y(base)}V${y(top[i])}h.92V${y(base)}z`;
  }
  return path;
}
