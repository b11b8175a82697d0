// The page on which everything is on one axis of time.

import { h, icon, icons, say, failure, empty } from "./dom.js";
import { view, set, width, address } from "./view.js";
import { get, live } from "./api.js";
import { Panel, identity, selector } from "./chart.js";
import { Band } from "./band.js";
import * as timebar from "./timebar.js";
import * as format from "./format.js";
import { taskDetails } from "./tasks.js";

// Panels that are shown when nobody has chosen others, as far as they are recorded.
const usual = ["node.cpu_user", "node.pressure", "node.memory_available", "disk.busy", "disk.in_flight", "disk.writes", "disk.read_bytes", "disk.written_bytes", "network.received_bytes", "mount.nfs_time", "store.misses", "scheduler.jobs"];
const mostUsual = 8, mostTasks = 5000;

export function timeline(root) {
  const stopped = new AbortController();
  let names = [], panels = [], loaded = null, loading = null, timer = 0, report = null, told = "", task = null, listening = null, heard = "", happened = [];
  const reported = [];

  const band = new Band({ select, choose, cursor });
  const place = h("div", { class: "panels", tabindex: 0, role: "region", "aria-label": "Charts. Arrows move the cursor, with shift they choose a stretch of time, Enter explains it." });
  const more = h("button", { onclick: choosePanels }, icon(icons.plus), "Panels");
  const explainButton = h("button", { class: "primary", onclick: () => explain(), title: "What left its usual range first? (E)" }, icon(icons.search), h("span", {}, "Explain this window"));
  const chosen = h("div", { class: "chosen", hidden: true });
  const side = h("aside", { class: "side", hidden: true, "aria-label": "Details" });
  const trouble = h("div");
  const events = h("div", { class: "events" });
  root.append(h("div", { class: "timeline" },
    h("div", { class: "main" }, h("div", { class: "tools" }, explainButton, chosen, more), trouble, band.element, events, place), side));

  const resized = new ResizeObserver(() => { band.draw(); for (const p of panels) p.resize(); });
  resized.observe(place);

  function panelNames() {
    if (view.panels?.length) return view.panels;
    const have = new Set(names.map((n) => n.name));
    const list = usual.filter((n) => have.has(n)).slice(0, mostUsual);
    // A machine with other collectors than these has something to show as well.
    for (const n of have) if (list.length < 4 && !list.includes(n) && !n.startsWith("task.")) list.push(n);
    return list;
  }

  function arrange() {
    const wanted = panelNames();
    for (const p of panels) if (!wanted.includes(p.name)) p.destroy();
    panels = wanted.map((name) => panels.find((p) => p.name === name) ?? new Panel(name, {
      select, cursor, click: () => { if (view.selection) clear(); },
      close: () => { set({ panels: panelNames().filter((n) => n !== name) }); },
    }));
    panels.forEach((p, i) => { p.last = i === panels.length - 1; });
    place.replaceChildren(...panels.map((p) => p.element));
    if (!panels.length && names.length === 0 && loaded) {
      place.replaceChildren(empty("Nothing is recorded yet", "The first values come a second after premix watch has begun. This page fills by itself."));
    }
    marks();
    if (names.length) listen();
  }

  // need fetches what is to be seen where it is not there already, with something on both
  // sides, so that playback and small moves need no fetch.
  function need(again = false) {
    const w = width(), inside = loaded && view.from >= loaded.from && Math.min(view.to, Date.now()) <= loaded.to + 1500 && w <= loaded.width * 1.5 && w >= loaded.width / 2.5;
    if (inside && !again) {
      // Playing near the end of what is there: fetch ahead.
      if (view.live || view.to + w / 3 < loaded.to || loaded.to >= Date.now() - 2000 || loading) return;
    }
    clearTimeout(timer);
    timer = setTimeout(fetchAll, inside || !loaded ? 0 : 60);
  }

  async function fetchAll() {
    loading?.abort();
    const control = loading = new AbortController();
    const w = width(), now = Date.now();
    const from = view.live ? view.from : view.from - w / 2, to = Math.min(view.to + (view.live ? 0 : w), now);
    const step = Math.max(1, Math.round(w / 1000 / 400));
    const range = { start: format.zoned(from), end: format.zoned(to) };
    try {
      if (!names.length || now - (names.at ?? 0) > 30e3) {
        names = (await get("names", {}, control.signal)).series;
        names.at = now;
        arrange();
      }
      const wanted = panels.map((p) => p.name);
      const [answer, tasks, kept] = await Promise.all([
        wanted.length ? get("series", { name: wanted, ...range, step }, control.signal) : { series: [] },
        get("tasks", { ...range, engine: "-process", limit: mostTasks }, control.signal),
        get("events", range, control.signal),
      ]);
      if (control.signal.aborted) return;
      loaded = { from, to, width: w, step };
      const by = Map.groupBy(answer.series, (x) => x.name);
      for (const p of panels) p.data((by.get(p.name) ?? []).map((x) => ({ ...x, step: answer.step * 1000 })), view.from, view.to);
      band.data(tasks.tasks);
      happened = kept.events ?? [];
      showEvents();
      timebar.tell(tasks.truncated ? `only ${mostTasks} tasks are drawn: choose a shorter window` : "");
      trouble.replaceChildren();
      if (!panels.length) arrange();
      refresh();
    } catch (error) {
      if (error.name === "AbortError") return;
      trouble.replaceChildren(failure(error, () => need(true)));
      timer = setTimeout(() => need(true), 10000);
    } finally {
      if (loading === control) loading = null;
    }
  }

  function showEvents() {
    const seen = happened.filter((e) => Date.parse(e.time) >= view.from && Date.parse(e.time) <= view.to);
    events.replaceChildren(...seen.slice(-4).map((e) => h("p", {}, h("time", {}, format.clock(Date.parse(e.time))), " ", h("span", { class: "tag" }, e.layer), " ", e.text)),
      seen.length > 4 ? h("p", { class: "soft" }, `and ${seen.length - 4} earlier events`) : "");
  }

  let at = null;
  function cursor(t) {
    at = t;
    timebar.point(t);
    for (const p of panels) p.cursor(t);
    band.cursor(t);
  }

  function refresh() {
    band.window(view.from, view.to);
    for (const p of panels) { p.draw(view.from, view.to); p.readout(at); }
  }

  function marks() {
    const bands = view.selection ? [view.selection] : [];
    const list = report && report.findings.length ? [Date.parse(report.findings[0].began)] : [];
    band.highlight(bands, list);
    for (const p of panels) p.highlight(bands, list);
    chosen.hidden = !view.selection;
    explainButton.lastChild.textContent = view.selection ? "Explain this selection" : "Explain this window";
    if (view.selection) {
      const [a, b] = view.selection;
      chosen.replaceChildren(h("b", {}, `${format.clock(a)} – ${format.clock(b)}`), h("span", { class: "soft" }, format.seconds(Math.round((b - a) / 1000))),
        h("button", { onclick: () => timebar.show(a - (b - a) * 0.1, b + (b - a) * 0.1) }, "Zoom in"),
        h("button", { "aria-label": "Clear the selection", class: "square", onclick: clear }, icon(icons.close)));
    }
  }

  function select(from, to, done) {
    if (view.live && done) set({ live: false });
    timebar.stop();
    set({ selection: [Math.round(from), Math.round(to)], explain: false, without: "" });
    if (done) say(`selected ${format.clock(from)} to ${format.clock(to)}`);
  }

  function clear() { set({ selection: null, explain: false, without: "" }); }

  function explain() {
    if (view.live) set({ live: false });
    set({ explain: true });
    runExplain(true);
  }

  async function runExplain(byHand = false) {
    const [a, b] = view.selection ?? [view.from, view.to];
    const key = a + "~" + b + "~" + view.without;
    if (told === key && !byHand) return;
    told = key;
    task = null;
    side.hidden = false;
    side.replaceChildren(sideHead("What left its usual range first"), h("p", { class: "soft", role: "status" }, `Comparing ${format.clock(a)} – ${format.clock(b)} with what came before …`));
    if (byHand && innerWidth < 1000) side.scrollIntoView({ block: "start" });
    try {
      report = await get("explain", { start: format.zoned(a), end: format.zoned(b), without: known() }, stopped.signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      report = null;
      side.replaceChildren(sideHead("What left its usual range first"), failure(error, () => runExplain(true)));
      return;
    }
    if (told !== key) return;
    const list = report.findings;
    const first = list.length ? Date.parse(list[0].began) : 0;
    const lost = report.lost.observed_seconds > 0 ? report.lost : null;
    side.replaceChildren(sideHead(lost ? "What delayed tasks" : "What left its usual range first"),
      h("p", { class: "soft" }, `${format.clock(a)} – ${format.clock(b)}, compared with ${format.seconds((Date.parse(report.baseline.end) - Date.parse(report.baseline.start)) / 1000)} before; ${report.series} series`),
      lost ? h("p", { class: "soft" }, `Tasks lost ${format.value(lost.share, "ratio")} of their time; before, ${format.value(lost.usual_share, "ratio")}.`) : "",
      leftOut(),
      list.length
        ? h("ol", { class: "findings" }, list.map((f, i) => finding(f, i, first)))
        : lost ? h("div", { class: "empty" }, h("h2", {}, "No cause"), h("p", {}, "Nothing cost tasks much more of their time than before."))
        : h("div", { class: "empty" }, h("h2", {}, report.notes.length ? "No trouble" : "Nothing unusual"), h("p", {}, report.notes.length ? "Some series left their usual range, and nothing waited or failed." : `All ${report.series} series stayed within what is usual for them.`), report.usual ? h("p", { class: "soft" }, `${report.usual} did what they do at this hour, or now and then.`) : ""),
      report.omitted ? h("p", { class: "soft" }, `and ${report.omitted} more`) : "",
      report.notes.length ? h("h3", {}, lost ? "Unusual, without a measured cost" : "Unusual, but no task was slow") : "",
      report.notes.length ? h("ol", { class: "findings" }, report.notes.map((f) => finding(f, -1, first))) : "",
      report.young ? h("p", { class: "soft" }, `${report.young} series have too little history to be compared.`) : "");
    say(list.length ? `${list.length} findings. First: ${list[0].sentence}` : "nothing unusual");
    marks();
  }

  // known are the series that are not to be compared.
  function known() { return view.without ? view.without.split("\n") : []; }

  // leftOut lists them, each with a way back.
  function leftOut() {
    return known().length ? h("ul", { class: "without", "aria-label": "Left out" }, known().map((s) =>
      h("li", {}, "without ", h("span", {}, s), h("button", { class: "quiet square", "aria-label": "Compare " + s + " again", onclick: () => set({ without: known().filter((x) => x !== s).join("\n") }) }, icon(icons.close))))) : "";
  }

  function finding(f, i, first) {
    const lag = f.lag_seconds;
    const open = () => {
      const list = panelNames();
      const name = f.name;
      if (names.some((n) => n.name === name) && !list.includes(name)) set({ panels: [name, ...list] });
      const panel = panels.find((p) => p.name === name);
      if (panel) {
        panel.focus(identity(f.name, f.labels));
        panel.element.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
        panel.element.classList.add("found");
        setTimeout(() => panel.element.classList.remove("found"), 1600);
      }
      cursor(Date.parse(f.began));
    };
    return h("li", { class: "finding layer-" + f.layer + (i === 0 ? " first" : "") },
      h("button", { onclick: open },
        h("span", { class: "when" }, f.kind ? format.seconds(f.cost_seconds) : i <= 0 ? format.clock(Date.parse(f.began)) : lag < 0.5 ? "same time" : "+" + format.seconds(lag)),
        h("span", { class: "what" }, h("i", { class: "layer", "aria-hidden": "true" }), h("b", {}, f.thing), h("span", {}, " " + f.quantity)),
        i === 0 || f.kind ? h("span", { class: "sentence" }, f.sentence + ".")
          : h("span", { class: "how soft" }, `usually ${format.range(f.usual, f.unit)}, ${f.seen < f.usual[0] ? "fell to" : "reached"} `, h("b", {}, format.value(f.seen, f.unit)))),
      f.tasks.length && i === 0 ? h("p", { class: "soft" }, h("a", { href: address({ page: "tasks" }) }, `${f.tasks.length}${f.tasks.length >= 20 ? " or more" : ""} tasks`), " felt it") : "",
      h("button", { class: "quiet except", "aria-label": `Explain without ${f.thing} ${f.quantity}`, onclick: () => set({ without: [...known(), selector(f.name, f.labels)].join("\n") }) }, "Explain without this"));
  }

  function sideHead(title) {
    return h("header", {}, h("h2", {}, title), h("button", { class: "quiet square", "aria-label": "Close", onclick: closeSide }, icon(icons.close)));
  }

  function closeSide() {
    side.hidden = true;
    report = null;
    task = null;
    told = "";
    set({ explain: false, without: "" });
    marks();
    place.focus({ preventScroll: true });
  }

  function choose(t) {
    if (!t) { if (view.selection) clear(); return; }
    task = t;
    told = "";
    side.hidden = false;
    side.replaceChildren(sideHead(t.name), taskDetails(t, band.bars.map((b) => b.task)));
    if (innerWidth < 1000) side.scrollIntoView({ block: "nearest" });
  }

  function choosePanels() {
    const now = new Set(panelNames());
    const filter = h("input", { type: "search", placeholder: "Search", "aria-label": "Search for series", oninput: () => fill() });
    const list = h("div", { class: "choices" });
    const count = Map.groupBy(names, (n) => n.name);
    const fill = () => {
      const words = filter.value.toLowerCase().split(/\s+/);
      const found = [...count.keys()].sort().filter((n) => words.every((w) => n.includes(w) || count.get(n).some((x) => Object.values(x.labels ?? {}).some((v) => v.toLowerCase().includes(w)))));
      const layers = Map.groupBy(found, (n) => n.split(".")[0]);
      list.replaceChildren(...[...layers].map(([layer, of]) => h("fieldset", { class: "layer-" + layer }, h("legend", {}, h("i", { class: "layer" }), layer),
        of.map((n) => h("label", {}, h("input", { type: "checkbox", checked: now.has(n), onchange: (e) => { if (e.target.checked) now.add(n); else now.delete(n); set({ panels: [...now] }); } }),
          n.slice(layer.length + 1).replaceAll("_", " "), h("span", { class: "soft" }, " " + (count.get(n).length > 1 ? count.get(n).length + " series" : "")))))),
        found.length ? "" : h("p", { class: "soft" }, "No series has such a name."));
    };
    fill();
    const dialog = h("dialog", { class: "chooser", "aria-label": "Panels" },
      h("header", {}, h("h2", {}, "Panels"), h("button", { class: "quiet square", "aria-label": "Close", onclick: () => dialog.close() }, icon(icons.close))),
      filter, list, h("footer", {}, h("button", { onclick: () => { set({ panels: null }); dialog.close(); } }, "The usual ones"), h("button", { class: "primary", onclick: () => dialog.close() }, "Done")));
    dialog.addEventListener("close", () => { dialog.remove(); more.focus(); });
    document.body.append(dialog);
    dialog.showModal();
    filter.focus();
  }

  place.addEventListener("keydown", (e) => {
    if (e.target !== place) return;
    const move = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (move) {
      e.preventDefault();
      e.stopPropagation();
      const step = width() / 100;
      const before = at ?? (view.from + view.to) / 2;
      const t = Math.min(Math.max(before + move * step, view.from), view.to);
      if (e.shiftKey) {
        anchor ??= before;
        select(Math.min(anchor, t), Math.max(anchor, t), true);
      } else anchor = null;
      cursor(t);
      if (!e.shiftKey) say(format.clock(t) + ": " + panels.slice(0, 3).map((p) => p.title + " " + p.values.innerText.replace(/\s+/g, " ")).join("; "));
    } else if (e.key === "Enter") {
      e.preventDefault();
      explain();
    }
  });
  let anchor = null;

  // What happens is added as it comes; long windows are fetched anew from time to time.
  let ticking = 0;
  function tick() {
    if (!view.live) return;
    const now = Date.now();
    if (reported.length) band.add(reported.splice(0));
    set({ from: now - width(), to: now });
  }
  function follow() {
    clearInterval(ticking);
    if (view.live) ticking = setInterval(tick, Math.min(Math.max(width() / 600, 1000), 10000));
  }
  const fresh = setInterval(() => {
    if (view.live && loaded && (!panels.length || loaded.step > 2 || Date.now() - loaded.to > 120e3) && !document.hidden) need(true);
  }, 5000);

  function happens(event, data) {
    if (event === "open") { timebar.tell(""); if (view.live && loaded) need(true); }
    if (event === "cut") timebar.tell("no connection: tried again");
    if (!view.live || !loaded) return;
    if (event === "samples" && loaded.step <= 2) {
      const by = new Map(data.v.map(([name, labels, v]) => [identity(name, labels), v]));
      for (const p of panels) p.add(data.t, by, view.from);
      loaded.to = Math.max(loaded.to, data.t);
      loaded.from = Math.min(loaded.from, view.from);
    } else if (event === "task") {
      reported.push(data); // thousands may come in a second: the next tick draws them
    } else if (event === "event") {
      happened.push(data);
      showEvents();
    } else if (event === "lost") {
      need(true);
    }
  }
  // listen asks for what happens to the series that are shown.
  function listen() {
    const wanted = panels.map((p) => p.name);
    if (listening && heard === wanted.join()) return;
    listening?.abort();
    heard = wanted.join();
    listening = new AbortController();
    live(wanted.length ? wanted : ["-"], happens, listening.signal);
  }


  arrange();
  need();
  follow();
  if (view.explain) runExplain();

  return {
    changed(what) {
      if (what.panels) { arrange(); need(true); }
      if (what.live) follow();
      if (what.from || what.to || what.live) { need(); refresh(); }
      if (what.selection || what.explain || what.without) {
        if (!view.explain && !task) { side.hidden = true; report = null; told = ""; }
        marks();
        if (view.explain) runExplain();
      }
    },
    key(e) {
      if (e.key === "e") explain();
      else if (e.key === "p") choosePanels();
      else if (e.key === "Escape" && !side.hidden) closeSide();
      else if (e.key === "Escape" && view.selection) clear();
      else return false;
      return true;
    },
    theme() { for (const p of panels) if (p.list.length) p.data(p.list, view.from, view.to); marks(); refresh(); },
    leave() {
      stopped.abort();
      listening?.abort();
      loading?.abort();
      clearTimeout(timer);
      clearInterval(ticking);
      clearInterval(fresh);
      resized.disconnect();
      for (const p of panels) p.destroy();
    },
  };
}
