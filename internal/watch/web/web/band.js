// The tasks as a band above the panels: one bar a task, in as many lanes as ran at a time.

import { h, colour, palette, say } from "./dom.js";
import { dragging, insets, timeTicks } from "./chart.js";
import * as format from "./format.js";

const TALLEST = 14, AXIS = 20;

// prepare reads the times of tasks once.
function prepare(task) {
  return {
    task,
    queued: format.isTime(task.queued) ? Date.parse(task.queued) : null,
    began: Date.parse(task.began),
    end: format.isTime(task.end) ? Date.parse(task.end) : null,
  };
}

// pack gives each task the lowest lane that is free when it begins.
export function pack(bars) {
  const heap = []; // lanes that are free, smallest first
  const ends = []; // [end, lane], smallest end first
  const push = (list, x, less) => {
    list.push(x);
    for (let i = list.length - 1; i > 0;) {
      const p = (i - 1) >> 1;
      if (!less(list[i], list[p])) break;
      [list[i], list[p]] = [list[p], list[i]];
      i = p;
    }
  };
  const pop = (list, less) => {
    const first = list[0], last = list.pop();
    if (list.length) {
      list[0] = last;
      for (let i = 0; ;) {
        let m = i;
        for (const k of [2 * i + 1, 2 * i + 2]) if (k < list.length && less(list[k], list[m])) m = k;
        if (m === i) break;
        [list[i], list[m]] = [list[m], list[i]];
        i = m;
      }
    }
    return first;
  };
  const byEnd = (a, b) => a[0] < b[0], byLane = (a, b) => a < b;
  let lanes = 0;
  for (const bar of bars) {
    while (ends.length && ends[0][0] <= bar.began) push(heap, pop(ends, byEnd)[1], byLane);
    bar.lane = heap.length ? pop(heap, byLane) : lanes++;
    push(ends, [bar.end ?? Infinity, bar.lane], byEnd);
  }
  return lanes;
}

export class Band {
  // events: select(from, to, done), choose(task or null), cursor(time or null).
  constructor(events) {
    this.events = events;
    this.bars = [];
    this.bands = [];
    this.marks = [];
    this.canvas = h("canvas", { tabindex: 0, role: "img", "aria-describedby": "band-keys" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.legend = h("div", { class: "legend" });
    this.element = h("section", { class: "panel band", "aria-label": "Tasks" },
      h("header", {}, h("h2", {}, h("i", { class: "layer", "aria-hidden": "true" }), h("span", { class: "layer-name" }, "tasks")), this.legend),
      h("div", { class: "hold" }, this.canvas, this.tip),
      h("p", { id: "band-keys", class: "unseen" }, "Press comma and full stop to go from task to task, and Enter to open one."));
    dragging(this.canvas, (e) => this.time(e), (a, b, done) => { this.tip.hidden = true; events.select(a, b, done); }, (t, e) => events.choose(this.hit(e)?.task ?? null));
    this.canvas.addEventListener("mousemove", (e) => {
      events.cursor(this.inside(e) ? this.time(e) : null);
      this.hover(e);
    });
    this.canvas.addEventListener("mouseleave", () => { this.tip.hidden = true; events.cursor(null); });
    this.canvas.addEventListener("keydown", (e) => {
      if (e.key !== "," && e.key !== "." && e.key !== "Enter") return;
      e.preventDefault();
      e.stopPropagation();
      const seen = this.bars.filter((b) => b.began < this.to && (b.end ?? Infinity) > this.from);
      if (!seen.length) return;
      let i = seen.indexOf(this.at);
      if (e.key === "Enter") {
        if (i >= 0) events.choose(this.at.task);
        return;
      }
      i = e.key === "." ? (i + 1) % seen.length : (i + seen.length - (i < 0 ? 0 : 1)) % seen.length;
      this.at = seen[i];
      say(this.words(this.at) + `, ${i + 1} of ${seen.length}`);
      this.draw();
    });
  }

  data(tasks) {
    this.bars = tasks.map(prepare).sort((a, b) => a.began - b.began);
    this.at = this.bars.find((b) => b.task.key === this.at?.task.key);
    this.lanes = pack(this.bars);
    const count = new Map();
    for (const b of this.bars) count.set(b.task.step, (count.get(b.task.step) ?? 0) + 1);
    // Steps keep their colours while tasks come and go.
    this.steps ??= [];
    for (const step of [...count.keys()].sort()) if (!this.steps.includes(step)) this.steps.push(step);
    const failed = this.bars.filter((b) => b.end && !b.task.ok).length;
    this.legend.replaceChildren(
      ...this.steps.filter((step) => count.has(step)).slice(0, 6).map((step) => h("span", { class: "value" }, h("i", { class: "block", style: { "--hue": this.colour(step) } }), h("span", { class: "soft" }, step || "no step"), " ", h("b", {}, String(count.get(step))))),
      failed ? h("span", { class: "value" }, h("i", { class: "block failed" }), h("span", { class: "soft" }, "failed"), " ", h("b", {}, String(failed))) : "",
      this.bars.length ? "" : h("span", { class: "soft" }, "no task ran in this window"));
    this.canvas.setAttribute("aria-label", `${this.bars.length} tasks, up to ${this.lanes} at a time` + (failed ? `, ${failed} failed` : ""));
  }

  // add takes tasks that were reported live.
  add(reported) {
    const by = new Map(this.bars.map((b) => [b.task.key, b.task]));
    for (const task of reported) by.set(task.key, task);
    this.data([...by.values()].filter((t) => !format.isTime(t.end) || Date.parse(t.end) > this.from - 60e3));
  }

  colour(step) {
    const colours = palette();
    return colours[this.steps.indexOf(step) % colours.length];
  }

  window(from, to) { this.from = from; this.to = to; this.draw(); }

  highlight(bands, marks) { this.bands = bands; this.marks = marks; this.draw(); }

  cursor(t) { this.line = t; this.draw(); }

  x(t) { return this.left + (t - this.from) / (this.to - this.from) * this.room; }

  time(e) {
    const x = e.clientX - this.canvas.getBoundingClientRect().left;
    return this.from + Math.min(Math.max((x - this.left) / this.room, 0), 1) * (this.to - this.from);
  }

  inside(e) {
    const x = e.clientX - this.canvas.getBoundingClientRect().left;
    return x >= this.left && x <= this.left + this.room;
  }

  hit(e) {
    const box = this.canvas.getBoundingClientRect();
    const lane = Math.floor((e.clientY - box.top) / this.height), t = this.time(e), near = 3 * (this.to - this.from) / this.room;
    let best = null, distance = Infinity;
    for (const b of this.bars) {
      if (Math.abs(b.lane - lane) > (this.height < 4 ? 1 : 0) || b.began - near > t) continue;
      const d = Math.max(b.began - t, t - (b.end ?? Date.now()), 0);
      if (d <= near && d < distance) [best, distance] = [b, d];
    }
    return best;
  }

  words(b) {
    const t = b.task;
    return `${t.name} of ${t.step || "no step"}, ${b.end ? (t.ok ? "succeeded" : "failed") + " after " + format.seconds((b.end - b.began) / 1000) : "runs for " + format.seconds((Date.now() - b.began) / 1000)}`;
  }

  hover(e) {
    const b = this.hit(e);
    this.canvas.style.cursor = b ? "pointer" : "crosshair";
    this.tip.hidden = !b;
    if (!b) return;
    const t = b.task;
    this.tip.replaceChildren(h("b", {}, t.name), h("br"), this.words(b).replace(t.name + " of ", ""), h("br"), h("span", { class: "soft" }, `${format.clock(b.began)}${b.queued && b.began - b.queued > 500 ? ", waited " + format.seconds((b.began - b.queued) / 1000) : ""}${t.start ? ", start " + t.start : ""}`));
    const box = this.canvas.getBoundingClientRect();
    this.tip.style.left = Math.min(e.clientX - box.left + 12, box.width - this.tip.offsetWidth - 4) + "px";
    this.tip.style.top = e.clientY - box.top + 16 + "px";
  }

  draw() {
    if (!this.from || !this.canvas.isConnected) return;
    const { left, right } = insets();
    const wide = this.canvas.parentElement.clientWidth, dpr = devicePixelRatio || 1;
    const lanes = Math.max(this.lanes ?? 1, 1);
    const tallest = innerWidth < 600 ? 130 : 190;
    this.height = Math.min(TALLEST, Math.max(tallest / lanes, 0.25));
    const body = Math.max(Math.ceil(lanes * this.height), 28), high = body + AXIS;
    if (this.canvas.width !== Math.round(wide * dpr) || this.canvas.height !== Math.round(high * dpr)) {
      this.canvas.width = Math.round(wide * dpr);
      this.canvas.height = Math.round(high * dpr);
      this.canvas.style.height = high + "px";
    }
    this.left = left;
    this.room = wide - left - right;
    const c = this.canvas.getContext("2d");
    c.setTransform(dpr, 0, 0, dpr, 0, 0);
    c.clearRect(0, 0, wide, high);
    c.fillStyle = colour("lane");
    c.fillRect(left, 0, this.room, body);

    c.save();
    c.beginPath();
    c.rect(left, 0, this.room, high);
    c.clip();
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    for (const [t] of timeTicks(this.from, this.to, this.room)) {
      c.fillStyle = colour("grid");
      c.fillRect(Math.round(this.x(t)), 0, 1, body);
    }
    const gap = this.height >= 5 ? 1.5 : this.height >= 2.5 ? 0.5 : 0;
    const now = Date.now(), bad = colour("bad"), ink = colour("ink");
    const fills = new Map(this.steps?.map((step) => [step, this.colour(step)]));
    for (const b of this.bars) {
      const end = b.end ?? Math.max(now, b.began);
      if (b.began > this.to || end < this.from) continue;
      const x = this.x(b.began), w = Math.max(this.x(end) - x, 0.8), y = b.lane * this.height, tall = this.height - gap;
      c.fillStyle = fills.get(b.task.step);
      c.globalAlpha = b.end ? 1 : 0.75;
      c.fillRect(x, y, w > 3 && gap ? w - 0.75 : w, tall);
      c.globalAlpha = 1;
      if (b.end && !b.task.ok) { // not by colour alone: a dark end, and a cross where there is room
        c.fillStyle = bad;
        c.fillRect(x + w - Math.min(4, w), y, Math.min(4, w), tall);
        if (w > 10 && tall > 6) {
          c.strokeStyle = bad;
          c.lineWidth = 1.5;
          c.strokeRect(x + 0.75, y + 0.75, w - 2.25, tall - 1.5);
        }
      }
      if (tall >= 11 && w > 46) {
        c.fillStyle = ink;
        const seen = Math.max(x, left);
        c.save();
        c.beginPath();
        c.rect(seen, y, x + w - seen - 3, tall);
        c.clip();
        if (x + w - seen > 40) c.fillText(b.task.name, seen + 4, y + tall / 2 + 0.5);
        c.restore();
      }
    }
    if (this.at) {
      c.strokeStyle = colour("text");
      c.lineWidth = 2;
      const y = this.at.lane * this.height;
      c.strokeRect(this.x(this.at.began) - 1, Math.max(y - 1, 1), Math.max(this.x(this.at.end ?? now) - this.x(this.at.began), 2) + 2, Math.max(this.height, 4));
    }
    for (const [a, b] of this.bands) { // what was not chosen fades
      const x = Math.max(this.x(a), left), y = Math.min(this.x(b), left + this.room);
      c.fillStyle = colour("veil");
      c.fillRect(left, 0, x - left, body);
      c.fillRect(y, 0, left + this.room - y, body);
      c.fillStyle = colour("accent");
      c.fillRect(x, 0, 1, body);
      c.fillRect(y - 1, 0, 1, body);
    }
    c.strokeStyle = colour("mark");
    c.lineWidth = 2;
    c.setLineDash([3, 3]);
    for (const t of this.marks) { c.beginPath(); c.moveTo(this.x(t), 0); c.lineTo(this.x(t), body); c.stroke(); }
    c.setLineDash([]);
    if (this.line !== null && this.line !== undefined) { c.fillStyle = colour("text"); c.fillRect(Math.round(this.x(this.line)), 0, 1, body); }
    c.fillStyle = colour("soft");
    c.textAlign = "center";
    for (const [t, label] of timeTicks(this.from, this.to, this.room)) {
      const x = this.x(t);
      if (x > left + 20 && x < left + this.room - 20) c.fillText(label, x, body + AXIS / 2 + 2);
    }
    c.restore();
  }
}
