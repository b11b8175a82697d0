// A panel: the series of one name on the common axis of time.

import uPlot from "./vendor/uplot.js";
import { h, colour, palette, icon, icons } from "./dom.js";
import * as format from "./format.js";

// The room beside the plots, the same for all of them and for the tasks.
export function insets() { return innerWidth < 600 ? { left: 44, right: 6 } : { left: 58, right: 12 }; }

const MOST_LINES = 60;

// ticks of time: a round step so that labels have room.
const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

export function timeTicks(from, to, room) {
  const step = (steps.find((s) => s * 1000 * room / (to - from) >= 74) ?? 2592000) * 1000;
  const zone = new Date(from).getTimezoneOffset() * 60000;
  const list = [];
  for (let t = Math.ceil((from - zone) / step) * step + zone; t < to; t += step) {
    list.push([t, step >= 86400e3 || new Date(t).getHours() + new Date(t).getMinutes() + new Date(t).getSeconds() === 0 ? format.day(t) : format.clock(t, step < 60000)]);
  }
  return list;
}

// dragging has an element choose stretches of time: select(from, to, done) while a pointer
// is dragged, and click(time, event) where it is not. time(event) is the moment under it.
export function dragging(element, time, select, click) {
  let start = null, moved = false;
  element.style.touchAction = "pan-y";
  element.addEventListener("pointerdown", (e) => {
    if (e.button !== 0) return;
    start = { x: e.clientX, t: time(e) };
    moved = false;
  });
  element.addEventListener("pointermove", (e) => {
    if (!start) return;
    if (!moved && Math.abs(e.clientX - start.x) > 4) {
      moved = true;
      element.setPointerCapture(e.pointerId);
    }
    if (moved) select(Math.min(start.t, time(e)), Math.max(start.t, time(e)), false);
  });
  const end = (e) => {
    if (!start) return;
    const { t } = start;
    start = null;
    if (e.type === "pointercancel") return;
    if (moved) select(Math.min(t, time(e)), Math.max(t, time(e)), true);
    else click(time(e), e);
  };
  element.addEventListener("pointerup", end);
  element.addEventListener("pointercancel", end);
}

// identity is a series' name and labels as one text.
export function identity(name, labels) {
  return name + JSON.stringify(Object.entries(labels ?? {}).sort(([a], [b]) => (a < b ? -1 : 1)));
}

// selector is a series as the interface takes it: name{key="value",...}.
export function selector(name, labels) {
  const quoted = (v) => '"' + v.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n") + '"';
  const list = Object.entries(labels ?? {}).sort(([a], [b]) => (a < b ? -1 : 1)).map(([k, v]) => k + "=" + quoted(v));
  return list.length ? `${name}{${list.join(",")}}` : name;
}

// short labels: only what tells the series of a panel apart.
function shortLabels(list) {
  const keys = new Set(list.flatMap((x) => Object.keys(x.labels ?? {})));
  const differing = [...keys].filter((k) => new Set(list.map((x) => x.labels?.[k])).size > 1);
  const same = [...keys].filter((k) => !differing.includes(k) && k !== "node").map((k) => list[0].labels[k]);
  return {
    names: list.map((x) => differing.map((k) => x.labels?.[k]).filter(Boolean).join(" ") || same.join(" ") || "all"),
    common: list.length > 1 ? same.join(" ") : "",
  };
}

// align puts series of different moments on one axis. uPlot takes undefined for "not
// sampled here" and null for a gap.
function align(list) {
  const times = new Set();
  for (const x of list) for (const p of x.points) times.add(p[0]);
  const xs = [...times].sort((a, b) => a - b);
  const at = new Map(xs.map((t, i) => [t, i]));
  const columns = list.map((x) => {
    const column = new Array(xs.length);
    const p = x.points;
    let usual = Infinity;
    for (let i = 1; i < p.length; i++) usual = Math.min(usual, p[i][0] - p[i - 1][0]);
    for (let i = 0; i < p.length; i++) {
      const k = at.get(p[i][0]);
      column[k] = p[i][2];
      if (i && p[i][0] - p[i - 1][0] > 3.5 * Math.max(usual, x.step)) {
        const between = at.get(p[i - 1][0]) + 1;
        if (between < k) column[between] = null;
      }
    }
    return column;
  });
  return [xs.map((t) => t / 1000), ...columns];
}

export class Panel {
  // events: select(from, to, done), click(), cursor(time or null), close().
  constructor(name, events) {
    this.name = name;
    this.events = events;
    this.list = [];
    this.marks = [];
    this.shown = null; // identity of the series that stands out
    const [layer, ...quantity] = name.split(".");
    this.title = `${layer} · ${quantity.join(".").replaceAll("_", " ")}`;
    this.values = h("div", { class: "values" });
    this.unit = h("span", { class: "soft unit" });
    this.plot = h("div", { class: "plot", role: "img" });
    this.element = h("section", { class: "panel layer-" + layer, "aria-label": this.title },
      h("header", {}, h("h2", {}, h("i", { class: "layer", "aria-hidden": "true" }), h("span", { class: "layer-name" }, layer), " ", quantity.join(".").replaceAll("_", " "), " ", this.unit), this.values,
        h("button", { class: "quiet small", "aria-label": "Remove the panel " + this.title, title: "Remove this panel", onclick: () => events.close() }, icon(icons.close))),
      this.plot);
  }

  destroy() { this.u?.destroy(); this.u = null; }

  // data takes the answer of the server and draws it.
  data(list, from, to) {
    // Those that were highest come first, and what is drawn faintly comes last.
    for (const x of list) {
      x.id ??= identity(x.name, x.labels);
      x.top = 0;
      for (const p of x.points) if (Number.isFinite(p[3])) x.top = Math.max(x.top, Math.abs(p[3]));
    }
    list.sort((a, b) => b.top - a.top || (a.id < b.id ? -1 : 1));
    // A series keeps its colour while it is in sight.
    this.colours ??= new Map();
    const shown = list.find((x) => x.id === this.shown);
    if (shown) { list.splice(list.indexOf(shown), 1); list.unshift(shown); }
    this.hidden = Math.max(0, list.length - MOST_LINES);
    this.list = list.slice(0, MOST_LINES);
    this.labels = shortLabels(this.list.length ? this.list : [{ labels: {} }]);
    const unit = list[0]?.unit ?? "count";
    this.kind = unit;
    let low = 0, high = 0;
    for (const x of this.list) for (const p of x.points) { if (p[1] < low) low = p[1]; if (p[3] > high) high = p[3]; }
    this.range = [low, unit === "ratio" && high > 0.4 && high <= 1.001 ? 1 : high * 1.08 || 1];
    this.columns = align(this.list);
    this.build();
    this.window(from, to);
  }

  style(i) {
    const colours = palette(), x = this.list[i];
    const faint = i >= colours.length * 2;
    return { stroke: faint ? colour("faint") : colours[i % colours.length], width: x.id === this.shown ? 2.5 : faint ? 0.75 : 1.5, dash: !faint && i >= colours.length ? [5, 3] : undefined };
  }

  build() {
    this.destroy();
    const { left, right } = insets();
    const events = this.events;
    const unitName = { name: "" };
    this.plot.setAttribute("aria-label", this.describe());
    this.u = new uPlot({
      width: Math.max(this.plot.clientWidth || this.element.clientWidth, 120),
      height: (innerWidth < 600 ? 92 : 104) + (this.last ? 18 : 0),
      padding: [6, right, 4, 0],
      legend: { show: false },
      ms: 1e-3,
      cursor: { drag: { x: false, y: false }, points: { size: 6 }, y: false },
      scales: { x: { time: true, auto: false, range: (u, a, b) => [a, b] }, y: { auto: true, range: () => this.range } },
      axes: [
        { size: this.last ? 22 : 4, gap: 4, ticks: { show: false }, stroke: () => colour("soft"), font: "11px system-ui, sans-serif", grid: { stroke: () => colour("grid"), width: 1 },
          splits: (u, axis, min, max) => timeTicks(min * 1000, max * 1000, u.bbox.width / devicePixelRatio).map(([t]) => t / 1000),
          values: (u) => (this.last ? timeTicks(u.scales.x.min * 1000, u.scales.x.max * 1000, u.bbox.width / devicePixelRatio).map(([, label]) => label) : []) },
        { size: left, gap: 6, ticks: { show: false }, stroke: () => colour("soft"), font: "11px system-ui, sans-serif", space: 26,
          grid: { stroke: () => colour("grid"), width: 1 },
          values: (u, splits) => {
            const a = format.axis(splits, this.kind);
            unitName.name = a.name;
            this.unit.textContent = a.name;
            return a.labels;
          } },
      ],
      series: [{}, ...this.list.map((x, i) => ({ label: this.labels.names[i], ...this.style(i), points: { show: x.points.length < 3 }, spanGaps: false }))],
      hooks: {
        setCursor: [(u) => {
          if (this.moving) return;
          events.cursor(u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") * 1000 : null);
        }],
        drawClear: [(u) => this.ground(u)],
        draw: [(u) => this.over(u)],
      },
    }, this.columns, this.plot);
    dragging(this.u.over, (e) => this.u.posToVal(e.clientX - this.u.over.getBoundingClientRect().left, "x") * 1000, events.select, (t) => events.click(t));
  }

  describe() {
    if (!this.list.length) return this.title + ": nothing was recorded in this window";
    const x = this.list[0];
    return `${this.title}, ${this.list.length + this.hidden} series; the highest is ${this.labels.names[0]} with ${format.value(x.top, x.unit)}`;
  }

  window(from, to) {
    if (!this.u) return;
    this.u.setScale("x", { min: from / 1000, max: to / 1000 });
  }

  // cursor moves the line, without telling that it was moved.
  cursor(t) {
    if (this.u) {
      this.moving = true;
      this.u.setCursor(t === null ? { left: -10, top: -10 } : { left: this.u.valToPos(t / 1000, "x"), top: 10 });
      this.moving = false;
    }
    this.readout(t);
  }

  // readout shows values at a moment, or the last ones.
  readout(t) {
    if (!this.u) return;
    const room = innerWidth < 600 ? 2 : 4;
    const { min, max } = this.u.scales.x;
    const last = (t ?? max * 1000) / 1000;
    const parts = [];
    for (let i = 0; i < this.list.length && parts.length < room; i++) {
      const points = this.list[i].points;
      let a = 0, b = points.length;
      while (a < b) { const m = (a + b) >> 1; if (points[m][0] / 1000 <= last) a = m + 1; else b = m; }
      const p = points[a - 1];
      const old = Math.max(this.list[i].step ?? 0, 1000) * 12;
      if (!p || last * 1000 - p[0] > old || p[0] / 1000 < min - 60) continue;
      const style = this.style(i);
      parts.push(h("span", { class: "value" + (style.dash ? " dashed" : "") }, h("i", { style: { "--hue": style.stroke } }), h("span", { class: "soft" }, this.labels.names[i]), " ", h("b", {}, format.value(p[2], this.kind))));
    }
    const rest = this.list.length + this.hidden - parts.length;
    if (rest > 0 && parts.length) parts.push(h("span", { class: "soft more" }, `+${rest}`));
    this.values.replaceChildren(...(parts.length ? parts : [h("span", { class: "soft" }, this.list.length ? "no value here" : "nothing recorded in this window")]));
  }

  ground(u) {
    const { ctx } = u, { top, height } = u.bbox;
    for (const [from, to] of this.bands ?? []) {
      const a = u.valToPos(Math.max(from / 1000, u.scales.x.min), "x", true), b = u.valToPos(Math.min(to / 1000, u.scales.x.max), "x", true);
      if (b <= a) continue;
      ctx.save();
      ctx.fillStyle = colour("select");
      ctx.fillRect(a, top, b - a, height);
      ctx.fillStyle = colour("accent");
      ctx.fillRect(a, top, devicePixelRatio, height);
      ctx.fillRect(b - devicePixelRatio, top, devicePixelRatio, height);
      ctx.restore();
    }
  }

  over(u) {
    const { ctx } = u, { top, height } = u.bbox;
    for (const t of this.marks) {
      const x = u.valToPos(t / 1000, "x", true);
      if (t / 1000 < u.scales.x.min || t / 1000 > u.scales.x.max) continue;
      ctx.save();
      ctx.strokeStyle = colour("mark");
      ctx.lineWidth = 1.5 * devicePixelRatio;
      ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      ctx.restore();
    }
  }

  highlight(bands, marks) {
    this.bands = bands;
    this.marks = marks;
    this.u?.redraw(false);
  }

  // focus lets one series stand out.
  focus(id) {
    this.shown = id;
    if (this.list.length) {
      const { min, max } = this.u.scales.x;
      this.data([...this.list], min * 1000, max * 1000);
    }
  }

  // add appends values that came live; values: Map from identity to value.
  add(t, values, from) {
    let any = false;
    for (const x of this.list) {
      const v = values.get(x.id);
      if (v === undefined) continue;
      const last = x.points.at(-1);
      if (last && t <= last[0]) continue;
      x.points.push([t, v, v, v]);
      while (x.points.length && x.points[0][0] < from - 60e3) x.points.shift();
      if (v > this.range[1]) this.range = [this.range[0], this.kind === "ratio" && v <= 1.001 ? 1 : v * 1.15];
      if (v < this.range[0]) this.range = [v * 1.15, this.range[1]];
      any = true;
    }
    if (any) this.dirty = true;
  }

  // draw shows what was added.
  draw(from, to) {
    if (!this.u) return;
    if (this.dirty) {
      this.dirty = false;
      this.columns = align(this.list);
      this.u.setData(this.columns, false);
    }
    this.window(from, to);
  }

  resize() {
    if (this.u) this.u.setSize({ width: Math.max(this.plot.clientWidth, 120), height: this.u.height });
  }
}
