// Snapshots, and what they saved.

import { h, bar, table, failure, empty } from "./dom.js";
import { get } from "./api.js";
import { card } from "./tasks.js";
import * as format from "./format.js";

const spans = [[1, "1 day"], [7, "7 days"], [30, "30 days"], [365, "1 year"]];

export function snapshots(root) {
  const holder = h("div");
  const control = new AbortController();
  let days = 30;
  const choice = h("select", { "aria-label": "Tasks of the last", onchange: () => { days = Number(choice.value); load(); } }, spans.map(([n, name]) => h("option", { value: n, selected: n === days }, name)));
  root.append(h("p", { class: "tools" }, h("label", {}, h("span", { class: "soft" }, "Tasks of the last "), choice)), holder);

  async function load() {
    try {
      const now = Date.now();
      draw(await get("snapshots", { start: format.zoned(now - days * 86400e3), end: format.zoned(now) }, control.signal));
    } catch (error) {
      if (error.name !== "AbortError") holder.replaceChildren(failure(error, load));
    }
  }

  function draw({ snapshots: list, saved, dir }) {
    const total = saved.reduce((n, x) => n + x.saved, 0), tasks = saved.reduce((n, x) => n + x.tasks, 0);
    const most = Math.max(...saved.map((x) => x.cold), 1e-9);
    if (!list.length && !saved.length) {
      holder.replaceChildren(empty("No snapshot is prepared", "A snapshot holds what a tool has loaded before it reads its first sample, so that tasks start where the others have got to.", h("code", {}, "premix prepare RECIPE.yaml")));
      return;
    }
    holder.replaceChildren(
      h("div", { class: "cards" },
        card("saved", format.seconds(Math.max(total, 0)), `of loading, by ${format.number(tasks)} tasks`),
        card("snapshots", format.number(list.length), format.bytes(list.reduce((n, x) => n + x.bytes, 0)) + " on disk"),
        card("took to prepare", format.seconds(list.reduce((n, x) => n + x.seconds, 0)), "once")),
      h("section", {}, h("h2", {}, "What they saved"),
        saved.length ? table([
          { name: "step", left: true, value: (x) => x.step },
          { name: "start", left: true, value: (x) => x.start, show: (x) => h("span", { class: "start " + x.start }, x.start) },
          { name: "tasks", value: (x) => x.tasks, show: (x) => format.number(x.tasks) },
          { name: "cold", title: "median time until the input is read, of the cold starts of this step", left: true, value: (x) => x.cold, show: (x) => h("span", { class: "pair" }, bar(x.cold / most, "cold " + format.seconds(x.cold), "cold"), h("span", { class: "figure" }, format.seconds(x.cold))) },
          { name: "this start", title: "the same of these", left: true, value: (x) => x.took, show: (x) => h("span", { class: "pair" }, bar(x.took / most, x.start + " " + format.seconds(x.took), x.start), h("span", { class: "figure" }, format.seconds(x.took))) },
          { name: "faster", value: (x) => x.cold / x.took, show: (x) => format.number(x.cold / x.took, 2) + "×" },
          { name: "saved", value: (x) => x.saved, show: (x) => h("b", {}, format.seconds(x.saved)) },
        ], saved, { by: 6, down: true, label: "What snapshots saved" }) : h("p", { class: "soft" }, "No step has both cold starts and others in this time: there is nothing to compare with.")),
      list.length ? h("section", {}, h("h2", {}, "Prepared"), table([
        { name: "tool", left: true, value: (x) => x.name, show: (x) => [h("b", {}, x.name), h("br"), h("code", { class: "soft" }, x.argv.join(" "))] },
        { name: "prepared", value: (x) => x.created, show: (x) => h("time", { title: format.moment(Date.parse(x.created)) }, format.ago(Date.parse(x.created))) },
        { name: "took", value: (x) => x.seconds, show: (x) => format.seconds(x.seconds) },
        { name: "on disk", value: (x) => x.bytes, show: (x) => format.bytes(x.bytes) },
        { name: "outputs", left: true, value: (x) => (x.proof ? (x.proof.equal ? 2 : 1) : 0), show: (x) =>
          x.proof ? h("span", { class: "start " + (x.proof.equal ? "hot" : "not"), title: x.proof.reason || "" }, x.proof.equal ? "equal to cold" : "differ: starts cold") : h("span", { class: "soft" }, "not compared yet") },
      ], list, { by: 1, down: true, label: "Snapshots" })) : "",
      h("p", { class: "soft" }, dir));
  }

  load();
  return { leave() { control.abort(); } };
}
