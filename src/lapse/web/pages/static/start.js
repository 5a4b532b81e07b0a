// The start page keeps itself up to date, and opens workspaces. Without it the page is the same, and stands still.
const EVERY = 2000;

// Parts are changed in place, not replaced: who is about to press a button, or has scrolled a table, is not disturbed.
function bring(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) { old.replaceWith(fresh); return; }
  if (old.nodeType === Node.TEXT_NODE) { if (old.data !== fresh.data) old.data = fresh.data; return; }
  if (old.nodeType !== Node.ELEMENT_NODE) return;
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const before = [...old.childNodes], after = [...fresh.childNodes];
  after.forEach((node, place) => (place < before.length ? bring(before[place], node) : old.append(node)));
  before.slice(after.length).forEach(node => node.remove());
}

async function refresh() {
  let problem = "";
  try {
    const answer = await fetch("/", { headers: { Accept: "text/html" } });
    if (answer.status === 401) { location.reload(); return; } // the session has ended, and the page says what to do
    if (!answer.ok) throw new Error(answer.statusText);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const now = fresh.getElementById(part.id);
      if (now) bring(part, now);
    }
  } catch {
    problem = "Lapse does not answer; these figures are old.";
  }
  document.getElementById("stale").textContent = problem;
}

function keepUp() {
  setTimeout(async () => { if (!document.hidden) await refresh(); keepUp(); }, EVERY);
}

// The tab is opened before the ticket is there, because browsers block one that does not follow a click at once.
async function openWorkspace(name) {
  const tab = window.open("", "_blank"), said = document.getElementById("said");
  if (tab) tab.opener = null; // what runs there is a program of somebody's, not a part of this page
  said.textContent = "";
  try {
    const answer = await fetch(`/api/v1/workspaces/${encodeURIComponent(name)}/open`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: "{}",
    });
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.detail || told.title);
    if (tab) tab.location.replace(told.url); else location.assign(told.url);
  } catch (error) {
    if (tab) tab.close();
    said.textContent = `${name} cannot be opened: ${error.message}`;
  }
}

document.documentElement.classList.add("live");
document.addEventListener("click", event => {
  const button = event.target.closest("button[data-open]");
  if (button) openWorkspace(button.dataset.open);
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
keepUp();
