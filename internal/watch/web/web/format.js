// Values, times and durations for people. Units are the same everywhere: bytes in
// powers of a thousand, times in the browser's zone with 24 hours.

export function number(v, digits = 3) {
  if (v === null || v === undefined || Number.isNaN(v)) return "–";
  const a = Math.abs(v);
  if (a === 0) return "0";
  if (a >= 1e6) return scaled(v, "");
  if (a >= 1000) return Math.round(v).toLocaleString("en").replaceAll(",", "\u202f");
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(a)));
  if (a < 0.005) return v.toPrecision(2).replace(/e.*/, (e) => "·10" + superscript(e.slice(1)));
  return trim(v.toFixed(Math.min(decimals, 3)));
}

function superscript(exponent) {
  return String(Number(exponent)).replace("-", "⁻").replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]);
}

function trim(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function scaled(v, unit) {
  let prefix = "";
  for (const p of ["k", "M", "G", "T", "P"]) {
    if (Math.abs(v) < 1000) break;
    v /= 1000;
    prefix = p;
  }
  return number(v) + "\u202f" + prefix + unit;
}

// memory is what recipes ask for: powers of 1024.
export function memory(v) {
  if (v === null || v === undefined) return "–";
  let prefix = "";
  for (const p of ["Ki", "Mi", "Gi", "Ti"]) {
    if (Math.abs(v) < 1024) break;
    v /= 1024;
    prefix = p;
  }
  return number(v) + "\u202f" + prefix + "B";
}

// range writes what is usual, with its unit once.
export function range([low, high], unit) {
  const a = value(low, unit), b = value(high, unit);
  if (a === b) return a;
  const name = b.replace(/^[-\d.\u202f]*\d/, "");
  return (low >= 0 && low < 0.02 * high ? "0" : name && a.endsWith(name) ? a.slice(0, -name.length) : a) + "–" + b;
}

export function bytes(v) { return v === null || v === undefined ? "–" : scaled(v, "B"); }

// value writes a value of a series.
export function value(v, unit) {
  if (v === null || v === undefined || Number.isNaN(v)) return "–";
  switch (unit) {
    case "B": case "B/s": return scaled(v, unit);
    case "/s": return number(v) + "/s";
    case "s": return seconds(v);
    case "cores": return number(v) + "\u202fcores";
    case "W": case "°C": return number(v) + "\u202f" + unit;
    case "ratio": return number(100 * v) + "\u202f%";
  }
  return number(v);
}

// axis writes the values of an axis, all in the same prefix; unit is told once, beside it.
export function axis(values, unit) {
  const top = Math.max(...values.map(Math.abs));
  let factor = 1, name = { count: "", ratio: "%", "/s": "/s" }[unit] ?? unit;
  if (unit === "ratio") factor = 100;
  if (unit === "s") [factor, name] = top < 0.001 ? [1e6, "µs"] : top < 1 ? [1e3, "ms"] : top < 300 ? [1, "s"] : top < 7200 ? [1 / 60, "min"] : [1 / 3600, "h"];
  else if (unit !== "ratio") {
    for (const p of ["k", "M", "G", "T", "P"]) {
      if (top * factor < 1000) break;
      factor /= 1000;
      name = p + ({ count: "", "/s": "/s" }[unit] ?? unit);
    }
  }
  return { name, labels: values.map((v) => trim((v * factor).toFixed(3))) };
}

// seconds writes a duration.
export function seconds(v) {
  if (v === null || v === undefined || Number.isNaN(v)) return "–";
  const a = Math.abs(v);
  if (a === 0) return "0\u202fs";
  if (a < 0.001) return number(v * 1e6) + "\u202fµs";
  if (a < 1) return number(v * 1e3) + "\u202fms";
  if (a < 120) return number(v) + "\u202fs";
  if (a < 7200) return Math.floor(v / 60) + "\u202fmin" + (v % 60 >= 1 && a < 1800 ? " " + Math.floor(v % 60) + "\u202fs" : "");
  if (a < 172800) return number(v / 3600) + "\u202fh";
  return number(v / 86400) + "\u202fd";
}

const two = (n) => String(n).padStart(2, "0");

export function clock(ms, withSeconds = true) {
  const d = new Date(ms);
  return two(d.getHours()) + ":" + two(d.getMinutes()) + (withSeconds ? ":" + two(d.getSeconds()) : "");
}

const weekdays = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

export function day(ms) {
  const d = new Date(ms);
  return `${weekdays[d.getDay()]} ${d.getDate()} ${months[d.getMonth()]}`;
}

export function moment(ms) {
  return day(ms) + " " + clock(ms);
}

// dateValue is the value of an input of type date.
export function dateValue(ms) {
  const d = new Date(ms);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
}

// zoned is RFC 3339 with the browser's offset, so that the server's sentences tell the
// times that its user reads on the clock.
export function zoned(ms) {
  const d = new Date(ms), offset = -d.getTimezoneOffset();
  const local = new Date(ms + offset * 60000).toISOString().slice(0, 23);
  return local + (offset < 0 ? "-" : "+") + two(Math.floor(Math.abs(offset) / 60)) + ":" + two(Math.abs(offset) % 60);
}

// span writes a window: "Tue 17 Nov 14:00:00 – 14:15:00".
export function span(from, to) {
  return moment(from) + " – " + (day(from) === day(to) ? clock(to) : moment(to));
}

// ago is how long ago, roughly.
export function ago(ms, now = Date.now()) {
  const v = (now - ms) / 1000;
  return v < 5 ? "just now" : seconds(v < 100 ? Math.round(v) : v) + " ago";
}

// isTime tells whether a moment of the server is one: Go's zero time is the year 1.
export function isTime(text) {
  return Boolean(text) && !text.startsWith("0001-");
}
