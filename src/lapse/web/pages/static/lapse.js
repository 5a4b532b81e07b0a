// Live updates of the dashboard: countdowns, the picture of time, the panel of a thing, and what an action came to.
// Every page is complete without this script, and stands still. Nothing is decided here, and nothing is polled: the
// server tells what has changed (server-sent events), and the page asks for its part that shows it.

const live = document.getElementById("live"), linkState = document.getElementById("link-state");
const panel = document.getElementById("panel"), panelBody = document.getElementById("panel-body"), toasts = document.getElementById("toasts");
const topics = new Set((live?.dataset.topics || "").split(" "));
document.documentElement.classList.add("live");

// --- times ---------------------------------------------------------------------------------------------------------

const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
let skew = 0; // of this machine's clock against the server's, in milliseconds

function short(seconds) {
  let rest = Math.max(0, Math.ceil(seconds)), parts = [];
  for (const [unit, size] of UNITS) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count || parts.length) parts.push(count ? count + unit : "");
    if (parts.length === 2) break;
  }
  return parts.join("") || "0s";
}

function tick() {
  const now = Date.now() + skew;
  for (const one of document.querySelectorAll("[data-until]")) {
    const left = (one.dataset.until - now) / 1000, text = left > 0 ? `in ${short(left)}` : "now";
    if (one.textContent !== text) one.textContent = text;
    one.classList.toggle("soon", left < 60 && !one.closest(".calm"));
  }
  for (const one of document.querySelectorAll("[data-since]")) {
    const text = `${short((now - one.dataset.since) / 1000)} ago`;
    if (one.textContent !== text) one.textContent = text;
  }
}

function localise() {
  for (const one of document.querySelectorAll("time[data-local]:not([data-done])")) {
    one.title = one.dateTime;
    one.textContent = localTime(one.dateTime);
    one.dataset.done = "";
  }
}

function localTime(iso) {
  const then = new Date(iso), today = then.toDateString() === new Date().toDateString();
  return then.toLocaleString([], today ? { timeStyle: "medium" } : { dateStyle: "medium", timeStyle: "short" });
}

function setSkew(now) {
  skew = now - Date.now();
  if (Math.abs(skew) < 1500) skew = 0;
}

// --- the picture of time -------------------------------------------------------------------------------------------

let chart = null, drawn = "";

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

const timeName = at => new Date(at * 1000).toLocaleTimeString([], { timeStyle: "short" });
const dayName = at => new Date(at * 1000).toLocaleDateString([], { weekday: "short", month: "short", day: "numeric" });

function draw() {
  const place = document.getElementById("chart"), source = document.getElementById("chart-data");
  if (!place || !source || !window.uPlot) return;
  const scheme = matchMedia("(prefers-color-scheme: dark)").matches, width = place.clientWidth;
  const key = `${source.dataset.chart} ${scheme} ${width}`;
  if (key === drawn && place.firstChild) return;
  drawn = key;
  const told = JSON.parse(source.dataset.chart), order = place.dataset.order.split(" ");
  const times = Array.from({ length: told.steps }, (_, at) => told.start + at * told.step);
  const sums = new Array(told.steps).fill(0), stacked = [];
  for (const one of told.series) {
    one.counts.forEach((count, at) => (sums[at] += count));
    stacked.push(sums.slice());
  }
  // From the top of the stack down, so that each bar covers the lower part of the one behind it.
  const bars = told.series.map((one, at) => {
    const fill = colour(`--d${Math.max(0, order.indexOf(one.name)) % 8}`), below = at ? stacked[at - 1] : null;
    return {
      label: one.name, fill, stroke: fill, width: 0, points: { show: false },
      paths: uPlot.paths.bars({ size: [0.82, 40], align: 1, radius: 0 }),
      value: (_, __, ___, index) => (index == null ? "–" : told.series[at].counts[index]),
      data: stacked[at], below,
    };
  }).reverse();
  const top = Math.max(1, ...sums), showsBudget = told.budget !== null && told.budget < 4 * top;
  const series = [{ label: "from", value: (_, at) => (at == null ? "–" : new Date(at * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "short" })) }, ...bars.map(({ data, below, ...rest }) => rest)];
  const data = [times, ...bars.map(one => one.data)];
  if (showsBudget) {
    series.push({ label: "budget", stroke: colour("--bad"), width: 1.5, dash: [6, 4], points: { show: false }, value: (_, at) => (at == null ? "–" : at.toFixed(1)) });
    data.push(times.map(() => told.budget));
  }
  const isLong = told.step * told.steps > 2 * 86400, dates = isLong ? [86400, 172800] : [60, 120, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200];
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const options = {
    width, height: width < 560 ? 170 : 230, cursor: { y: false, drag: { x: false, y: false } }, legend: { live: true, show: series.length > 1 },
    scales: { x: { time: true, range: () => [told.start, told.start + told.steps * told.step] }, y: { range: (_, __, most) => [0, Math.max(4, Math.ceil((most || 1) * 1.08))] } },
    axes: [{ ...axis, size: 30, space: 72, incrs: dates, values: (_, at) => at.map(isLong ? dayName : timeName) }, { ...axis, size: 44, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6] }],
    series,
  };
  chart?.destroy();
  place.replaceChildren();
  chart = new uPlot(options, data, place);
}

addEventListener("resize", () => requestAnimationFrame(draw));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

// --- rows, panel, and what is said ---------------------------------------------------------------------------------

function filter() {
  for (const box of document.querySelectorAll("input[data-filter]")) {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of document.querySelectorAll(`${box.dataset.filter} > tr`)) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
    }
    const none = document.getElementById(`${box.id}-none`);
    if (none) none.hidden = !words.length || document.querySelector(`${box.dataset.filter} > tr:not([hidden])`);
  }
}
document.addEventListener("input", event => { if (event.target.matches("input[data-filter]")) filter(); });

const TIMES = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g;

function say(text, mood = "") {
  const one = document.createElement("p");
  one.className = `toast ${mood}`;
  one.textContent = mood ? text : text.replace(TIMES, localTime); // an error names times as they are written
  if (panel?.open) panel.append(toasts); // what is outside of an open dialog is neither seen nor read out
  toasts.append(one);
  setTimeout(() => one.remove(), mood ? 12000 : 6000);
}

// The second click of a double click is none: nobody means to give a thing an hour twice.
document.addEventListener("click", event => {
  if (event.detail > 1 && event.target.closest("form.act button")) { event.preventDefault(); event.stopImmediatePropagation(); }
}, true);
// A click that asks for a new tab gets one.
document.addEventListener("click", event => {
  const plain = !(event.ctrlKey || event.metaKey || event.shiftKey || event.button);
  if (!plain && event.target.closest("a[data-panel]")) event.stopImmediatePropagation();
}, true);
panel?.addEventListener("click", event => { if (event.target === panel) panel.close(); });
panel?.addEventListener("close", () => {
  panelBody.replaceChildren();
  document.body.append(toasts);
  if (history.state?.panel) history.back();
});
addEventListener("popstate", () => { if (panel?.open) panel.close(); }); // the way back closes the panel

document.body.addEventListener("htmx:afterSwap", event => {
  if (event.detail.target.id === "live") { // before it is painted
    follow(event.detail.xhr);
    bringUp();
  }
  if (event.detail.target.id === "panel-body") {
    panel.dataset.url = event.detail.pathInfo.requestPath;
    if (!panel.open) {
      panel.showModal();
      history.pushState({ panel: true }, "");
    }
  }
});
document.body.addEventListener("htmx:afterSettle", event => {
  if (event.detail.target?.id === "live" && source?.readyState === EventSource.OPEN) { lost = 0; state("good", "Live"); }
  bringUp();
  // What had the focus may be gone, such as the button that was pressed: who uses the keyboard stays in the panel.
  if (panel?.open && !panel.contains(document.activeElement)) (panel.querySelector(".thing-acts button") || panel.querySelector("button")).focus();
});
// A clock that was set, here or there, while the page was open: the answer says what time it is, to the second.
function follow(xhr) {
  const now = Date.parse(xhr.getResponseHeader("Date")) + 500;
  if (Math.abs(now - Date.now() - skew) > 3000) setSkew(now);
}
// Of the answer itself: its own event is lost where a live update has removed the form before the answer came.
document.body.addEventListener("htmx:beforeSend", ({ detail: { xhr } }) => xhr.addEventListener("load", () => heard(xhr)));
function heard(xhr) {
  const told = JSON.parse(xhr.getResponseHeader("HX-Trigger") || "{}")["lapse:said"];
  if (!told) return;
  say(told.text);
  changed();
}
document.body.addEventListener("htmx:responseError", event => {
  const { xhr, target } = event.detail;
  if (xhr.status === 401) { location.reload(); return; } // the session has ended, and the page says what to do
  if (target?.id === "live") { notRefreshed(); return; }
  const isGone = [404, 409, 412].includes(xhr.status);
  if (target?.id === "panel-body" && panel.open && isGone) { panel.close(); changed(); }
  else if (isGone) changed(); // what was asked for is not as the page shows it
  let text = xhr.statusText;
  try { text = JSON.parse(xhr.responseText).detail; } catch { /* no problem document: what the server said is all there is */ }
  say(text || `The server answered ${xhr.status}.`, "bad");
});
document.body.addEventListener("htmx:sendError", event => {
  if (event.detail.target?.id === "live") notRefreshed(); else say("Lapse does not answer. Whether this was done is not known: look again when it is back.", "bad");
});
// Figures that could not be brought up to date are old, also while events come.
function notRefreshed() {
  unanswered();
  setTimeout(changed, 3000);
}

if (window.Idiomorph) {
  // What the script or the person has made of the page stays: the chart, what is open, and what is typed.
  // A button that was pressed is no such thing: it gets its new name, although it has the focus.
  const isTyped = () => document.activeElement?.matches("input, select, textarea") ?? false;
  Object.defineProperty(Idiomorph.defaults, "ignoreActiveValue", { enumerable: true, get: isTyped });
  Idiomorph.defaults.callbacks.beforeNodeMorphed = old => old.id !== "chart" || !old.querySelector(".uplot");
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
    !(node.nodeName === "DETAILS" || (name === "hidden" && node.nodeName === "TR") || (name === "value" && node.nodeName === "INPUT" && node.type !== "hidden"));
}

function bringUp() { localise(); tick(); filter(); draw(); }

// --- the link to the server ----------------------------------------------------------------------------------------

const SPREAD = 120, PAUSE = 900; // so that many pages do not ask at once, and none asks all the time
let source = null, waiting = null, asked = 0, lost = 0, seen = JSON.parse(live?.dataset.seen || "null");

function changed() {
  if (waiting || !live) return;
  const wait = Math.max(Math.random() * SPREAD, asked + PAUSE - Date.now());
  waiting = setTimeout(() => { waiting = null; asked = Date.now(); refresh(); }, wait);
}

function refresh() {
  htmx.ajax("GET", live.dataset.url, { source: live, target: "#live", swap: "morph:innerHTML" });
  if (panel?.open) htmx.ajax("GET", panel.dataset.url, { source: panelBody, target: "#panel-body", swap: "morph:innerHTML" });
}

function unanswered() {
  lost ||= Date.now();
  state("bad", `No answer since ${new Date(lost).toLocaleTimeString()}`);
}

function state(mood, text) {
  if (!linkState) return;
  linkState.className = `link-state ${mood}`;
  linkState.querySelector(".words").textContent = text;
  document.documentElement.classList.toggle("stale", mood === "bad");
}

function connect() {
  if (source || !live) return;
  source = new EventSource("/api/v1/events");
  source.addEventListener("hello", event => {
    const told = JSON.parse(event.data);
    setSkew(new Date(told.now));
    // What has changed between the page and its first event; after a lost connection nobody knows.
    if (!seen || Object.entries(told.topics).some(([topic, number]) => topics.has(topic) && seen[topic] !== number)) changed();
    seen = null;
    lost = 0;
    state("good", "Live");
  });
  source.addEventListener("row", () => { if (topics.has("journal")) changed(); });
  source.addEventListener("changed", event => { if (JSON.parse(event.data).topics.some(one => topics.has(one))) changed(); });
  source.onerror = () => {
    unanswered();
    if (source.readyState === EventSource.CLOSED) { disconnect(); setTimeout(() => { if (!document.hidden) connect(); }, 3000); }
  };
}

function disconnect() { source?.close(); source = null; }

// A page that nobody sees asks for nothing, and leaves its connection to others: browsers have few for one server.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) disconnect(); else { connect(); changed(); bringUp(); }
});
addEventListener("pagehide", disconnect);
addEventListener("pageshow", event => { if (event.persisted) { connect(); changed(); } });
setInterval(() => { if (!document.hidden) tick(); }, 1000);
for (const one of document.querySelectorAll("details.as-table")) { one.open = false; one.dataset.ready = ""; } // the chart shows the same
if (live) { state("", "Connecting…"); connect(); }
bringUp();
