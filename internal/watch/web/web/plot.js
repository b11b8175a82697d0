// Plain drawings in SVG, for pages whose axis is not the common one of time.

import { h, s } from "./dom.js";
import { timeTicks } from "./chart.js";
import * as format from "./format.js";

// On a telephone a drawing is narrower, so that its words are as large.
let W = 960, LEFT = 58;
const H = 240, BOTTOM = 24, TOP = 8, RIGHT = 10;

// nice gives round values from 0 to at least top.
export function nice(top, n = 4) {
  if (!(top > 0)) return [0, 1];
  const raw = top / n, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((m) => m * power >= raw * 0.999) * power;
  const list = [];
  for (let v = 0; v < top + step * 0.999; v += step) list.push(v);
  return list;
}

// niceTime gives round moments from 0 to at least top, in seconds.
export function niceTime(top, n = 6) {
  const step = [1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000].find((v) => v * n >= top) ?? 31536000;
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => i * step);
}

function frame(label, ticks, write, high = H) {
  [W, LEFT] = innerWidth < 600 ? [420, 48] : [960, 58];
  const top = ticks.at(-1);
  const y = (v) => TOP + (high - BOTTOM - TOP) * (1 - v / top);
  const svg = s("svg", { viewBox: `0 0 ${W} ${high}`, class: "chart", role: "img", "aria-label": label },
    ticks.map((v) => [s("line", { x1: LEFT, x2: W - RIGHT, y1: y(v), y2: y(v) }), s("text", { x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, write(v))]));
  return { svg, y };
}

const shapes = [
  (x, y) => s("circle", { cx: x, cy: y, r: 3.5 }),
  (x, y) => s("rect", { x: x - 3.2, y: y - 3.2, width: 6.4, height: 6.4 }),
  (x, y) => s("path", { d: `M${x} ${y - 4.5}l4 7.500h-8z` }),
  (x, y) => s("path", { d: `M${x} ${y - 4.5}l4.500 4.500-4.500 4.500-4.500-4.500z` }),
  (x, y) => s("path", { d: `M${x} ${y + 4.5}l4-7.500h-8z` }),
];

// scatter draws points over time: {x in ms, y, colour, shape, title}.
export function scatter(points, { label, unit }) {
  if (!points.length) return h("p", { class: "soft" }, "There is nothing to draw.");
  const ticks = nice(Math.max(...points.map((p) => p.y)));
  const { svg, y } = frame(label, ticks, (v) => format.number(v));
  let from = Math.min(...points.map((p) => p.x)), to = Math.max(...points.map((p) => p.x));
  const margin = Math.max((to - from) * 0.02, 1000);
  from -= margin;
  to += margin;
  const x = (t) => LEFT + (t - from) / (to - from) * (W - LEFT - RIGHT);
  for (const [t, text] of timeTicks(from, to, W - LEFT - RIGHT)) if (x(t) > LEFT + 24 && x(t) < W - 40) svg.append(s("text", { x: x(t), y: H - 6, "text-anchor": "middle" }, text));
  for (const p of points) {
    const dot = shapes[p.shape % shapes.length](x(p.x), y(p.y));
    dot.style.fill = p.colour;
    dot.append(s("title", {}, p.title));
    svg.append(dot);
  }
  return h("figure", {}, h("figcaption", { class: "soft" }, unit), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, svg));
}

// curves draws lines: {name, colour, x: [], y: []}; writeX and writeY write the ticks.
export function curves(list, { label, writeX, writeY, top, ticksX, scaleX = (v) => v }) {
  const ticks = nice(top ?? Math.max(...list.flatMap((l) => l.y), 0));
  const { svg, y } = frame(label, ticks, writeY);
  const end = Math.max(...list.map((l) => scaleX(l.x.at(-1) ?? 0)), 1e-9);
  const x = (v) => LEFT + scaleX(v) / end * (W - LEFT - RIGHT);
  const marks = ticksX ?? niceTime(Math.max(...list.map((l) => l.x.at(-1) ?? 0)));
  let last = -Infinity;
  for (const v of marks) {
    if (x(v) > W - RIGHT + 1 || x(v) - last < 66) continue;
    last = x(v);
    svg.append(s("text", { x: Math.min(x(v), W - RIGHT), y: H - 6, "text-anchor": x(v) > W - 60 ? "end" : x(v) < LEFT + 20 ? "start" : "middle" }, writeX(v)));
  }
  list.forEach((l, i) => {
    const line = s("polyline", { fill: "none", points: l.x.map((v, k) => `${x(v).toFixed(1)},${y(Math.min(l.y[k], ticks.at(-1))).toFixed(1)}`).join(" ") }, s("title", {}, l.name));
    line.style.stroke = l.colour;
    if (i >= 1) line.style.strokeDasharray = ["", "7 3", "2 3", "9 3 2 3", "4 2"][i % 5];
    svg.append(line);
  });
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, svg);
}

// gantt draws jobs as bars as high as their cores; where a bar stands is chosen here: the
// lowest cores that are free.
export function gantt(jobs, { cores, label, colourOf, writeX }) {
  const high = 320;
  const from = jobs[0]?.start ?? 0, to = Math.max(...jobs.map((j) => j.end), from + 1);
  const { svg, y } = frame(label, nice(cores), (v) => format.number(v), high);
  const x = (t) => LEFT + (t - from) / (to - from) * (W - LEFT - RIGHT);
  let free = [[0, cores]];
  const running = [];
  for (const j of jobs) {
    for (let i = running.length - 1; i >= 0; i--) {
      if (running[i].end > j.start) continue;
      free.push(...running[i].parts);
      running.splice(i, 1);
    }
    free.sort((a, b) => a[0] - b[0]);
    const joined = [];
    for (const f of free) {
      if (joined.length && joined.at(-1)[1] >= f[0]) joined.at(-1)[1] = Math.max(joined.at(-1)[1], f[1]);
      else joined.push([...f]);
    }
    free = joined;
    const parts = [];
    for (let wanted = j.cores; wanted > 0 && free.length;) {
      const f = free[0], n = Math.min(wanted, f[1] - f[0]);
      parts.push([f[0], f[0] + n]);
      f[0] += n;
      wanted -= n;
      if (f[0] >= f[1]) free.shift();
    }
    running.push({ end: j.end, parts });
    for (const [a, b] of parts) {
      const rect = s("rect", { x: x(j.start).toFixed(1), y: y(b).toFixed(2), width: Math.max(x(j.end) - x(j.start) - 0.3, 0.6).toFixed(1), height: Math.max(y(a) - y(b) - (y(a) - y(b) > 2 ? 0.4 : 0), 0.3).toFixed(2), class: j.wait > 0 ? "waited" : "" },
        s("title", {}, `job ${j.job} of ${j.user}: ${j.cores} cores, waited ${format.seconds(j.wait)}, ran ${format.seconds(j.end - j.start)}`));
      rect.style.fill = colourOf(j);
      svg.append(rect);
    }
  }
  svg.append(s("text", { x: LEFT, y: high - 6 }, writeX(from)), s("text", { x: W - RIGHT, y: high - 6, "text-anchor": "end" }, writeX(to)));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, svg);
}
