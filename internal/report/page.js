"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  if (!data.sample) return; // nothing has run
  const tries = data.sample.length;
  const $ = (id) => document.getElementById(id);

  // Text

  const seconds = (s) => {
    if (s < 0.00995) return (s * 1000).toFixed(1) + " ms";
    if (s < 0.9995) return (s * 1000).toFixed(0) + " ms";
    if (s < 9.995) return s.toFixed(2) + " s";
    if (s < 119.95) return s.toFixed(1) + " s";
    if (s < 7170) return (s / 60).toFixed(0) + " min";
    return (s / 3600).toFixed(1) + " h";
  };
  const bytes = (n) => {
    let unit = 0;
    for (; n >= 1024 && unit < 4; unit++) n /= 1024;
    return n.toFixed(unit === 0 || n >= 100 ? 0 : 1) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][unit];
  };
  const known = (n) => (n ? bytes(n) : "-");
  const kindOf = (i) => data.kinds[data.kind[i]] || "none";
  const groupOf = (i) => data.groups[data.group[i]];
  const element = (name, text, attributes) => {
    const e = document.createElement(name);
    if (text !== undefined) e.textContent = text;
    for (const key in attributes) e.setAttribute(key, attributes[key]);
    return e;
  };

  // Colours follow the scheme of the page.

  let colour = {};
  const readColours = () => {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["fork", "hot", "copy", "cold", "none", "bad", "text", "soft", "line", "lane", "panel", "focus"])
      colour[name] = style.getPropertyValue("--" + name).trim();
  };

  // One task is chosen at a time, in timeline and table alike.

  let chosen = -1;
  const choose = (i, from) => {
    if (i === chosen) return;
    chosen = i;
    showDetails();
    timeline.draw();
    table.mark(from !== "table" && from !== "hover");
  };
  const showDetails = () => {
    const box = $("details");
    if (chosen < 0) return;
    const i = chosen;
    const list = element("dl");
    const add = (name, value) => {
      const pair = element("div");
      pair.append(element("dt", name), element("dd", value));
      list.append(pair);
    };
    add("start", kindOf(i) === "none" ? "not started" : kindOf(i));
    add("latency", seconds(data.latency[i]));
    add("time", seconds(data.seconds[i]));
    add("CPU", seconds(data.cpu[i]));
    add("wait", seconds(data.wait[i]));
    add("max RSS", known(data.rss[i]));
    add("read", bytes(data.read[i]));
    add("written", bytes(data.written[i]));
    add("cores", data.cores[i]);
    if (data.memory[i]) add("memory asked for", bytes(data.memory[i]));
    add("lane", data.lane[i] + 1);
    if (groupOf(i)) add("step", groupOf(i));
    box.replaceChildren(element("h3", data.sample[i] + (data.try[i] > 1 || !data.last[i] ? ", try " + data.try[i] : "")));
    if (data.error[i]) box.append(element("p", data.error[i], { class: "error" }));
    if (data.stderr[i]) box.append(element("pre", data.stderr[i]));
    box.append(list);
    if (data.reasons[data.reason[i]]) box.append(element("p", data.reasons[data.reason[i]], { class: "note" }));
  };

  // Timeline

  const timeline = (() => {
    const canvas = $("timeline"), pen = canvas.getContext("2d");
    const slots = data.lane.reduce((n, s) => Math.max(n, s + 1), 1);
    const lanes = Array.from({ length: slots }, () => []);
    for (let i = 0; i < tries; i++) lanes[data.lane[i]].push(i);
    for (const lane of lanes) lane.sort((a, b) => data.begin[a] - data.begin[b]);
    const height = Math.max(5, Math.min(26, Math.floor(420 / slots)));
    const gap = height > 10 ? 4 : 1, axis = 24, left = slots > 1 && height >= 13 ? 26 : 0;
    const span = Math.max(data.span, 1e-6);
    const least = span / Math.max(50, tries * 2);
    let from = 0, to = span, width = 0, planned = false;

    const x = (t) => left + (t - from) / (to - from) * (width - left);
    const time = (px) => from + (px - left) / (width - left) * (to - from);
    const laneTop = (s) => s * (height + gap);

    const step = (about) => {
      if (about > 20)
        for (const by of [30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400]) if (by >= about) return by;
      const power = Math.pow(10, Math.floor(Math.log10(about)));
      for (const m of [1, 2, 5, 10]) if (m * power >= about) return m * power;
      return 10 * power;
    };
    const clock = (t, by) => {
      if (by >= 60) {
        const m = Math.round(t / 60);
        return m >= 60 ? Math.floor(m / 60) + ":" + String(m % 60).padStart(2, "0") + " h" : m + " min";
      }
      return t.toFixed(Math.max(0, -Math.floor(Math.log10(by) + 1e-9))) + " s";
    };

    const paint = () => {
      planned = false;
      const ratio = window.devicePixelRatio || 1;
      const tall = slots * (height + gap) + axis;
      width = canvas.clientWidth;
      if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(tall * ratio)) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(tall * ratio);
        canvas.style.height = tall + "px";
      }
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width, tall);
      pen.font = "12px system-ui, sans-serif";
      pen.textBaseline = "middle";
      // Lanes and axis
      for (let s = 0; s < slots; s++) {
        pen.fillStyle = colour.lane;
        pen.fillRect(left, laneTop(s), width - left, height);
        if (left) {
          pen.fillStyle = colour.soft;
          pen.textAlign = "left";
          pen.fillText(s + 1, 0, laneTop(s) + height / 2);
        }
      }
      const by = step((to - from) / Math.max(2, width / 110));
      const base = slots * (height + gap);
      for (let n = Math.ceil(from / by - 1e-9); n * by <= to; n++) {
        const at = x(n * by);
        pen.fillStyle = colour.line;
        pen.fillRect(Math.round(at), 0, 1, base + 3);
        pen.fillStyle = colour.soft;
        pen.textAlign = at < left + 20 ? "left" : at > width - 30 ? "right" : "center";
        pen.fillText(clock(n * by, by), at, base + 13);
      }
      // Tasks
      for (let s = 0; s < slots; s++) {
        const top = laneTop(s);
        for (const i of lanes[s]) {
          const a = Math.max(x(data.begin[i]), left), b = Math.min(x(data.begin[i] + data.seconds[i]), width);
          if (b < left || a > width) continue;
          const wide = Math.max(b - a - (b - a > 4 ? 1 : 0), 1);
          pen.fillStyle = colour[kindOf(i)];
          pen.globalAlpha = data.last[i] ? 1 : 0.45;
          pen.fillRect(a, top, wide, height);
          const late = x(data.begin[i] + Math.min(data.latency[i], data.seconds[i])) - a;
          if (wide > 3 && late > 0.5) {
            pen.fillStyle = colour.text;
            pen.globalAlpha = 0.38;
            pen.fillRect(a, top, Math.min(late, wide), height);
          }
          pen.globalAlpha = 1;
          if (data.error[i]) {
            pen.strokeStyle = colour.bad;
            pen.lineWidth = 2;
            pen.strokeRect(a + 1, top + 1, Math.max(wide - 2, 1), height - 2);
          }
          if (wide > 30 && height >= 14 && pen.measureText(data.sample[i]).width < wide - 10) {
            pen.fillStyle = colour.panel;
            pen.textAlign = "left";
            pen.fillText(data.sample[i], a + 5, top + height / 2 + 1);
          }
        }
      }
      // Pauses that were cut
      for (const p of data.pauses) {
        const at = x(p.at);
        if (at < left || at > width) continue;
        pen.strokeStyle = colour.soft;
        pen.lineWidth = 1;
        pen.setLineDash([3, 3]);
        pen.beginPath();
        pen.moveTo(at, 0);
        pen.lineTo(at, base);
        pen.stroke();
        pen.setLineDash([]);
      }
      if (chosen >= 0) {
        const a = Math.max(x(data.begin[chosen]), left), b = Math.min(x(data.begin[chosen] + data.seconds[chosen]), width);
        if (b >= left && a <= width) {
          pen.strokeStyle = colour.focus;
          pen.lineWidth = 2;
          pen.strokeRect(a - 1, laneTop(data.lane[chosen]) - 0.5, Math.max(b - a, 3) + 1, height + 1);
        }
      }
    };
    const draw = () => {
      if (planned) return;
      planned = true;
      requestAnimationFrame(paint);
    };

    // The last task of a lane that began at or before t, or the first.
    const search = (lane, t) => {
      let low = 0, high = lane.length;
      while (low < high) {
        const mid = (low + high) >> 1;
        if (data.begin[lane[mid]] <= t) low = mid + 1; else high = mid;
      }
      return Math.max(0, low - 1);
    };
    const hit = (px, py) => {
      const s = Math.floor(py / (height + gap));
      if (s < 0 || s >= slots || !lanes[s].length) return -1;
      const n = search(lanes[s], time(px));
      let best = -1, near = 4;
      for (const i of [lanes[s][n], lanes[s][n + 1]]) {
        if (i === undefined) continue;
        const a = x(data.begin[i]), b = Math.max(a + 1, x(data.begin[i] + data.seconds[i]));
        const away = Math.max(a - px, px - b, 0);
        if (away < near) { best = i; near = away; }
      }
      return best;
    };

    const view = (a, b) => {
      const size = Math.min(Math.max(b - a, least), span);
      a = Math.min(Math.max(a, 0), span - size);
      from = a;
      to = a + size;
      draw();
    };
    const zoom = (by, px) => {
      const at = px === undefined ? (chosen >= 0 && data.begin[chosen] >= from && data.begin[chosen] <= to ? data.begin[chosen] : (from + to) / 2) : time(px);
      view(at - (at - from) * by, at + (to - at) * by);
    };
    const reveal = (i) => {
      const a = data.begin[i], b = a + data.seconds[i], size = to - from;
      if (a < from || b > to) view(a - size / 3, a - size / 3 + size);
    };

    // Pointer: hover and click choose, one drags, two pinch.
    const held = new Map();
    let moved = false, grip = null;
    const place = (e) => {
      const box = canvas.getBoundingClientRect();
      return [e.clientX - box.left, e.clientY - box.top];
    };
    const take = () => {
      const at = [...held.values()].map((p) => p[0]);
      grip = at.length ? { from, to, low: Math.min(...at), high: Math.max(...at), n: at.length } : null;
    };
    canvas.addEventListener("pointerdown", (e) => {
      held.set(e.pointerId, place(e));
      canvas.setPointerCapture(e.pointerId);
      moved = false;
      take();
    });
    canvas.addEventListener("pointermove", (e) => {
      const [px, py] = place(e);
      if (!held.has(e.pointerId)) {
        const i = hit(px, py);
        if (i >= 0) choose(i, "hover");
        return;
      }
      held.set(e.pointerId, [px, py]);
      const at = [...held.values()].map((p) => p[0]);
      const low = Math.min(...at), high = Math.max(...at), room = width - left;
      if (Math.abs(low - grip.low) + Math.abs(high - grip.high) > 4) moved = true;
      if (!moved) return;
      canvas.classList.add("drag");
      const old = grip.to - grip.from;
      const size = grip.n > 1 ? old * (grip.high - grip.low) / Math.max(high - low, 10) : old;
      const mid = grip.from + ((grip.low + grip.high) / 2 - left) / room * old;
      const start = mid - ((low + high) / 2 - left) / room * size;
      view(start, start + size);
    });
    const release = (e) => {
      const [px, py] = place(e);
      held.delete(e.pointerId);
      canvas.classList.remove("drag");
      if (!moved && e.type === "pointerup") {
        const i = hit(px, py);
        if (i >= 0) { chosen = -1; choose(i, "timeline"); }
      }
      take();
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("wheel", (e) => {
      if (e.ctrlKey || e.metaKey) {
        e.preventDefault();
        zoom(Math.exp(e.deltaY / 200), place(e)[0]);
      } else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
        e.preventDefault();
        const by = e.deltaX / width * (to - from);
        view(from + by, to + by);
      }
    }, { passive: false });
    canvas.addEventListener("keydown", (e) => {
      const lane = chosen >= 0 ? lanes[data.lane[chosen]] : lanes[0];
      const at = chosen >= 0 ? lane.indexOf(chosen) : -1;
      let next = -1;
      switch (e.key) {
        case "ArrowRight": next = lane[Math.min(at + 1, lane.length - 1)]; break;
        case "ArrowLeft": next = lane[Math.max(at - 1, 0)]; break;
        case "Home": next = lane[0]; break;
        case "End": next = lane[lane.length - 1]; break;
        case "ArrowDown":
        case "ArrowUp": {
          const by = e.key === "ArrowDown" ? 1 : -1;
          for (let s = (chosen >= 0 ? data.lane[chosen] : -by) + by; s >= 0 && s < slots; s += by)
            if (lanes[s].length) {
              next = lanes[s][search(lanes[s], chosen >= 0 ? data.begin[chosen] : 0)];
              break;
            }
          break;
        }
        case "+": case "=": zoom(0.5); break;
        case "-": zoom(2); break;
        case "0": case "Escape": view(0, span); break;
        default: return;
      }
      e.preventDefault();
      if (next !== undefined && next >= 0) {
        choose(next, "timeline");
        reveal(next);
      }
    });
    $("zoom-in").addEventListener("click", () => zoom(0.5));
    $("zoom-out").addEventListener("click", () => zoom(2));
    $("zoom-all").addEventListener("click", () => view(0, span));
    new ResizeObserver(draw).observe(canvas);
    return { draw, reveal };
  })();

  // Legend

  const used = data.kinds.filter((k, n) => data.kind.includes(n));
  for (const kind of used) {
    const item = element("span");
    item.append(element("i", "", { class: "dot " + kind }), kind);
    $("legend").append(item);
  }
  for (const [name, text, when] of [["lat", "until its input", data.latency.some((v) => v)], ["bad", "failed", data.error.some((e) => e)]]) {
    if (!when) continue;
    const item = element("span");
    item.append(element("i", "", { class: "dot " + name }), text);
    $("legend").append(item);
  }

  // Spread of latency and time, one row a kind of start, on one logarithmic axis

  const spread = (title, values) => {
    if (!$("spread")) return;
    const rows = used.map((kind) => {
      const v = [];
      for (let i = 0; i < tries; i++)
        if (data.last[i] && !data.error[i] && kindOf(i) === kind) v.push(Math.max(values[i], 1e-4));
      return { kind, v: v.sort((a, b) => a - b) };
    }).filter((r) => r.v.length);
    if (!rows.length) return;
    const all = rows.flatMap((r) => [r.v[0], r.v[r.v.length - 1]]);
    let low = Math.log10(Math.min(...all)), high = Math.log10(Math.max(...all));
    const room = Math.max((high - low) * 0.04, 0.1);
    low -= room;
    high += room;
    const wide = 420, left = 44, tall = 54, bins = 56;
    const x = (v) => left + (Math.log10(v) - low) / (high - low) * (wide - left - 8);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${wide} ${rows.length * tall + 24}`);
    svg.setAttribute("role", "img");
    const told = rows.map((r) => `${r.kind} median ${seconds(middle(r.v))}`).join(", ");
    svg.setAttribute("aria-label", `${title}: ${told}`);
    const draw = (name, attributes, text) => {
      const e = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const key in attributes) e.setAttribute(key, attributes[key]);
      if (text !== undefined) e.textContent = text;
      svg.append(e);
    };
    const bottom = rows.length * tall;
    // Ticks at 1, 2 and 5, or only at 1 where there are many
    const factors = high - low > 2.2 ? [1] : [1, 2, 5];
    for (let p = Math.floor(low); p <= high; p++)
      for (const f of factors) {
        const v = f * Math.pow(10, p), at = x(v);
        if (at < left + 4 || at > wide - 12) continue;
        draw("line", { x1: at, x2: at, y1: 0, y2: bottom + 4, stroke: "var(--line)" });
        const label = v >= 1 ? +v.toPrecision(3) + " s" : +(v * 1000).toPrecision(3) + " ms";
        draw("text", { x: at, y: bottom + 18, "text-anchor": "middle" }, label);
      }
    rows.forEach((r, n) => {
      const base = (n + 1) * tall - 4, counts = new Array(bins).fill(0);
      for (const v of r.v) counts[Math.min(bins - 1, Math.floor((Math.log10(v) - low) / (high - low) * bins))]++;
      const most = Math.max(...counts), bin = (wide - left - 8) / bins;
      draw("line", { x1: left, x2: wide - 8, y1: base, y2: base, stroke: "var(--line)" });
      counts.forEach((c, b) => {
        if (!c) return;
        const h = Math.max(2, c / most * (tall - 22));
        draw("rect", { x: left + b * bin + 0.5, y: base - h, width: bin - 1, height: h, fill: `var(--${r.kind})` });
      });
      const at = x(middle(r.v));
      draw("line", { x1: at, x2: at, y1: base - tall + 20, y2: base + 3, stroke: "var(--text)", "stroke-width": 1.5 });
      const right = at > wide * 0.65;
      draw("text", { x: at + (right ? -5 : 5), y: base - tall + 18, class: "strong", "text-anchor": right ? "end" : "start" }, `median ${seconds(middle(r.v))}`);
      draw("text", { x: 0, y: base - 4, class: "strong" }, r.kind);
    });
    const box = element("div");
    box.append(element("h3", title), svg);
    $("spread").append(box);
  };
  const middle = (v) => (v[(v.length - 1) >> 1] + v[v.length >> 1]) / 2;

  // Table: only the rows in sight are in the document. On paper it has the first thousand.

  const table = (() => {
    const box = $("rows"), head = box.querySelector("thead tr"), body = box.querySelector("tbody"), tall = 33;
    const columns = [
      { name: $("spread") ? "sample" : "task", of: (i) => data.sample[i], left: true, title: true },
      { name: "step", of: groupOf, left: true, when: data.groups.length > 1 },
      { name: "start", of: (i) => kindOf(i), left: true, dot: true },
      { name: "latency", of: (i) => data.latency[i], show: seconds, when: data.latency.some((v) => v) },
      { name: "time", of: (i) => data.seconds[i], show: seconds },
      { name: "CPU", of: (i) => data.cpu[i], show: seconds },
      { name: "wait", of: (i) => data.wait[i], show: seconds },
      { name: "cores", of: (i) => data.cores[i] },
      { name: "memory", of: (i) => data.memory[i], show: known, when: data.memory.some((v) => v) },
      { name: "max RSS", of: (i) => data.rss[i], show: known },
      { name: "read", of: (i) => data.read[i], show: bytes },
      { name: "written", of: (i) => data.written[i], show: bytes },
      { name: "try", of: (i) => data.try[i] },
      { name: "error", of: (i) => data.error[i], left: true, error: true, when: data.error.some((e) => e) },
    ].filter((c) => c.when !== false);
    const mostPrinted = 1000;
    let order = [], sorted = -1, down = false, planned = false, printing = false;
    const all = [];
    for (let i = 0; i < tries; i++) if (data.last[i]) all.push(i);

    const compare = new Intl.Collator("en", { numeric: true }).compare;
    const arrange = () => {
      const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
      order = all.filter((i) => {
        const text = (data.sample[i] + " " + groupOf(i) + " " + kindOf(i) + " " + data.error[i] + " " + data.stderr[i] + (data.error[i] ? " failed" : "")).toLowerCase();
        return words.every((w) => text.includes(w));
      });
      if (sorted >= 0) {
        const of = columns[sorted].of, sign = down ? -1 : 1;
        order.sort((a, b) => {
          const u = of(a), v = of(b);
          return sign * (typeof u === "string" ? compare(u, v) : u - v) || a - b;
        });
      }
      head.querySelectorAll("th").forEach((th, n) => {
        th.setAttribute("aria-sort", n === sorted ? (down ? "descending" : "ascending") : "none");
        th.querySelector("button").textContent = columns[n].name + (n === sorted ? (down ? " ↓" : " ↑") : "");
      });
      $("count").textContent = order.length === all.length ? `${all.length} tasks` : `${order.length} of ${all.length} tasks`;
      box.scrollTop = 0;
      paint();
    };
    const paint = () => {
      planned = false;
      const sight = Math.ceil(box.clientHeight / tall);
      const first = printing ? 0 : Math.max(0, Math.min(Math.floor(box.scrollTop / tall) - 10, order.length - sight));
      const last = Math.min(order.length, printing ? mostPrinted : first + sight + 20);
      const rows = [];
      const space = (n) => {
        const tr = element("tr", undefined, { class: "space", "aria-hidden": "true" });
        const td = element("td", undefined, { colspan: columns.length });
        td.style.height = n * tall + "px";
        tr.append(td);
        return tr;
      };
      if (first > 0) rows.push(space(first));
      for (let n = first; n < last; n++) {
        const i = order[n], tr = element("tr", undefined, { "aria-rowindex": n + 2 });
        if (i === chosen) tr.className = "chosen";
        tr.dataset.i = i;
        for (const c of columns) {
          const v = c.of(i), td = element("td", c.show ? c.show(v) : v === "none" ? "-" : v);
          if (c.left) td.className = c.error ? "left error" : "left";
          if (c.error || c.title) td.title = v;
          if (c.dot) td.prepend(element("i", "", { class: "dot " + v }));
          tr.append(td);
        }
        rows.push(tr);
      }
      if (last < order.length && printing) {
        const tr = element("tr"), td = element("td", `${order.length - last} more tasks are not printed`, { colspan: columns.length });
        tr.append(td);
        rows.push(tr);
      } else if (last < order.length) {
        rows.push(space(order.length - last));
      }
      body.replaceChildren(...rows);
    };
    columns.forEach((c, n) => {
      const th = element("th", undefined, { scope: "col", class: c.left ? "left" : "" });
      const button = element("button", c.name, { type: "button" });
      button.addEventListener("click", () => {
        down = sorted === n ? !down : !c.left;
        sorted = n;
        arrange();
      });
      th.append(button);
      head.append(th);
    });
    box.querySelector("table").setAttribute("aria-rowcount", all.length + 1);
    const print = (is) => {
      printing = is;
      paint();
    };
    const paper = matchMedia("print");
    paper.addEventListener("change", () => print(paper.matches));
    addEventListener("beforeprint", () => print(true));
    addEventListener("afterprint", () => print(false));
    box.addEventListener("scroll", () => {
      if (planned) return;
      planned = true;
      requestAnimationFrame(paint);
    });
    body.addEventListener("click", (e) => {
      const tr = e.target.closest("tr[data-i]");
      if (!tr) return;
      choose(+tr.dataset.i, "table");
      timeline.reveal(+tr.dataset.i);
    });
    $("filter").addEventListener("input", arrange);
    // mark shows which row is chosen and, if it is wished, scrolls to it.
    const mark = (scroll) => {
      const n = order.indexOf(chosen);
      if (scroll && n >= 0) {
        const top = n * tall;
        if (top < box.scrollTop || top > box.scrollTop + box.clientHeight - 3 * tall) box.scrollTop = top - box.clientHeight / 2;
      }
      for (const tr of body.querySelectorAll("tr[data-i]")) tr.classList.toggle("chosen", +tr.dataset.i === chosen);
    };
    return { arrange, mark };
  })();

  readColours();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readColours();
    timeline.draw();
  });
  spread("Latency: until the tool opened its own input", data.latency);
  spread("Time: start to end", data.seconds);
  table.arrange();
  timeline.draw();
})();
