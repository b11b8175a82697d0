// What is looked at: a page and a window of time, both of which stand in the address, so
// that it can be sent to somebody else. Moments are milliseconds since 1970.

export const view = {
  page: "timeline",
  from: Date.now() - 900e3,
  to: Date.now(),
  live: true,
  selection: null, // [from, to], chosen by dragging
  explain: false, // whether the selection, or else the window, is explained
  without: "", // series that are not compared then, a line each
  panels: null, // names of series; null: the usual ones
  item: "", // of pages that show one of several things
};

const changed = new Set();

// onChange has f called after each change with what changed: an object of names.
export function onChange(f) { changed.add(f); }
export function offChange(f) { changed.delete(f); }

let writing = 0;

// set changes the view. Where the page changes the browser's history gets an entry.
export function set(changes) {
  const what = {};
  for (const [key, value] of Object.entries(changes)) {
    if (view[key] !== value) what[key] = true;
    view[key] = value;
  }
  if (!Object.keys(what).length) return;
  if (what.page || what.item) {
    history.pushState(null, "", address());
  } else if (!writing) {
    // Browsers refuse to have the address written more often than some times a second.
    writing = setTimeout(() => { writing = 0; history.replaceState(null, "", address()); }, 300);
  }
  for (const f of [...changed]) f(what);
}

export function width() { return view.to - view.from; }

const iso = (ms) => new Date(ms).toISOString();

export function address(other = {}) {
  const v = { ...view, ...other };
  const query = new URLSearchParams();
  if (v.live) query.set("live", Math.round((v.to - v.from) / 1000));
  else {
    query.set("from", iso(v.from));
    query.set("to", iso(v.to));
  }
  if (v.selection) query.set("selection", v.selection.map(iso).join("~"));
  if (v.explain) query.set("explain", "1");
  if (v.explain && v.without) query.set("without", v.without);
  if (v.panels) query.set("panels", v.panels.join(","));
  if (v.item) query.set("item", v.item);
  return "#/" + v.page + "?" + query.toString().replaceAll("%3A", ":").replaceAll("%2C", ",").replaceAll("%7E", "~");
}

// read takes the view from the address.
export function read() {
  const [, page, query = ""] = location.hash.match(/^#\/([a-z]*)(?:\?(.*))?$/) ?? [null, ""];
  const p = new URLSearchParams(query);
  const next = { page: page || "timeline", selection: null, explain: p.get("explain") === "1", without: p.get("without") ?? "", panels: p.get("panels")?.split(",").filter(Boolean) ?? null, item: p.get("item") ?? "" };
  const from = Date.parse(p.get("from")), to = Date.parse(p.get("to"));
  if (to > from) Object.assign(next, { from, to, live: false });
  else {
    const length = Math.min(Math.max(Number(p.get("live")) || (view.to - view.from) / 1000, 10), 90 * 86400) * 1000;
    const now = Date.now();
    Object.assign(next, { from: now - length, to: now, live: true });
  }
  const selection = (p.get("selection") ?? "").split("~").map((t) => Date.parse(t));
  if (selection.length === 2 && selection[1] > selection[0]) next.selection = selection;
  const what = {};
  for (const key of Object.keys(next)) if (view[key] !== next[key]) what[key] = true;
  Object.assign(view, next);
  for (const f of [...changed]) f(what);
}
