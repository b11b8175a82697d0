// Small things that all pages use to build themselves.

// h makes an element: attributes, properties (onclick, value, ...), children. Text is
// text: nothing that the server says is ever taken for markup.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "style") {
      for (const [name, v] of Object.entries(value)) element.style.setProperty(name, v);
    } else if (key.startsWith("on") || key === "value" || key === "checked" || key === "selected") {
      element[key] = value;
    } else {
      element.setAttribute(key, value === true ? "" : value);
    }
  }
  element.append(...children.flat(Infinity).filter((c) => c !== undefined && c !== null && c !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.flat(Infinity).filter((c) => c !== undefined && c !== null));
  return element;
}

// icon is a picture from 16 by 16 lines, for decoration: its button has the words.
export function icon(path) {
  return s("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true", class: "icon" }, s("path", { d: path }));
}

export const icons = {
  play: "M5 3l8 5-8 5z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
  back: "M10 3L5 8l5 5",
  forward: "M6 3l5 5-5 5",
  close: "M4 4l8 8M12 4l-8 8",
  theme: "M8 2a6 6 0 1 0 0 12zM8 2a6 6 0 0 1 0 12",
  help: "M6 6a2 2 0 1 1 2.6 1.9C8 8.200 8 8.600 8 9.500M8 11.800v.6",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  search: "M7 3a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM10 10l3.500 3.500",
};

// say has screen readers tell something.
export function say(text) {
  document.querySelector("#said").textContent = text;
}

// colour is the value of a colour of the style sheet, for canvases. Canvases ask often,
// and the style sheet answers slowly: what it said is kept until the theme changes.
const known = new Map();

export function colour(name) {
  let value = known.get(name);
  if (!value) known.set(name, value = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim());
  return value;
}

export function forgetColours() { known.clear(); }

// palette are colours for lines and steps: told apart by most people, on light and on
// dark ground. Where there are more things than colours, lines are dashed as well.
export function palette() {
  return [1, 2, 3, 4, 5, 6].map((i) => colour("c" + i));
}

// empty is what a page shows where there is nothing to show.
export function empty(title, ...more) {
  return h("div", { class: "empty" }, h("h2", {}, title), ...more.map((m) => h("p", {}, m)));
}

// failure shows what went wrong and the way out.
export function failure(error, again) {
  return h("div", { class: "empty failure", role: "alert" },
    h("h2", {}, "This could not be read"),
    h("p", {}, error.message),
    error.hint && h("p", { class: "soft" }, error.hint),
    again && h("button", { onclick: again }, "Try again"));
}

// table makes a table that can be sorted by its headings. Columns are {name, value(row),
// show(row), left}; show gives what is seen and value what is sorted by.
export function table(columns, rows, options = {}) {
  let by = options.by ?? 0;
  let down = options.down ?? false;
  const body = h("tbody");
  const heads = columns.map((c, i) => h("th", { scope: "col", class: c.left && "left" },
    h("button", { title: c.title, onclick: () => { down = by === i ? !down : !c.left; by = i; fill(); } }, c.name)));
  const element = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": options.label },
    h("table", { class: options.class }, h("thead", {}, h("tr", {}, heads)), body));
  let limit = options.limit ?? 500;
  const more = h("button", { class: "more-rows", onclick: () => { limit *= 4; fill(); } });
  function fill() {
    const value = columns[by].value;
    const sorted = rows.slice().sort((a, b) => {
      const x = value(a), y = value(b);
      const c = typeof x === "string" ? x.localeCompare(y) : (x ?? -Infinity) - (y ?? -Infinity);
      return down ? -c : c;
    });
    heads.forEach((head, i) => i === by ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort"));
    body.replaceChildren(...sorted.slice(0, limit).map((row) => h("tr", options.row ? options.row(row) : {},
      columns.map((c) => h("td", { class: c.left && "left", title: c.tip?.(row) }, (c.show ?? c.value)(row) ?? "")))));
    more.hidden = sorted.length <= limit;
    more.textContent = `Show ${Math.min(sorted.length - limit, 3 * limit)} more of ${sorted.length - limit}`;
  }
  fill();
  return h("div", {}, element, more);
}

// bar is a part of a whole, drawn and told.
export function bar(part, label, kind = "") {
  const percent = Math.max(0, Math.min(1, part)) * 100;
  return h("span", { class: "meter " + kind, role: "img", "aria-label": label, title: label }, h("i", { style: { width: percent + "%" } }));
}
