// The page of tasks: what they asked for and used, where their time went, why they wait.

import { h, bar, table, failure, empty } from "./dom.js";
import { view, width, set } from "./view.js";
import { get } from "./api.js";
import * as format from "./format.js";

const parts = [
  ["waited", "waiting to begin", "p-wait"],
  ["warming", "loading, before the input is read", "p-warm"],
  ["working", "on its processors", "p-work"],
  ["idle", "held processors, not used", "p-idle"],
];

// shares draws where time went.
function shares(of, wide = false) {
  const sum = parts.reduce((n, [k]) => n + (of[k] ?? 0), 0);
  const text = parts.filter(([k]) => of[k] > 0.005 * sum).map(([k, name]) => `${name} ${Math.round(100 * of[k] / sum)} %`).join(", ");
  return h("span", { class: "shares" + (wide ? " wide" : ""), role: "img", "aria-label": sum ? text : "no time", title: text },
    sum ? parts.map(([k, , css]) => h("i", { class: css, style: { width: 100 * (of[k] ?? 0) / sum + "%" } })) : "");
}

function key() {
  return h("p", { class: "legend" }, parts.map(([, name, css]) => h("span", { class: "value" }, h("i", { class: "block " + css }), h("span", { class: "soft" }, name))));
}

function times(t) {
  const queued = format.isTime(t.queued) ? Date.parse(t.queued) : null, began = Date.parse(t.began), end = format.isTime(t.end) ? Date.parse(t.end) : null;
  const run = ((end ?? Date.now()) - began) / 1000;
  const warming = Math.min(t.warmed_in || 0, run);
  const working = end ? Math.min(t.cpu / Math.max(t.cores, 1), run - warming) : 0;
  return { queued, began, end, run, waited: queued ? Math.max((began - queued) / 1000, 0) : 0, warming, working, idle: end ? run - warming - working : 0 };
}

// why says why a task waited: who held what it wanted when it was queued.
function why(t, all) {
  const x = times(t);
  if (x.waited < 1) return null;
  const others = all.filter((o) => o.key !== t.key && o.node === t.node).map((o) => [o, times(o)]).filter(([, y]) => y.began <= x.began && (y.end ?? Infinity) > x.queued);
  if (!others.length) return `It waited ${format.seconds(x.waited)}, and no other task ran on ${t.node || "its machine"} then: what held it back is not among the tasks.`;
  const held = others.filter(([, y]) => y.began <= x.queued);
  const cores = held.reduce((n, [o]) => n + o.cores, 0);
  const many = (n, word) => `${format.number(n)} ${word}${n === 1 ? "" : "s"}`;
  const last = others.filter(([, y]) => y.end && Math.abs(y.end - x.began) < 1000 + 0.02 * x.waited * 1000).sort((a, b) => Math.abs(a[1].end - x.began) - Math.abs(b[1].end - x.began))[0];
  const steps = Map.groupBy(held, ([o]) => o.step || o.name);
  const most = [...steps].sort((a, b) => b[1].length - a[1].length).slice(0, 2).map(([step, list]) => `${list.length} of ${step}`).join(", ");
  const because = held.length ? `${many(held.length, "task")} (${most}) held ${many(cores, "core")} when it was queued` : `${many(others.length, "task")} that came with it or later went first`;
  return `It waited ${format.seconds(x.waited)}: ${because}` + (last ? `, and it began when ${last[0].name} ended.` : ".");
}

export function taskDetails(t, all) {
  const x = times(t);
  const row = (name, value) => value && [h("dt", {}, name), h("dd", {}, value)];
  return h("div", { class: "task" },
    h("p", {}, h("span", { class: "state " + (x.end ? (t.ok ? "good" : "bad") : "runs") }, x.end ? (t.ok ? "succeeded" : "failed") : "runs"), " ", h("span", { class: "soft" }, x.end && !t.ok ? (t.reason ? t.reason : "exit status " + t.exit) : "")),
    h("dl", {},
      row("step", t.step), row("user", t.user), row("run", h("code", {}, t.run)), row("machine", t.node), row("engine", t.engine),
      row("start", t.start && [t.start, t.reason && (t.ok || !x.end) ? h("span", { class: "soft" }, " " + t.reason) : ""]),
      row("queued", x.queued && format.moment(x.queued)), row("began", format.moment(x.began)), row("ended", x.end && format.moment(x.end)),
      row("run time", format.seconds(x.run)), row("processor time", t.cpu ? format.seconds(t.cpu) : ""),
      row("cores", format.number(t.cores) + (x.end && x.run > 0 && t.cpu ? `, ${Math.round(100 * t.cpu / x.run / Math.max(t.cores, 1))} % used` : "")),
      row("memory", t.max_rss ? format.memory(t.max_rss) + (t.memory ? " of " + format.memory(t.memory) : "") : t.memory ? "asked for " + format.memory(t.memory) : ""),
      row("read", t.read ? format.bytes(t.read) : ""), row("written", t.written ? format.bytes(t.written) : "")),
    x.end ? [h("h3", {}, "Where its time went"), shares(x, true), key()] : "",
    why(t, all) ? [h("h3", {}, "Why it waited"), h("p", {}, why(t, all))] : "");
}

function memoryBar(u) {
  if (!u.memory_asked) return h("span", { class: "soft" }, u.memory_most ? format.memory(u.memory_most) : "–");
  const part = u.memory_most / u.memory_asked;
  return h("span", { class: "pair" }, bar(part, `used ${format.memory(u.memory_most)} of ${format.memory(u.memory_asked)}`, part > 0.97 ? "bad" : part < 0.5 ? "low" : ""), h("span", { class: "figure" }, `${format.memory(u.memory_most)} of ${format.memory(u.memory_asked)}`));
}

// mostAdvice is the number of users and steps whose advice is shown, by the core time held.
const mostAdvice = 12;

// during returns the tasks of premix that ran while a task waited.
async function during(t, signal) {
  return (await get("tasks", { start: t.queued, end: t.began, engine: "-process", limit: 5000 }, signal)).tasks;
}

// shown is the number of tasks on the page.
const shown = 50;

export function tasks(root) {
  // Processes outside premix are shown only where they are asked for: there may be thousands.
  const choose = (label, options) => {
    const element = h("select", { "aria-label": label, onchange: again }, options.map(([value, name]) => h("option", { value }, name)));
    return element;
  };
  const users = choose("User", [["", "all users"]]);
  const engines = choose("Engine", [["-process", "tasks of premix"], ["local", "local"], ["slurm", "slurm"], ["kubernetes", "kubernetes"], ["process", "processes outside premix"], ["", "all"]]);
  const states = choose("State", [["", "all states"], ["running", "running"], ["succeeded", "succeeded"], ["failed", "failed"]]);
  const search = h("input", { type: "search", placeholder: "name, step or run", "aria-label": "Search tasks", oninput: () => { clearTimeout(typing); typing = setTimeout(again, 250); } });
  const holder = h("div");
  root.append(h("div", { class: "filters", role: "search" }, users, engines, states, search), holder);
  let control = null, timer = 0, typing = 0, drawn = "";

  // again loads what the filters select. The server filters: there may be very many tasks.
  function again() {
    drawn = "";
    load();
  }

  function know(list) {
    const names = new Set([...users.options].map((o) => o.value));
    for (const u of list) if (u.user && !names.has(u.user)) { names.add(u.user); users.append(h("option", { value: u.user }, u.user)); }
  }

  async function load() {
    control?.abort();
    control = new AbortController();
    const range = { start: format.zoned(view.from), end: format.zoned(view.to) };
    if (users.value) range.user = users.value;
    if (engines.value) range.engine = engines.value;
    try {
      const some = { ...range };
      if (states.value) some.state = states.value;
      if (search.value.trim()) some.search = search.value.trim();
      const ask = (more) => get("tasks", { ...some, ...more }, control.signal);
      const none = { tasks: [], count: 0 };
      const [usage, list, waits, failed] = await Promise.all([get("usage", range, control.signal), ask({ limit: shown }), ask({ limit: 5, by: "waited" }),
        some.state && some.state !== "failed" ? none : ask({ limit: 10, state: "failed" })]);
      const waiting = waits.tasks.filter((t) => times(t).waited >= 1);
      const around = new Map(await Promise.all(waiting.map(async (t) => [t.key, await during(t, control.signal)])));
      know(usage.usage);
      draw(usage.usage, list, waiting, around, failed);
    } catch (error) {
      if (error.name !== "AbortError") holder.replaceChildren(failure(error, load));
    }
  }

  function draw(usage, { tasks: list, count }, waiting, around, failures) {
    const filtered = states.value || search.value.trim();
    // A page that follows the machine is not to jump under somebody's fingers.
    const now = JSON.stringify([usage, list.length, count, filtered]);
    if (now === drawn) return;
    if (holder.contains(document.activeElement) && view.live && drawn) return;
    drawn = now;
    if (!list.length && !usage.length && (users.value || engines.value !== "-process")) {
      holder.replaceChildren(empty("No task of this kind ran in this window", "Choose another user or engine, or a longer window."));
      return;
    }
    if (!list.length && !usage.length) {
      holder.replaceChildren(empty("No task ran in this window", "Choose another day, or a longer window: tasks of premix run and premix task are recorded when they begin and when they end."));
      return;
    }
    const advice = usage.filter((u) => u.advice.length);
    const total = parts.reduce((o, [k]) => ({ ...o, [k]: usage.reduce((n, u) => n + u[k], 0) }), {});
    const core = usage.reduce((n, u) => n + u.core, 0), cpu = usage.reduce((n, u) => n + u.cpu, 0);
    const done = usage.reduce((n, u) => n + u.tasks, 0), failed = usage.reduce((n, u) => n + u.failed, 0), running = usage.reduce((n, u) => n + u.running, 0);
    const bad = failures.tasks;
    waiting.sort((a, b) => times(b).waited - times(a).waited);
    holder.replaceChildren(
      h("div", { class: "cards" },
        card("ended", format.number(done), failed ? h("span", { class: "bad" }, `${failed} failed`) : "none failed"),
        card("running", format.number(running), ""),
        card("processors used", core ? Math.round(100 * cpu / core) + "\u202f%" : "–", core ? `${format.seconds(cpu)} of ${format.seconds(core)} held` : ""),
        card("most waited", format.seconds(Math.max(0, ...usage.map((u) => u.wait_median))), "median, of the step that waits most")),
      h("section", {}, h("h2", {}, "Where time went"), shares(total, true), key()),
      advice.length ? h("section", {}, h("h2", {}, "Advice"), h("ul", { class: "advice" }, [...Map.groupBy(advice.slice(0, mostAdvice).flatMap((u) => u.advice.map((a) => ({ step: u.step || "no step", user: u.user, a }))), (x) => x.step + "\n" + x.a).values()].map((same) => h("li", {}, h("b", {}, same[0].step), h("span", { class: "soft" }, " " + same.map((x) => x.user).filter(Boolean).join(", ")), h("span", {}, " " + same[0].a))))) : "",
      h("section", {}, h("h2", {}, "By user and step"), table([
        { name: "step", left: true, value: (u) => u.step || "–" },
        { name: "user", left: true, value: (u) => u.user || "–" },
        { name: "tasks", value: (u) => u.tasks + u.running, show: (u) => [format.number(u.tasks + u.running), u.failed ? h("span", { class: "bad" }, ` ${u.failed} failed`) : ""] },
        { name: "waits", title: "median", value: (u) => u.wait_median, show: (u) => format.seconds(u.wait_median) },
        { name: "runs", title: "median", value: (u) => u.run_median, show: (u) => format.seconds(u.run_median) },
        { name: "where time went", left: true, value: (u) => u.idle / (u.idle + u.working + u.warming + u.waited || 1), show: (u) => shares(u) },
        { name: "processors", left: true, title: "processor time of the core time held", value: (u) => u.efficiency, show: (u) => h("span", { class: "pair" }, bar(u.efficiency, Math.round(100 * u.efficiency) + " % of the cores held were used", u.efficiency < 0.5 ? "low" : ""), h("span", { class: "figure" }, Math.round(100 * u.efficiency) + "\u202f%")) },
        { name: "memory", left: true, value: (u) => u.memory_most, show: memoryBar },
      ], usage, { by: 2, down: true, label: "Tasks by user and step", limit: 25 })),
      waiting.length ? h("section", {}, h("h2", {}, "Why they waited"), h("ul", { class: "advice" }, waiting.map((t) => h("li", {}, h("b", {}, t.name), h("span", { class: "soft" }, " " + t.step), h("span", {}, " " + why(t, around.get(t.key))))))) : "",
      bad.length ? h("section", {}, h("h2", {}, failures.count > bad.length ? `${format.number(failures.count)} failed` : "Failed"), failures.count > bad.length ? h("p", { class: "soft" }, `The ${bad.length} that ran longest.`) : "", table([...columns(), { name: "why", left: true, value: (t) => t.reason || "exit status " + t.exit, show: (t) => h("span", { class: "says" }, t.reason || "exit status " + t.exit) }], bad, { by: 3, down: true, label: "Failed tasks", limit: 10 })) : "",
      h("section", {}, h("h2", {}, filtered ? `${format.number(count)} ${count === 1 ? "task" : "tasks"} found` : count > list.length ? `${format.number(count)} tasks` : "All tasks"),
        count > list.length ? h("p", { class: "soft" }, `The ${list.length} that ran longest in this window. Search for others.`) : "",
        table(columns(), list, { by: 3, down: true, label: "Tasks", limit: shown })));
  }

  function columns() {
    return [
      { name: "task", left: true, value: (t) => t.name, show: (t) => h("button", { class: "link", onclick: () => open(t) }, t.name) },
      { name: "step", left: true, value: (t) => t.step },
      { name: "user", left: true, value: (t) => t.user },
      { name: "began", value: (t) => t.began, show: (t) => h("time", { title: format.moment(Date.parse(t.began)) }, width() > 86400e3 ? format.moment(Date.parse(t.began)) : format.clock(Date.parse(t.began))) },
      { name: "waited", value: (t) => times(t).waited, show: (t) => format.seconds(times(t).waited) },
      { name: "ran", value: (t) => times(t).run, show: (t) => format.seconds(times(t).run) },
      { name: "start", left: true, value: (t) => t.start, show: (t) => t.start && h("span", { class: "start " + t.start }, t.start) },
      { name: "memory", value: (t) => t.max_rss, show: (t) => t.max_rss ? format.memory(t.max_rss) : "–" },
      { name: "state", left: true, value: (t) => (format.isTime(t.end) ? (t.ok ? "succeeded" : "failed") : "runs"), show: (t) => format.isTime(t.end) ? (t.ok ? h("span", { class: "state good" }, "succeeded") : h("span", { class: "state bad", title: t.reason }, "failed")) : h("span", { class: "state runs" }, "runs") },
    ];
  }

  async function open(t) {
    let others = [];
    if (times(t).waited >= 1) {
      try {
        others = await during(t);
      } catch { /* the details are shown without the reason for the wait */ }
    }
    const dialog = h("dialog", { "aria-label": t.name },
      h("header", {}, h("h2", {}, t.name), h("button", { class: "quiet", onclick: () => dialog.close() }, "Close")), taskDetails(t, others),
      h("footer", {}, h("button", { class: "primary", onclick: () => {
        dialog.close();
        const x = times(t), end = x.end ?? Date.now(), around = Math.max((end - x.began) * 0.5, 10e3);
        set({ page: "timeline", live: false, from: x.began - around, to: Math.min(end + around, Date.now()), selection: [x.began, end] });
      } }, "Show on the time line")));
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  load();
  const following = setInterval(() => {
    if (!view.live || document.hidden) return;
    const w = width(), now = Date.now();
    set({ from: now - w, to: now });
  }, 5000);
  return {
    changed(what) {
      if (!what.from && !what.to) return;
      clearTimeout(timer);
      timer = setTimeout(load, 150);
    },
    leave() { control?.abort(); clearInterval(following); clearTimeout(timer); clearTimeout(typing); },
  };
}

function card(label, figure, note) {
  return h("div", { class: "card" }, h("span", { class: "label" }, label), h("span", { class: "number" }, figure), h("span", { class: "soft" }, note));
}
export { card };
