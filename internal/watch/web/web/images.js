// Images and datasets: what premix's node has mounted, and what of it is here.

import { h, bar, table, failure, empty } from "./dom.js";
import { get } from "./api.js";
import { card } from "./tasks.js";
import * as format from "./format.js";

export function images(root) {
  const holder = h("div");
  root.append(holder);
  const control = new AbortController();

  async function load() {
    try {
      draw(await get("images", {}, control.signal));
    } catch (error) {
      if (error.name !== "AbortError") holder.replaceChildren(failure(error, load));
    }
  }

  function draw(a) {
    if (!a.running) {
      holder.replaceChildren(empty("No node runs on this machine", "Images and datasets are mounted by premix's node. It starts by itself with the first mount:", h("code", {}, "premix mount REF DIR"), a.why ? h("span", { class: "soft" }, a.why) : ""));
      return;
    }
    const { status, cache } = a, mounts = status.mounts ?? [];
    const failed = mounts.filter((m) => m.state !== "mounted");
    const hits = mounts.reduce((n, m) => n + m.hits, 0), misses = mounts.reduce((n, m) => n + m.misses, 0);
    const origins = new Map();
    for (const m of mounts) for (const o of m.origins ?? []) origins.set(o.url, o);
    holder.replaceChildren(
      h("div", { class: "cards" },
        card("mounts", format.number(mounts.length), failed.length ? h("span", { class: "bad" }, `${failed.length} ought to be there and are not`) : "all there"),
        card("fetched", format.bytes(mounts.reduce((n, m) => n + m.fetched, 0)), "since " + format.ago(Date.parse(status.since)).replace(" ago", "")),
        card("chunks read that were here", hits + misses ? format.number(100 * hits / (hits + misses)) + "\u202f%" : "–", `${format.number(misses)} were waited for`),
        cache ? card("cache", format.bytes(cache.used ?? 0), cache.quota ? "of " + format.bytes(cache.quota) : "no quota") : ""),
      mounts.length ? h("section", {}, h("h2", {}, "Mounts"), table([
        { name: "tree", left: true, value: (m) => m.ref, show: (m) => [h("b", {}, m.ref), h("br"), h("code", { class: "soft" }, m.dir)] },
        { name: "state", left: true, value: (m) => m.state, show: (m) => m.state === "mounted" ? h("span", { class: "state good" }, "mounted") : h("span", { class: "state bad", title: m.error }, m.state) },
        { name: "here", left: true, value: (m) => m.present / (m.total || 1), show: (m) => h("span", { class: "pair" }, bar(m.present / (m.total || 1), `${format.bytes(m.present)} of ${format.bytes(m.total)} are in the cache`), h("span", { class: "figure" }, `${format.bytes(m.present)} of ${format.bytes(m.total)}`)) },
        { name: "fetched", value: (m) => m.fetched, show: (m) => format.bytes(m.fetched) },
        { name: "read from here", title: "chunks read that were in the cache", value: (m) => m.hit_ratio, show: (m) => m.hits + m.misses ? format.number(100 * m.hit_ratio) + "\u202f%" : "–" },
        { name: "waited for", value: (m) => m.misses, show: (m) => format.number(m.misses) },
        { name: "slowest", title: "the longest fetch", value: (m) => m.slowest?.[0]?.seconds ?? 0, show: (m) => m.slowest?.length ? format.seconds(m.slowest[0].seconds) : "–" },
        { name: "errors", value: (m) => m.errors + m.corrupt, show: (m) => m.errors + m.corrupt ? h("span", { class: "bad" }, format.number(m.errors + m.corrupt)) : "0" },
        { name: "how", left: true, value: (m) => m.backend, show: (m) => h("span", { title: m.reason }, m.backend) },
      ], mounts, { label: "Mounts" })) : empty("Nothing is mounted", "The node runs and has no mounts."),
      failed.length ? h("section", {}, h("h2", {}, "What is wrong"), h("ul", { class: "advice" }, failed.map((m) => h("li", {}, h("b", {}, m.ref), " " + (m.error || m.last_error || m.state))))) : "",
      origins.size ? h("section", {}, h("h2", {}, "Origins"), table([
        { name: "origin", left: true, value: (o) => o.url },
        { name: "state", left: true, value: (o) => o.state, show: (o) => h("span", { class: "state " + (o.state === "healthy" ? "good" : "bad"), title: o.last_error }, o.state) },
        { name: "requests", value: (o) => o.requests, show: (o) => format.number(o.requests) },
        { name: "received", value: (o) => o.bytes, show: (o) => format.bytes(o.bytes) },
        { name: "errors", value: (o) => o.errors, show: (o) => format.number(o.errors) },
        { name: "99 % within", value: (o) => o.p99_seconds, show: (o) => format.seconds(o.p99_seconds) },
      ], [...origins.values()], { label: "Origins" })) : "",
      h("p", { class: "soft" }, `Node ${status.premix}, directory ${status.dir}, cache ${status.cache}` + (status.deaths ? `; its worker died ${status.deaths} times lately` : "")));
  }

  load();
  const again = setInterval(() => { if (!document.hidden && !holder.contains(document.activeElement)) load(); }, 5000);
  return { leave() { control.abort(); clearInterval(again); } };
}
