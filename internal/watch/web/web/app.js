// The shell: navigation, theme, token, keys. A page is a function that fills an element
// and returns what it does when the view changes, at a key, and when it is left.

import { h, icon, icons, say, forgetColours } from "./dom.js";
import { view, set, read, address, onChange } from "./view.js";
import { get, onToken, setToken, takeToken } from "./api.js";
import * as format from "./format.js";
import * as timebar from "./timebar.js";
import { timeline } from "./timeline.js";
import { tasks } from "./tasks.js";
import { images } from "./images.js";
import { snapshots } from "./snapshots.js";
import { transfers } from "./transfers.js";
import { replay } from "./replay.js";
import { status } from "./status.js";
import { job } from "./job.js";

const pages = [
  { id: "timeline", name: "Time line", build: timeline, time: true },
  { id: "tasks", name: "Tasks", build: tasks, time: true },
  { id: "images", name: "Images & datasets", build: images },
  { id: "snapshots", name: "Snapshots", build: snapshots },
  { id: "transfers", name: "Transfers", build: transfers },
  { id: "replay", name: "Replay", build: replay },
  { id: "status", name: "Status", build: status },
  { id: "job", name: "Job", build: job, time: true },
];

const keys = [
  ["1 – 8", "go to a page"],
  ["L", "follow what happens now"],
  ["space", "play or pause"],
  ["[ and ]", "earlier, later"],
  ["+ and −", "closer, wider"],
  ["E", "explain the selection, or the window"],
  ["← → in the charts", "move the cursor; with shift choose a stretch"],
  [", and . in the tasks", "from task to task; Enter opens one"],
  ["P", "choose panels"],
  ["T", "dark or light"],
  ["Esc", "close, or clear the selection"],
  ["?", "these keys"],
];

// Theme: what the system says, until somebody says otherwise.
const THEME = "premix-watch-theme";
function applyTheme() {
  const chosen = localStorage.getItem(THEME);
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  forgetColours();
  current?.theme?.();
  timebar.update();
}
function dark() {
  return (localStorage.getItem(THEME) ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
}
function toggleTheme() {
  const next = dark() ? "light" : "dark";
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  if (next === system) localStorage.removeItem(THEME);
  else localStorage.setItem(THEME, next);
  applyTheme();
  say(next);
}

function help() {
  const dialog = h("dialog", { "aria-label": "Keys" },
    h("header", {}, h("h2", {}, "Keys"), h("button", { class: "quiet square", "aria-label": "Close", onclick: () => dialog.close() }, icon(icons.close))),
    h("dl", { class: "keys" }, keys.map(([k, what]) => [h("dt", {}, h("kbd", {}, k)), h("dd", {}, what)])));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

// The token is asked for once, when the server first wants it.
onToken((wrong) => new Promise((resolve) => {
  const input = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true, "aria-describedby": "token-help" });
  const dialog = h("dialog", { class: "token", "aria-label": "Token" },
    h("form", { method: "dialog", onsubmit: () => { setToken(input.value.trim()); resolve(); } },
      h("h2", {}, "This dashboard is protected"),
      wrong ? h("p", { class: "bad", role: "alert" }, "That token was not accepted.") : "",
      h("label", { for: "token" }, "Token"), input,
      h("p", { id: "token-help", class: "soft" }, "The token is in the file that premix watch names when it begins. It is kept until this tab is closed."),
      h("button", { class: "primary" }, "Open")));
  dialog.addEventListener("cancel", (e) => e.preventDefault());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
}));

const links = pages.map((p, i) => h("a", { href: "#", title: `${p.name} (${i + 1})`, onclick: (e) => {
  if (e.ctrlKey || e.metaKey || e.shiftKey || e.button) return; // a new tab is the browser's
  e.preventDefault();
  go(p.id);
} }, p.name));
const nodeName = h("span", { class: "node" });
const bar = timebar.build();
document.querySelector("#top").append(
  h("header", { class: "top" },
    h("span", { class: "brand" }, h("img", { src: "icon.svg", alt: "", width: 22, height: 22 }), h("span", {}, "premix ", h("b", {}, "watch")), nodeName),
    h("nav", { "aria-label": "Pages" }, links),
    h("span", { class: "right" },
      h("button", { class: "quiet square", "aria-label": "Dark or light", title: "Dark or light (T)", onclick: toggleTheme }, icon(icons.theme)),
      h("button", { class: "quiet square", "aria-label": "Keys", title: "Keys (?)", onclick: help }, icon(icons.help)))),
  bar);

function go(page) { set({ page, item: "" }); }

let current = null, shown = "";
const main = document.querySelector("#content");

function render() {
  const page = pages.find((p) => p.id === view.page) ?? pages[0];
  links.forEach((link, i) => {
    link.href = address({ page: pages[i].id, item: "" });
    if (pages[i] === page) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  if (shown === page.id) return;
  current?.leave?.();
  if (!page.time) timebar.stop();
  shown = page.id;
  document.title = page.name + " – premix watch";
  bar.hidden = !page.time;
  const root = h("div", { class: "page page-" + page.id });
  main.replaceChildren(root);
  if (page.id !== "timeline") root.append(h("h1", {}, page.name));
  current = page.build(root);
  links[pages.indexOf(page)].scrollIntoView({ block: "nearest", inline: "nearest" });
  scrollTo(0, 0);
}

onChange((what) => {
  if (what.page) render();
  else current?.changed?.(what);
  for (const [i, link] of links.entries()) link.href = address({ page: pages[i].id, item: "" });
});
addEventListener("popstate", () => { read(); render(); });
addEventListener("hashchange", () => { takeToken(); if (location.hash !== address()) { read(); render(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);

addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented || document.querySelector("dialog[open]")) return;
  const typing = e.target.matches?.("input:not([type=range]):not([type=checkbox]), select, textarea");
  if (typing) return;
  const digit = Number(e.key);
  const page = pages.find((p) => p.id === view.page);
  if (digit >= 1 && digit <= pages.length) go(pages[digit - 1].id);
  else if (e.key === "?") help();
  else if (e.key === "t") toggleTheme();
  else if (page?.time && e.key === "l") timebar.goLive();
  else if (page?.time && e.key === " " && !e.target.matches("button, a, summary, input")) timebar.toggle();
  else if (page?.time && e.key === "[") timebar.shift(-0.5);
  else if (page?.time && e.key === "]") timebar.shift(0.5);
  else if (page?.time && (e.key === "+" || e.key === "=")) timebar.zoom(0.5);
  else if (page?.time && e.key === "-") timebar.zoom(2);
  else if (!current?.key?.(e)) return;
  e.preventDefault();
});

// Alerts that fire are above every page.
const most = 3;
let fires = "";
async function alerts() {
  try {
    const a = await get("alerts");
    const list = a.alerts.filter((one) => one.state === "firing");
    const now = JSON.stringify([a.firing, a.trouble, list.slice(0, most)]);
    if (now === fires) return;
    fires = now;
    banner.hidden = !a.firing && !a.trouble;
    banner.replaceChildren(
      a.firing ? h("a", { href: address({ page: "status", item: "" }) }, h("b", {}, a.firing === 1 ? "1 alert fires" : `${format.number(a.firing)} alerts fire`)) : "",
      ...list.slice(0, most).map((one) => h("span", {}, h("b", {}, one.rule), " ", h("span", { class: "soft" }, one.labels.node ?? ""), " ", one.text)),
      a.firing > most ? h("span", { class: "soft" }, `and ${format.number(a.firing - most)} more`) : "",
      a.trouble ? h("span", {}, "Rules cannot be evaluated: " + a.trouble) : "");
  } catch { /* the page itself reports a server that does not answer */ }
}
const banner = h("div", { class: "alerts", role: "alert", hidden: true });
document.querySelector("#top").append(banner);
setInterval(() => { if (!document.hidden) alerts(); }, 10000);

applyTheme();
takeToken();
read();
render();
alerts();
get("status").then((s) => { nodeName.textContent = s.node ?? ""; document.documentElement.dataset.ready = "1"; }, () => {});
