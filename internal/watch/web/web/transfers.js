// Transfers: measured copies, by protocol and over time.

import { h, bar, table, failure, empty, palette } from "./dom.js";
import { view, set } from "./view.js";
import { get } from "./api.js";
import { scatter } from "./plot.js";
import * as format from "./format.js";

const rate = (v) => format.number(v * 8 / 1e6) + "\u202fMbit/s";

export function transfers(root) {
  const holder = h("div");
  root.append(holder);
  const control = new AbortController();
  let answer = null;

  async function load() {
    try {
      answer = await get("transfers", {}, control.signal);
      draw();
    } catch (error) {
      if (error.name !== "AbortError") holder.replaceChildren(failure(error, load));
    }
  }

  function draw() {
    const { dirs } = answer;
    if (!dirs.length) {
      holder.replaceChildren(empty("No transfers are shown", "Measure a link, and name the directory of results when premix watch is started:", h("code", {}, "premix transfer bench LINK.yaml --out DIR"), h("code", {}, "premix watch --transfers DIR")));
      return;
    }
    holder.replaceChildren(...dirs.map((d) => {
      if (d.error) return h("section", {}, h("h2", {}, d.dir), failure({ message: d.error, hint: d.hint }));
      const protocols = [...new Set(d.groups.map((g) => g.protocol))].sort();
      const colours = palette();
      const fastest = Math.max(...d.groups.map((g) => g.speed), 1e-9);
      const shown = view.item && protocols.includes(view.item) ? view.item : "";
      const rows = d.rows.filter((r) => !shown || r.protocol === shown);
      return h("div", {},
        h("p", { class: "soft" }, h("code", {}, d.dir), ` ${d.copies} copies`),
        h("section", {}, h("h2", {}, "Speed by protocol"), table([
          { name: "protocol", left: true, value: (g) => g.protocol, show: (g) => [h("i", { class: "block", style: { "--hue": colours[protocols.indexOf(g.protocol) % colours.length] } }), h("b", {}, g.protocol), g.best ? h("span", { class: "tag" }, "fastest") : ""] },
          { name: "link", left: true, value: (g) => g.link },
          { name: "what", left: true, value: (g) => g.direction + " " + g.data },
          { name: "speed", title: "median", left: true, value: (g) => g.speed, show: (g) => h("span", { class: "pair" }, bar(g.speed / fastest, rate(g.speed)), h("span", { class: "figure" }, g.copies ? rate(g.speed) : "–")) },
          { name: "95 % interval", value: (g) => g.low ?? -1, show: (g) => g.low === null || g.low === undefined ? "–" : `${format.number(Math.max(g.low, 0) * 8 / 1e6)} – ${rate(g.high)}` },
          { name: "steady", value: (g) => g.steady, show: (g) => g.steady ? rate(g.steady) : "–" },
          { name: "on the wire", title: "bytes on the wire by bytes of data", value: (g) => g.ratio, show: (g) => g.ratio ? format.number(g.ratio, 3) : "–" },
          { name: "sent again", title: "TCP segments, mean", value: (g) => g.retransmits, show: (g) => format.number(g.retransmits) },
          { name: "copies", value: (g) => g.copies, show: (g) => [format.number(g.copies), g.failed ? h("span", { class: "bad" }, ` ${g.failed} failed`) : "", g.disturbed ? h("span", { class: "soft" }, ` ${g.disturbed} disturbed`) : ""] },
        ], d.groups, { by: 3, down: true, label: "Speed by protocol" })),
        h("section", {}, h("h2", {}, "Copies over time"),
          h("p", { class: "tools" }, h("label", {}, h("span", { class: "soft" }, "Protocol "), h("select", { onchange: (e) => { set({ item: e.target.value }); } }, h("option", { value: "" }, "all"), protocols.map((p) => h("option", { value: p, selected: p === shown }, p))))),
          scatter(rows.filter((r) => r.ok).map((r) => ({ x: Date.parse(r.started), y: r.speed * 8 / 1e6, colour: colours[protocols.indexOf(r.protocol) % colours.length], shape: protocols.indexOf(r.protocol), title: `${r.protocol}, ${rate(r.speed)}, ${format.moment(Date.parse(r.started))}` })), { label: `Speeds of ${rows.length} copies over time`, unit: "Mbit/s" }),
          table([
            { name: "began", value: (r) => r.started, show: (r) => format.moment(Date.parse(r.started)) },
            { name: "protocol", left: true, value: (r) => r.protocol },
            { name: "link", left: true, value: (r) => r.link },
            { name: "size", value: (r) => r.size, show: (r) => format.bytes(r.size) },
            { name: "took", value: (r) => r.seconds, show: (r) => format.seconds(r.seconds) },
            { name: "speed", value: (r) => r.speed, show: (r) => r.ok ? rate(r.speed) : "–" },
            { name: "first byte", value: (r) => r.first, show: (r) => r.first ? format.seconds(r.first) : "–" },
            { name: "result", left: true, value: (r) => (r.ok ? (r.disturbed ? "disturbed" : "ok") : "failed"), show: (r) => r.ok ? (r.disturbed ? h("span", { class: "soft", title: r.disturbed }, "disturbed") : h("span", { class: "state good" }, "ok")) : h("span", { class: "state bad", title: r.error }, "failed") },
          ], rows, { by: 0, down: true, label: "Copies", limit: 15 })));
    }));
  }

  load();
  return { changed(what) { if (what.item && answer) draw(); }, theme() { if (answer) draw(); }, leave() { control.abort(); } };
}
