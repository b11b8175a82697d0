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
      const [a, n, alerts] = await Promise.all([get("status", {}, control.signal), get("nodes", {}, control.signal), get("alerts", {}, control.signal)]);
      draw(a, n.nodes, alerts);
    } catch (error) {
      if (error.name !== "AbortError") holder.replaceChildren(failure(error, load));
    }
  }

  function alertTable(list, label) {
    return table([
      { name: "state", left: true, value: (x) => x.state, show: (x) => h("span", { class: "state " + { firing: "bad", pending: "runs", resolved: "good" }[x.state] }, { firing: "fires", pending: "pending", resolved: "ended" }[x.state]) },
      { name: "rule", left: true, value: (x) => x.rule, show: (x) => [h("b", {}, x.rule), " ", h("span", { class: "soft" }, x.severity)] },
      { name: "machine", left: true, value: (x) => x.labels.node ?? "", show: (x) => x.labels.node ?? "" },
      { name: "since", value: (x) => x.since, show: (x) => format.ago(Date.parse(x.since)) },
      { name: "says", left: true, value: (x) => x.text, show: (x) => h("span", { class: "says" }, x.text, " ", h("code", {}, Object.entries(x.labels).filter(([k]) => k !== "node").map(([k, v]) => `${k}=${v}`).join(" "))) },
    ], list, { label });
  }

  function alertSection(x) {
    if (!x.rules) return "";
    const late = Object.entries(x.receivers ?? {}).filter(([name, why]) => why || x.waiting[name]);
    return h("section", {}, h("h2", {}, "Alerts"),
      x.trouble ? h("p", { class: "bad" }, "Rules cannot be evaluated: " + x.trouble) : "",
      late.map(([name, why]) => h("p", { class: "bad" }, `${format.number(x.waiting[name])} messages wait for ${name}${why ? ": " + why : ""}`)),
      x.alerts.length ? alertTable(x.alerts, "Alerts") : h("p", { class: "soft" }, `None of the ${format.number(x.rules)} rules fires.`),
      x.firing + x.pending > x.alerts.length ? h("p", { class: "soft" }, `${format.number(x.firing + x.pending - x.alerts.length)} more are not shown.`) : "",
      x.ended.length ? h("details", {}, h("summary", {}, `${format.number(x.ended.length)} ended`), alertTable(x.ended, "Ended alerts")) : "");
  }

  function draw(a, nodes, alerts) {
    const missing = new Map();
    for (const o of a.origins ?? []) missing.set(o.node, (missing.get(o.node) ?? 0) + o.missing);
    holder.replaceChildren(
      h("div", { class: "cards" },
        card("series", format.number(a.series), ""),
        card("points", format.number(a.points), a.points ? format.number(a.bytes / a.points, 2) + " bytes each" : ""),
        card("on disk", format.bytes(a.bytes), ""),
        card("recorded since", format.isTime(a.since) ? format.ago(Date.parse(a.since)).replace(" ago", "") : "–", format.isTime(a.since) ? format.moment(Date.parse(a.since)) : "")),
      alertSection(alerts),
      h("section", {}, h("h2", {}, "Collectors"),
        a.collectors?.length ? table([
          { name: "collector", left: true, value: (c) => c.name, show: (c) => h("b", {}, c.name) },
          { name: "state", left: true, value: (c) => c.error ?? "", show: (c) => c.error ? h("span", { class: "state bad" }, "failed") : h("span", { class: "state good" }, "well") },
          { name: "looked", value: (c) => c.last, show: (c) => format.isTime(c.last) ? format.ago(Date.parse(c.last)) : "not yet" },
          { name: "took", value: (c) => c.seconds, show: (c) => format.seconds(c.seconds) },
          { name: "says", left: true, value: (c) => c.error ?? "", show: (c) => h("span", { class: "says" }, c.error ?? "") },
        ], a.collectors, { label: "Collectors" }) : h("p", { class: "soft" }, "This server only shows: nothing is collected here.")),
      a.sending ? h("p", { class: a.sending.trouble || a.sending.lost ? "bad" : "soft" }, `Sends to ${a.sending.to}: ${format.number(a.sending.waiting)} frames wait` + (a.sending.lost ? `, ${format.number(a.sending.lost)} were lost` : "") + (a.sending.trouble ? `. ${a.sending.trouble}` : "")) : "",
      h("section", {}, h("h2", {}, "Machines"), !nodes.length ? h("p", { class: "soft" }, "None yet.") : table([
        { name: "machine", left: true, value: (n) => n.node || "no name", show: (n) => h("b", {}, n.node || "no name") },
        { name: "series", value: (n) => n.series, show: (n) => format.number(n.series) },
        { name: "first value", value: (n) => n.first, show: (n) => format.moment(Date.parse(n.first)) },
        { name: "last value", value: (n) => n.last, show: (n) => format.ago(Date.parse(n.last)) },
        { name: "sends", left: true, value: (n) => missing.get(n.node) ?? -1, show: (n) => !missing.has(n.node) ? "" : missing.get(n.node) ? h("span", { class: "bad" }, `${format.number(missing.get(n.node))} frames are missing`) : "all arrived" },
      ], nodes, { label: "Machines" })),
      h("p", { class: "soft" }, `premix ${a.version}. `, h("a", { href: "openapi.json" }, "The interface"), "; metrics for Prometheus are at ", h("code", {}, "/metrics"), "."));
  }

  load();
  const again = setInterval(() => { if (!document.hidden && !holder.contains(document.activeElement)) load(); }, 5000);
  return { leave() { control.abort(); clearInterval(again); } };
}
