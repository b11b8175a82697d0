// The controls of time: live or playback, how long a window, which day, where in it.

import { h, icon, icons, colour, say } from "./dom.js";
import { view, set, width, onChange } from "./view.js";
import { get } from "./api.js";
import { insets, dragging } from "./chart.js";
import * as format from "./format.js";

const lengths = [[60, "1 min"], [300, "5 min"], [900, "15 min"], [3600, "1 h"], [6 * 3600, "6 h"], [86400, "1 day"], [7 * 86400, "7 days"], [30 * 86400, "30 days"]];
const speeds = [1, 10, 60, 300, 1800];

let playing = 0, speed = 60, dayStart = 0, dayEnd = 0, frame = 0;
let bar, strip, slider, label, pointed, liveButton, playButton, speedSelect, lengthSelect, dateInput, note;
let activity = [];

function midnight(ms, days = 0) {
  const d = new Date(ms);
  return new Date(d.getFullYear(), d.getMonth(), d.getDate() + days).getTime();
}

export function goLive() {
  stop();
  const now = Date.now();
  set({ live: true, from: now - width(), to: now, selection: null, explain: false });
  say("live");
}

// moveTo shows the window that ends at a moment.
export function moveTo(to) {
  const now = Date.now();
  const end = Math.min(to, now);
  set({ live: false, from: end - width(), to: end });
}

export function shift(part) {
  stop();
  moveTo(view.to + part * width());
  say(format.span(view.from, view.to));
}

export function zoom(factor, around = (view.from + view.to) / 2) {
  const w = Math.min(Math.max(width() * factor, 10e3), 90 * 86400e3);
  if (view.live) {
    const now = Date.now();
    set({ from: now - w, to: now });
  } else {
    const from = around - (around - view.from) * w / width();
    const to = Math.min(from + w, Date.now());
    set({ from: to - w, to });
  }
  say(format.seconds(width() / 1000));
}

export function show(from, to) {
  stop();
  set({ live: false, from, to: Math.min(to, Date.now()) });
}

export function stop() {
  playing = 0;
  cancelAnimationFrame(frame);
  update();
}

export function toggle() {
  if (playing) { stop(); say("paused"); return; }
  if (view.live || view.to >= Date.now() - 1000) {
    // Live is already at the end: play begins a window earlier.
    set({ live: false, from: view.from - width(), to: view.to - width() });
  }
  playing = performance.now();
  // With reduced motion the picture moves once a second instead of all the time.
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  let shown = playing;
  const step = (now) => {
    if (!playing) return;
    frame = requestAnimationFrame(step);
    if (now - shown < (calm ? 1000 : 60)) return;
    const to = view.to + (now - shown) * speed;
    shown = now;
    if (to >= Date.now()) { goLive(); return; }
    moveTo(to);
  };
  frame = requestAnimationFrame(step);
  say(`playing, ${speed} times as fast`);
  update();
}

export function build() {
  label = h("output", { class: "window", "aria-live": "off" });
  pointed = h("span", { class: "pointed", "aria-hidden": "true" });
  liveButton = h("button", { class: "live", "aria-pressed": "false", title: "Follow what happens now (L)", onclick: goLive }, h("i", { class: "dot", "aria-hidden": "true" }), "Live");
  lengthSelect = h("select", { "aria-label": "Length of the window", onchange: () => { const w = lengthSelect.value * 1000; if (w) zoom(w / width(), view.to); } });
  playButton = h("button", { class: "square", onclick: toggle });
  speedSelect = h("select", { "aria-label": "Speed of playback", onchange: () => { speed = Number(speedSelect.value); } }, speeds.map((s) => h("option", { value: s, selected: s === speed }, "×" + s)));
  dateInput = h("input", { type: "date", "aria-label": "Day", onchange: () => {
    const t = new Date(dateInput.value + "T00:00").getTime();
    if (Number.isNaN(t)) return;
    stop();
    moveTo(Math.min(midnight(t) + (view.to - midnight(view.to)), midnight(t, 1)));
  } });
  slider = h("input", { type: "range", min: 0, step: 1, "aria-label": "Moment of the day", oninput: () => {
    if (playing) stop();
    moveTo(dayStart + Number(slider.value) * 1000);
  } });
  strip = h("canvas", { "aria-hidden": "true" });
  note = h("span", { class: "soft note", role: "status" });
  bar = h("div", { class: "timebar", role: "group", "aria-label": "Time" },
    h("div", { class: "row" },
      liveButton, lengthSelect,
      h("span", { class: "group" },
        h("button", { class: "square", "aria-label": "Earlier", title: "Earlier ([)", onclick: () => shift(-0.5) }, icon(icons.back)),
        h("button", { class: "square", "aria-label": "Later", title: "Later (])", onclick: () => shift(0.5) }, icon(icons.forward)),
        h("button", { class: "square", "aria-label": "Closer", title: "Closer (+)", onclick: () => zoom(0.5) }, icon(icons.plus)),
        h("button", { class: "square", "aria-label": "Wider", title: "Wider (-)", onclick: () => zoom(2) }, icon(icons.minus))),
      label, pointed, note),
    h("div", { class: "row playback" },
      playButton, speedSelect, dateInput,
      h("div", { class: "day" }, strip, slider)));
  new ResizeObserver(drawStrip).observe(strip.parentElement);
  onChange((what) => { if (what.from || what.to || what.live) update(); });
  update();
  return bar;
}

// point shows the moment that the cursor is at.
export function point(t) { pointed.textContent = t === null ? "" : format.clock(t); }

export function tell(text) { if (note) note.textContent = text; }

export function update() {
  if (!bar) return;
  label.textContent = format.span(view.from, view.to);
  liveButton.setAttribute("aria-pressed", String(view.live));
  const w = Math.round(width() / 1000);
  const own = lengths.some(([s]) => s === w);
  const options = own ? lengths : [[0, format.seconds(w)], ...lengths];
  if (lengthSelect.dataset.own !== String(own ? 0 : w)) {
    lengthSelect.dataset.own = String(own ? 0 : w);
    lengthSelect.replaceChildren(...options.map(([s, name]) => h("option", { value: s }, name)));
  }
  lengthSelect.value = own ? w : 0;
  playButton.replaceChildren(icon(playing ? icons.pause : icons.play));
  playButton.setAttribute("aria-label", playing ? "Pause" : "Play");
  playButton.title = (playing ? "Pause" : "Play") + " (space)";
  const start = midnight(view.to - 1);
  if (start !== dayStart) {
    dayStart = start;
    dayEnd = midnight(view.to - 1, 1);
    slider.max = (dayEnd - dayStart) / 1000;
    loadActivity();
  }
  slider.value = (view.to - dayStart) / 1000;
  slider.setAttribute("aria-valuetext", format.moment(view.to));
  if (document.activeElement !== dateInput) dateInput.value = format.dateValue(view.to - 1);
  dateInput.max = format.dateValue(Date.now());
  drawStrip();
}

// The strip behind the slider shows how busy the machine was, so that one sees where to
// go: the mean of its processors, or else what there is.
let loading = null;
async function loadActivity() {
  loading?.abort();
  const control = loading = new AbortController();
  activity = [];
  try {
    const answer = await get("series", { name: ["node.cpu_user", "node.cpu_system", "task.running"], start: new Date(dayStart).toISOString(), end: new Date(Math.min(dayEnd, Date.now())).toISOString(), step: 300 }, control.signal);
    const sums = new Map();
    const load = answer.series.filter((x) => x.name.startsWith("node."));
    for (const x of load.length ? load : answer.series) for (const p of x.points) sums.set(p[0], (sums.get(p[0]) ?? 0) + p[2]);
    activity = [...sums].sort((a, b) => a[0] - b[0]);
  } catch { /* the strip is an extra: without it the slider is as good */ }
  drawStrip();
}

function drawStrip() {
  const wide = strip.parentElement?.clientWidth ?? 0;
  if (!wide) return;
  const dpr = devicePixelRatio || 1, high = 34;
  strip.width = wide * dpr;
  strip.height = high * dpr;
  const c = strip.getContext("2d");
  c.scale(dpr, dpr);
  // A range input's thumb is 16 wide and stays inside.
  const x = (t) => 8 + (t - dayStart) / (dayEnd - dayStart) * (wide - 16);
  c.fillStyle = colour("lane");
  c.fillRect(8, 0, wide - 16, high - 12);
  const top = Math.max(...activity.map((p) => p[1]), 1e-9);
  c.fillStyle = colour("activity");
  const w = Math.max(300e3 / (dayEnd - dayStart) * (wide - 16) - 0.3, 0.8);
  for (const [t, v] of activity) {
    const tall = v / top * (high - 16);
    c.fillRect(x(t), high - 12 - tall, w, tall);
  }
  c.fillStyle = colour("select");
  const a = Math.max(x(view.from), 8), b = Math.max(x(view.to), a + 2);
  c.fillRect(a, 0, b - a, high - 12);
  c.fillStyle = colour("soft");
  c.font = "10px system-ui, sans-serif";
  c.textAlign = "center";
  const every = wide < 420 ? 6 : wide < 700 ? 3 : 2;
  for (let hour = every; hour < 24; hour += every) c.fillText(String(hour), x(dayStart + hour * 3600e3), high - 1);
}
