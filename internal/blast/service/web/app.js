import * as api from "./api.js";
import * as report from "./report.js";

const $ = (id) => document.getElementById(id);
const formats = { text: "txt", tabular: "tsv", csv: "csv", xml: "xml", json: "json", sam: "sam" };
let known = [];
let running = null; // the AbortController of what is being waited for
let current = "";

const overProteins = (program) => program === "blastp" || program === "blastx";

function offer() {
  const kind = overProteins($("program").value) ? "prot" : "nucl", was = $("database").value;
  const fit = known.filter((d) => d.type === kind);
  $("database").replaceChildren(...fit.map((d) => new Option(`${d.name} (${d.sequences.toLocaleString()} sequences${d.resident ? ", in memory" : ""})`, d.name)));
  if (fit.some((d) => d.name === was)) $("database").value = was;
  $("go").disabled = fit.length === 0;
  $("task-label").hidden = $("program").value !== "blastn";
}

function fail(error) {
  if (error.name === "AbortError") return;
  $("progress").hidden = true;
  $("error").hidden = false;
  $("error").textContent = error.after ? `${error.message}. Try again in ${error.after} s.` : error.message;
  if (error.status === 401) {
    $("token-label").hidden = false;
    $("token").focus();
  }
}

function clear() {
  running?.abort();
  running = null;
  current = "";
  for (const id of ["error", "results", "progress"]) $(id).hidden = true;
}

async function load() {
  try {
    known = await api.databases();
    $("where").textContent = known.length === 1 ? "1 database" : `${known.length} databases`;
    if (!known.some((d) => d.type === "nucl") && known.length > 0) $("program").value = "blastp";
    $("error").hidden = true;
    offer();
  } catch (error) {
    fail(error);
  }
}

async function start(event) {
  event.preventDefault();
  clear();
  const options = { evalue: $("evalue").value, max_target_seqs: $("max_target_seqs").value };
  if ($("program").value === "blastn") options.task = $("task").value;
  $("go").disabled = true;
  try {
    const job = await api.submit({ program: $("program").value, database: $("database").value, query: $("query").value, format: "json", options });
    history.pushState(null, "", `#${job.id}`);
    await follow(job.id);
  } catch (error) {
    fail(error);
  } finally {
    $("go").disabled = false;
  }
}

// follow waits for a search and shows its results.
async function follow(id) {
  clear();
  current = id;
  const mine = running = new AbortController();
  $("progress").hidden = false;
  $("status").textContent = "Sent";
  const begun = Date.now();
  try {
    for (;;) {
      const job = await api.search(id, 1, mine.signal);
      if (job.state === "failed") throw new Error(job.error);
      if (job.state === "ready") break;
      const seconds = Math.round((Date.now() - begun) / 1000);
      $("status").textContent = job.state === "running" ? `Searching, ${seconds} s` : `Waiting, ${job.before} in the queue, ${seconds} s`;
    }
    $("status").textContent = "Fetching the results";
    const found = report.searches(await (await api.result(id, "json", mine.signal)).json());
    if (mine.signal.aborted) return;
    $("progress").hidden = true;
    showResults(id, found);
  } catch (error) {
    if (!mine.signal.aborted) fail(error);
  }
}

function showResults(id, found) {
  $("choose").replaceChildren(...found.map((s, i) => new Option(`${s.id} (${s.hits.length} subjects)`, i)));
  $("choose-label").hidden = found.length < 2;
  $("choose").onchange = () => showQuery(found[$("choose").value]);
  $("downloads").replaceChildren("Save as ", ...Object.keys(formats).flatMap((format) => {
    const b = document.createElement("button");
    b.textContent = format;
    b.type = "button";
    b.addEventListener("click", () => save(id, format).catch(fail));
    return [b, " "];
  }));
  $("results").hidden = false;
  showQuery(found[0]);
  $("results").focus({ preventScroll: true });
}

// The overview is drawn for a width, and again for another one, as when a telephone is turned.
let shown = null, drawnWidth = 0;

function drawOverview() {
  drawnWidth = document.documentElement.clientWidth;
  $("overview").replaceChildren(...(shown?.hits.length ? [report.overview(shown)] : []));
}

addEventListener("resize", () => {
  if (shown && drawnWidth !== document.documentElement.clientWidth) drawOverview();
});

function showQuery(search) {
  const n = search.hits.length;
  $("summary").textContent = `${search.id}: ${search.length.toLocaleString()} letters, ${n === 0 ? "no hit" : n === 1 ? "1 subject" : `${n} subjects`}`;
  shown = search;
  drawOverview();
  if (n) report.table($("hits"), search);
  else $("hits").replaceChildren();
  $("alignments").replaceChildren(...report.alignments(search));
}

async function save(id, format) {
  const content = await (await api.result(id, format)).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = `${id}.${formats[format]}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

$("search").addEventListener("submit", start);
$("program").addEventListener("change", offer);
$("query").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    $("search").requestSubmit();
  }
});
$("file").addEventListener("change", async () => {
  const [file] = $("file").files;
  if (file) $("query").value = await file.text();
});
$("token").addEventListener("change", () => {
  api.setToken($("token").value);
  load();
});
$("cancel").addEventListener("click", () => {
  const id = current;
  clear();
  history.pushState(null, "", location.pathname);
  if (id) api.remove(id).catch(() => {}); // it may have gone
});
addEventListener("popstate", () => (location.hash.length > 1 && !location.hash.startsWith("#hit-") ? follow(location.hash.slice(1)) : clear()));

await load();
if (location.hash.length > 1) follow(location.hash.slice(1));
