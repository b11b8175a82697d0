// A report in BLAST's JSON (outfmt 15) as elements of the page.

const svgNS = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  e.append(...children);
  return e;
}

function draw(name, attributes, ...children) {
  const e = document.createElementNS(svgNS, name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  e.append(...children);
  return e;
}

// searches are the queries of a report, with their hits.
export function searches(report) {
  return report.BlastOutput2.map(({ report: r }) => {
    const s = r.results.search ?? r.results.bl2seq[0];
    return { id: s.query_title || s.query_id, length: s.query_len, hits: s.hits ?? [], message: s.message };
  });
}

// Where ids were not parsed, the accession is but a number, and the title begins with the id.
const numbered = (hit) => hit.description[0].id.startsWith("gnl|BL_ORD_ID|");
export const nameOf = (hit) => (numbered(hit) ? hit.description[0].title.split(" ", 1)[0] : hit.description[0].accession || hit.description[0].id);
const titleOf = (hit) => (numbered(hit) ? hit.description[0].title : [nameOf(hit), hit.description[0].title].filter(Boolean).join(" "));
const best = (hit) => hit.hsps.reduce((a, b) => (b.bit_score > a.bit_score ? b : a));
const number = (v) => (v === 0 ? "0" : v < 1e-3 ? v.toExponential(0) : v < 10 ? v.toPrecision(2) : v.toFixed(0));

// Classes of scores, in bits, as BLAST's users know them.
const classes = [[40, "below 40"], [50, "40 to 50"], [80, "50 to 80"], [200, "80 to 200"], [Infinity, "200 and more"]];
const classOf = (bits) => classes.findIndex(([limit]) => bits < limit);

// covered is the share of the query that the HSPs of a hit cover.
function covered(hit, length) {
  const spans = hit.hsps.map((h) => [Math.min(h.query_from, h.query_to), Math.max(h.query_from, h.query_to)]).sort((a, b) => a[0] - b[0]);
  let sum = 0, end = 0;
  for (const [from, to] of spans) {
    sum += Math.max(0, to - Math.max(from - 1, end));
    end = Math.max(end, to);
  }
  return sum / length;
}

// overview draws where on the query the hits are.
export function overview(search, most = 50) {
  // As wide as the window, so that letters keep their size.
  const hits = search.hits.slice(0, most), width = Math.max(320, Math.min(900, document.documentElement.clientWidth - 40)), left = 10, right = 10, row = 12, top = 40;
  const scale = (width - left - right) / search.length;
  const height = top + hits.length * row + 10;
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Where on the query ${search.id} its hits are` });
  picture.append(draw("rect", { class: "query", x: left, y: 8, width: width - left - right, height: 8, rx: 2 }));
  const step = 10 ** Math.floor(Math.log10(search.length)) / (search.length / 10 ** Math.floor(Math.log10(search.length)) < 3 ? 5 : 1);
  for (let at = step; at < search.length; at += step) {
    const x = left + at * scale;
    picture.append(draw("line", { class: "thin", x1: x, x2: x, y1: 18, y2: height - 5 }), draw("text", { x, y: 30, "text-anchor": "middle" }, String(at)));
  }
  hits.forEach((hit, i) => {
    const y = top + i * row, link = draw("a", { href: `#hit-${i}`, "aria-label": `${nameOf(hit)}, ${number(best(hit).bit_score)} bits` });
    link.append(draw("title", {}, `${titleOf(hit)}\n${number(best(hit).bit_score)} bits, e-value ${number(best(hit).evalue)}`));
    const ends = hit.hsps.flatMap((h) => [h.query_from, h.query_to]);
    link.append(draw("line", { class: "thin", x1: left + (Math.min(...ends) - 1) * scale, x2: left + Math.max(...ends) * scale, y1: y + 4, y2: y + 4 }));
    for (const h of hit.hsps) {
      const from = Math.min(h.query_from, h.query_to), to = Math.max(h.query_from, h.query_to);
      link.append(draw("rect", { class: `s${classOf(h.bit_score)}`, x: left + (from - 1) * scale, y, width: Math.max(2, (to - from + 1) * scale), height: 8, rx: 2 }));
    }
    link.addEventListener("click", (event) => {
      event.preventDefault();
      show(i);
    });
    picture.append(link);
  });
  const legend = make("ul", { class: "legend" }, make("li", {}, "Bits:"));
  classes.forEach(([, words], i) => legend.append(make("li", {}, make("i", { class: `s${i}` }), words)));
  const box = make("div", {}, legend, picture);
  if (search.hits.length > most) box.append(make("p", {}, `The first ${most} of ${search.hits.length} subjects are drawn.`));
  return box;
}

// show opens the alignments of a hit.
function show(i) {
  const details = document.getElementById(`hit-${i}`);
  details.open = true;
  details.scrollIntoView({ block: "start" });
  details.querySelector("summary").focus({ preventScroll: true });
}

// table fills a table with the hits.
export function table(element, search) {
  const head = make("tr", {}, ...["Subject", "Bits", "Cover", "E-value", "Identity", "Length"].map((t) => make("th", { scope: "col" }, t)));
  const rows = search.hits.map((hit, i) => {
    const b = best(hit), link = make("a", { href: `#hit-${i}` }, titleOf(hit));
    link.addEventListener("click", (event) => {
      event.preventDefault();
      show(i);
    });
    const cells = [number(b.bit_score), `${Math.round(100 * covered(hit, search.length))} %`, number(b.evalue), `${(100 * b.identity / b.align_len).toFixed(1)} %`, String(hit.len)];
    return make("tr", {}, make("td", {}, link), ...cells.map((t) => make("td", {}, t)));
  });
  element.replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
}

// lines lays an alignment out as BLAST does.
function lines(h) {
  const width = 60, text = [];
  const digits = Math.max(...[h.query_from, h.query_to, h.hit_from, h.hit_to].map((n) => String(n).length));
  // Letters of a translated sequence stand for three.
  const stepOf = (from, to, seq) => {
    const letters = seq.replaceAll("-", "").length, per = Math.round((Math.abs(to - from) + 1) / letters);
    return from <= to ? per : -per;
  };
  let q = h.query_from, s = h.hit_from;
  // BLAST names the strand of nucleotides apart, and gives their places upwards or not.
  const qs = stepOf(h.query_from, h.query_to, h.qseq), ss = stepOf(h.hit_from, h.hit_to, h.hseq);
  for (let at = 0; at < h.qseq.length; at += width) {
    const part = (seq) => seq.slice(at, at + width), count = (seq) => part(seq).replaceAll("-", "").length;
    const line = (name, from, seq, step) => {
      const n = count(seq), to = n ? from + step * n - Math.sign(step) : from;
      text.push(`${name}  ${String(from).padEnd(digits)}  ${part(seq)}  ${to}`);
      return n ? from + step * n : from;
    };
    q = line("Query", q, h.qseq, qs);
    text.push(" ".repeat(9 + digits) + part(h.midline));
    s = line("Sbjct", s, h.hseq, ss);
    text.push("");
  }
  return text.join("\n");
}

// alignments are closed until somebody opens them: there may be many.
export function alignments(search) {
  return search.hits.map((hit, i) => {
    const box = make("details", { id: `hit-${i}` }, make("summary", {}, titleOf(hit)));
    box.addEventListener("toggle", () => {
      if (!box.open || box.childElementCount > 1) return;
      for (const h of hit.hsps) {
        const facts = [`${number(h.bit_score)} bits (${h.score})`, `e-value ${number(h.evalue)}`, `${h.identity} of ${h.align_len} equal (${(100 * h.identity / h.align_len).toFixed(1)} %)`, `${h.gaps} gaps`];
        if (h.hit_strand) facts.push(`strands ${h.query_strand.toLowerCase()} and ${h.hit_strand.toLowerCase()}`);
        box.append(make("p", {}, facts.join(", ")), make("pre", { tabindex: "0" }, lines(h)));
      }
    });
    return box;
  });
}
