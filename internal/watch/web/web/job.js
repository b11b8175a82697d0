// A job of a batch system, or a run of premix, on all of its machines.

import { h, s, table, failure, empty } from "./dom.js";
import { view, set } from "./view.js";
import { get } from "./api.js";
import { card } from "./tasks.js";
import * as format from "./format.js";

const W = 560, H = 120;

// curve draws a quantity over the window: all machines together, or the mean of ratios.
function curve(c, from, to) {
  const top = Math.max(...c.points.map((p) => p[1])) || 1;
  const x = (t) => (W * (t - from)) / (to - from), y = (v) => H - 4 - ((H - 8) * v) / top;
  const last = c.points.at(-1)[1];
  const label = `${c.name}: at most ${format.value(top, c.unit)}`;
  return h("figure", { class: "job-curve" },
    h("figcaption", {}, h("b", {}, title(c.name)), " ", h("span", { class: "soft" }, `${c.unit === "ratio" ? "mean" : "sum"}, at most ${format.value(top, c.unit)}, last ${format.value(last, c.unit)}`)),
    s("svg", { viewBox: `0 0 ${W} ${H}`, class: "chart", role: "img", "aria-label": label, preserveAspectRatio: "none" },
      s("polyline", { points: c.points.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" "), fill: "none", stroke: "currentColor", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke" })));
}

function title(name) { return name.replace(/^task\./, "").replaceAll("_", " ").replaceAll(".", " "); }

export function job(root) {
  const input = h("input", { type: "search", placeholder: "number of a job, or directory of a run", "aria-label": "Job", value: view.item, onchange: () => { set({ item: input.value.trim() }); load(); } });
  const holder = h("div");
  root.append(h("div", { class: "filters", role: "search" }, input), holder);
  let control = null, timer = 0;

  async function load() {
    control?.abort();
    const item = input.value.trim();
    if (!item) {
      holder.replaceChildren(empty("Which job?", "Write the number of a job of Slurm, or the directory of a run of premix."));
      return;
    }
    control = new AbortController();
    const what = item.startsWith("/") ? { run: item } : { id: item };
    try {
      draw(await get("job", { ...what, start: format.zoned(view.from), end: format.zoned(view.to) }, control.signal));
    } catch (error) {
      if (error.name !== "AbortError") holder.replaceChildren(failure(error, load));
    }
  }

  function draw(a) {
    if (!a.nodes.length) {
      holder.replaceChildren(empty("No machine has values of it in this window", "Choose a longer window, or another job."));
      return;
    }
    const units = new Map(a.curves.map((c) => [c.name, c.unit]));
    const shown = ["task.cpu", "task.memory", "task.read_bytes", "task.written_bytes", "task.gpu_busy", "task.gpu_memory", "task.lustre_read_bytes", "task.lustre_written_bytes"].filter((n) => units.has(n));
    const from = Date.parse(a.start), to = Date.parse(a.end);
    const cpu = a.curves.find((c) => c.name === "task.cpu");
    holder.replaceChildren(
      h("div", { class: "cards" },
        card("machines", format.number(a.nodes.length), ""),
        card("processors", cpu ? format.number(Math.max(...cpu.points.map((p) => p[1]))) : "–", "at most, all machines together"),
        card("seen", format.moment(Math.min(...a.nodes.map((n) => Date.parse(n.first)))), "until " + format.moment(Math.max(...a.nodes.map((n) => Date.parse(n.last)))))),
      h("section", {}, h("h2", {}, "Over time"), h("div", { class: "job-curves" }, a.curves.filter((c) => c.points.length).map((c) => curve(c, from, to)))),
      h("section", {}, h("h2", {}, "By machine"), table([
        { name: "machine", left: true, value: (n) => n.node, show: (n) => h("b", {}, n.node) },
        ...shown.map((name) => ({ name: title(name), title: "mean; greatest of a step", value: (n) => n.mean[name] ?? -1,
          show: (n) => n.mean[name] === undefined ? "–" : [format.value(n.mean[name], units.get(name)), " ", h("span", { class: "soft" }, format.value(n.most[name], units.get(name)))] })),
      ], a.nodes, { label: "Machines of the job", by: 0, limit: 50 })));
  }

  load();
  const following = setInterval(() => {
    if (view.live && !document.hidden) set({ from: Date.now() - (view.to - view.from), to: Date.now() });
  }, 5000);
  return {
    changed(what) {
      if (what.item && input.value !== view.item) input.value = view.item;
      if (!what.from && !what.to && !what.item) return;
      clearTimeout(timer);
      timer = setTimeout(load, 150);
    },
    leave() { control?.abort(); clearInterval(following); clearTimeout(timer); },
  };
}
