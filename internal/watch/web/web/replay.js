// Replay: what policies would have made of a workload.

import { h, bar, table, failure, empty, palette } from "./dom.js";
import { view, set } from "./view.js";
import { get } from "./api.js";
import { curves, gantt } from "./plot.js";
import * as format from "./format.js";

export function replay(root) {
  const holder = h("div");
  root.append(holder);
  const control = new AbortController();
  let list = null, tables = null, policy = 0;

  async function load() {
    try {
      const answer = await get("replays", {}, control.signal);
      list = answer.replays;
      if (!list.length) {
        holder.replaceChildren(empty(answer.dirs.length ? "No tables are there yet" : "No replay is shown", "Play last month's jobs under other policies, and name the directory of tables when premix watch is started:", h("code", {}, "premix replay TRACE --policy fcfs,easy --parquet DIR"), h("code", {}, "premix watch --replays DIR")));
        return;
      }
      await choose();
    } catch (error) {
      if (error.name !== "AbortError") holder.replaceChildren(failure(error, load));
    }
  }

  async function choose() {
    const i = Math.max(0, list.findIndex((r) => r.name === view.item));
    holder.replaceChildren(picker(i), h("p", { class: "soft", role: "status" }, "Reading the tables …"));
    policy = 0;
    try {
      tables = await get("replays/" + i, {}, control.signal);
      draw(i);
    } catch (error) {
      if (error.name !== "AbortError") holder.replaceChildren(picker(i), failure(error, choose));
    }
  }

  function picker(i) {
    return h("p", { class: "tools" }, h("label", {}, h("span", { class: "soft" }, "Replay "), h("select", { onchange: (e) => { set({ item: list[e.target.value].name }); } }, list.map((r, k) => h("option", { value: k, selected: k === i }, r.name)))),
      h("span", { class: "soft" }, list[i].error ? list[i].error : "written " + format.ago(Date.parse(list[i].written))));
  }

  function draw(i) {
    const colours = palette(), all = tables.policies;
    const colour = (k) => colours[k % colours.length];
    const most = Math.max(...all.map((p) => p.wait_mean), 1e-9);
    const base = all[0];
    const legend = () => h("p", { class: "legend" }, all.map((p, k) => h("span", { class: "value" }, h("i", { class: "stroke s" + k % 5, style: { "--hue": colour(k) } }), h("span", { class: "soft" }, p.policy))));
    const days = (v) => Math.max(...all.map((p) => p.makespan)) > 2 * 86400 ? "day " + format.number(v / 86400) : format.seconds(v);
    const users = [...new Set(all.flatMap((p) => p.gantt.map((b) => b.user)))];
    const used = all.map((p) => Math.max(0, ...stacked(p.gantt)));
    const cores = Math.max(...used, 1);
    const shown = all[policy];
    holder.replaceChildren(picker(i),
      h("section", {}, h("h2", {}, "Policies"), table([
        { name: "policy", left: true, value: (p) => p.policy, show: (p) => [h("i", { class: "block", style: { "--hue": colour(all.indexOf(p)) } }), h("b", {}, p.policy)] },
        { name: "mean wait", left: true, value: (p) => p.wait_mean, show: (p) => h("span", { class: "pair" }, bar(p.wait_mean / most, "mean wait " + format.seconds(p.wait_mean)), h("span", { class: "figure" }, format.seconds(p.wait_mean))) },
        { name: "beside " + base.policy, value: (p) => p.wait_mean - base.wait_mean, show: (p) => p === base ? "–" : change(p.wait_mean, base.wait_mean) },
        { name: "median", value: (p) => p.wait_median, show: (p) => format.seconds(p.wait_median) },
        { name: "95 % within", value: (p) => p.wait_p95, show: (p) => format.seconds(p.wait_p95) },
        { name: "turnaround", value: (p) => p.turnaround_mean, show: (p) => format.seconds(p.turnaround_mean) },
        { name: "slowdown", title: "bounded, mean", value: (p) => p.bounded_slowdown_mean, show: (p) => format.number(p.bounded_slowdown_mean) },
        { name: "utilisation", value: (p) => p.utilisation, show: (p) => format.number(100 * p.utilisation) + "\u202f%" },
        { name: "fairness", title: "Jain's index over the users' mean slowdown", value: (p) => p.fairness, show: (p) => format.number(p.fairness) },
        { name: "charge", title: "core hours", value: (p) => p.charge, show: (p) => format.number(p.charge) },
        { name: "jobs", value: (p) => p.jobs, show: (p) => [format.number(p.jobs), p.refused ? h("span", { class: "bad" }, ` ${p.refused} refused`) : ""] },
      ], all, { by: 1, label: "Policies" })),
      h("section", {}, h("h2", {}, "Utilisation"), legend(), curves(all.map((p, k) => ({ name: p.policy, colour: colour(k), x: p.time, y: p.utilisation_over_time })), { label: "Utilisation over time", top: 1, writeX: days, writeY: (v) => Math.round(100 * v) + " %" })),
      h("section", {}, h("h2", {}, "Jobs that wait"), legend(), curves(all.map((p, k) => ({ name: p.policy, colour: colour(k), x: p.time, y: p.waiting_over_time })), { label: "Waiting jobs over time", writeX: days, writeY: (v) => format.number(v) })),
      h("section", {}, h("h2", {}, "Waiting times"), h("p", { class: "soft" }, "Part of the jobs that wait at most so long; the scale is logarithmic."), legend(),
        curves(all.filter((p) => p.waits?.length).map((p) => ({ name: p.policy, colour: colour(all.indexOf(p)), x: p.waits, y: p.waits.map((_, n) => n / 100) })), { label: "Distribution of waiting times", top: 1, scaleX: Math.log1p, ticksX: [0, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400], writeX: format.seconds, writeY: (v) => Math.round(100 * v) + " %" })),
      h("section", {}, h("h2", {}, "Gantt chart"),
        h("p", { class: "tools" }, h("span", { class: "segments", role: "group", "aria-label": "Policy" }, all.map((p, k) => h("button", { "aria-pressed": String(k === policy), onclick: (e) => { policy = k; const y = scrollY; draw(i); scrollTo(0, y); holder.querySelectorAll(".segments button")[k]?.focus({ preventScroll: true }); } }, p.policy))),
          h("span", { class: "soft" }, "around the time at which most jobs waited: each bar is a job, as high as its cores; colours are users; outlined jobs waited")),
        shown.gantt.length ? gantt(shown.gantt, { cores, label: "Gantt chart of " + shown.policy, colourOf: (b) => colours[users.indexOf(b.user) % colours.length], writeX: days }) : h("p", { class: "soft" }, "No job ran.")));
  }

  load();
  return {
    changed(what) { if (what.item && list?.length) choose(); },
    theme() { if (tables) draw(Math.max(0, list.findIndex((r) => r.name === view.item))); },
    leave() { control.abort(); },
  };
}

// stacked is how many cores are used at each begin of a job.
function stacked(jobs) {
  const running = [];
  let used = 0;
  return jobs.map((j) => {
    for (let i = running.length - 1; i >= 0; i--) if (running[i].end <= j.start) { used -= running[i].cores; running.splice(i, 1); }
    running.push(j);
    return used += j.cores;
  });
}

function change(v, base) {
  if (!(base > 0)) return "–";
  const part = v / base - 1;
  return h("span", { class: part < -0.005 ? "good" : part > 0.005 ? "bad" : "" }, (part > 0 ? "+" : "−") + format.number(Math.abs(100 * part)) + "\u202f%");
}
