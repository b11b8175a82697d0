// Status: what is recorded, and how the collectors do.

import { h, table, failure } from "./dom.js";
import { get } from "./api.js";
import { card } from "./tasks.js";
import * as format from "./format.js";

export function status(root) {
  const holder = h("div");
  root.append(holder);
  const control = new AbortController();

  async function load() {
    try {
      const [a, n] = await Promise.all([get("status", {}, control.signal), get("nodes", {}, control.signal)]);
      draw(a, n.nodes);
    } catch (error) {
      if (error.name !== "AbortError") holder.replaceChildren(failure(error, load));
    }
  }

  function draw(a, nodes) {
    holder.replaceChildren(
      h("div", { class: "cards" },
        card("series", format.number(a.series), ""),
        card("points", format.number(a.points), a.points ? format.number(a.bytes / a.points, 2) + " bytes each" : ""),
        card("on disk", format.bytes(a.bytes), ""),
        card("recorded since", format.isTime(a.since) ? format.ago(Date.parse(a.since)).replace(" ago", "") : "–", format.isTime(a.since) ? format.moment(Date.parse(a.since)) : "")),
      h("section", {}, h("h2", {}, "Collectors"),
        a.collectors?.length ? table([
          { name: "collector", left: true, value: (c) => c.name, show: (c) => h("b", {}, c.name) },
          { name: "state", left: true, value: (c) => c.error ?? "", show: (c) => c.error ? h("span", { class: "state bad" }, "failed") : h("span", { class: "state good" }, "well") },
          { name: "looked", value: (c) => c.last, show: (c) => format.isTime(c.last) ? format.ago(Date.parse(c.last)) : "not yet" },
          { name: "took", value: (c) => c.seconds, show: (c) => format.seconds(c.seconds) },
          { name: "says", left: true, value: (c) => c.error ?? "", show: (c) => h("span", { class: "says" }, c.error ?? "") },
        ], a.collectors, { label: "Collectors" }) : h("p", { class: "soft" }, "This server only shows: nothing is collected here.")),
      h("section", {}, h("h2", {}, "Machines"), !nodes.length ? h("p", { class: "soft" }, "None yet.") : table([
        { name: "machine", left: true, value: (n) => n.node || "no name", show: (n) => h("b", {}, n.node || "no name") },
        { name: "series", value: (n) => n.series, show: (n) => format.number(n.series) },
        { name: "first value", value: (n) => n.first, show: (n) => format.moment(Date.parse(n.first)) },
        { name: "last value", value: (n) => n.last, show: (n) => format.ago(Date.parse(n.last)) },
      ], nodes, { label: "Machines" })),
      h("p", { class: "soft" }, `premix ${a.version}. `, h("a", { href: "openapi.json" }, "The interface"), "; metrics for Prometheus are at ", h("code", {}, "/metrics"), "."));
  }

  load();
  const again = setInterval(() => { if (!document.hidden && !holder.contains(document.activeElement)) load(); }, 5000);
  return { leave() { control.abort(); clearInterval(again); } };
}
