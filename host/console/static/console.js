"use strict";
// The pages work without this script, but for passkeys. It proves people by them, keeps
// open pages up to date, and guards buttons against hasty clicks. Text is put in as
// text, and what the server sends is parsed as a document that runs nothing.

function tell(problem) {
  Object.assign(document.getElementById("problem"), { textContent: problem, hidden: false });
}

// Passkeys: the form goes on with the proof in its field `proof`.
async function prove(form, kind) {
  const key = window.PublicKeyCredential;
  let made;
  if (kind === "create") {
    const options = JSON.parse(form.querySelector("[data-options]").textContent);
    const name = form.elements.namedItem("name");
    if (name) options.user.name = options.user.displayName = name.value;
    const publicKey = key.parseCreationOptionsFromJSON(options);
    made = await navigator.credentials.create({ publicKey });
  } else {
    const answer = await fetch(`/login/options?for=${kind}`);
    if (!answer.ok) throw new Error("The server did not answer.");
    const publicKey = key.parseRequestOptionsFromJSON(await answer.json());
    made = await navigator.credentials.get({ publicKey });
  }
  const field = form.elements.namedItem("proof") || document.createElement("input");
  Object.assign(field, { type: "hidden", name: "proof", value: JSON.stringify(made) });
  form.append(field);
}

// Seconds since an element was first seen: the clocks of others may differ from ours.
const seen = new WeakMap();
function age(element) {
  if (!seen.has(element)) seen.set(element, performance.now());
  return (performance.now() - seen.get(element)) / 1000;
}

document.addEventListener("submit", async (event) => {
  const { target: form, submitter: button } = event;
  if (form.dataset.sent || button?.ariaDisabled) return event.preventDefault();
  const stale = Number(form.dataset.touch || Infinity) - 5 < age(form);
  const kind = form.dataset.passkey || (stale ? "touch" : null);
  if (!kind) return void (form.dataset.sent = "yes");
  event.preventDefault();
  try {
    await prove(form, kind);
    delete form.dataset.passkey;
    form.dataset.touch = "Infinity";
    if (button) button.ariaDisabled = null;
    form.requestSubmit(button);
  } catch (error) {
    tell(`The passkey was not used: ${error.message}`);
  }
});
window.addEventListener("pageshow", () => {
  for (const form of document.forms) delete form.dataset.sent;
});

// A button that approves is dead for a moment after it appears, or gets the focus of a
// page that was behind another one: nobody approves what a click was not meant for.
const GUARD_MS = 700;
function guardAll(root) {
  for (const button of root.querySelectorAll("button[data-guard]")) {
    button.ariaDisabled = "true";
    clearTimeout(button.guard);
    button.guard = setTimeout(() => { button.ariaDisabled = null; }, GUARD_MS);
  }
}
window.addEventListener("focus", () => guardAll(document));
// What a card shows has come before the eye only now.
document.addEventListener("toggle", ({ target }) => {
  if (target.open && target.matches("details.call")) guardAll(target);
}, true);

// Where the card that was open is above, the one that opens moves up with its head.
document.addEventListener("click", ({ target }) => {
  const card = target.closest("details.call > summary")?.parentElement;
  if (card) requestAnimationFrame(() => {
    if (card.getBoundingClientRect().top < 0) card.scrollIntoView();
  });
});

// Times that count down.
function span(seconds) {
  const parts = [];
  let left = Math.max(0, Math.round(seconds));
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    const count = Math.floor(left / size);
    left %= size;
    if (count || (unit === "s" && !parts.length)) parts.push(`${count} ${unit}`);
  }
  return parts.slice(0, 2).join(" ");
}
function countDown() {
  document.querySelectorAll("[data-touch]").forEach(age);
  for (const each of document.querySelectorAll("[data-left]")) {
    const left = Number(each.dataset.left) - age(each);
    each.textContent = span(left);
    // Who waited until then waits no more.
    if (left <= 0 && each.dataset.left > 0 && each.closest("[data-live]")) {
      each.dataset.left = 0;
      refresh(liveParts);
    }
  }
}
setInterval(countDown, 1000);

// Parts that name events are read again when one comes.
function isEdited(part) {
  const fields = [...part.querySelectorAll("input:not([type=hidden]), textarea, select")];
  return fields.some((each) => each === document.activeElement
    || ("defaultValue" in each && each.type !== "checkbox" && each.value !== each.defaultValue));
}
function replace(part, found) {
  if (!found) return;
  if (isEdited(part)) return tell("This page has changed. Reload it when you are ready.");
  const fresh = document.adoptNode(found);
  const focused = part.contains(document.activeElement) && document.activeElement.id;
  part.replaceWith(fresh);
  guardAll(fresh);
  const opened = part.querySelectorAll("details[open]");
  opened.forEach((each) => document.getElementById(each.id)?.toggleAttribute("open", true));
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  const said = fresh.querySelector("[data-announce]")?.textContent;
  if (said) document.getElementById("announce").textContent = said;
}
function refresh(parts, url = location.href, done = () => {}) {
  const request = new XMLHttpRequest();
  request.open("GET", url);
  request.responseType = "document";
  request.onload = () => {
    if (request.status === 401 || !request.response) {
      // The count is not worth what a person has written.
      if (url === location.href) location.reload();
      return;
    }
    const count = request.response.title.match(/^\(\d+\) /)?.[0] ?? "";
    document.title = count + document.title.replace(/^\(\d+\) /, "");
    for (const each of parts()) replace(each, request.response.getElementById(each.id));
    done();
  };
  request.send();
}

// The count of calls that wait is asked for apart: the page may answer a form.
const counts = () => [...document.querySelectorAll("[data-count]")];
const COUNTED = ["approval.asked", "approval.ended"];

const liveParts = () => [...document.querySelectorAll("[data-live]")];

let stream = null;
function follow() {
  const kinds = new Set(liveParts().flatMap((each) => each.dataset.live.split(" ")));
  if (stream || !counts().length || document.hidden) return;
  stream = new EventSource(`/events?after=${document.body.dataset.after}`);
  const soon = (act) => {
    let planned = 0;
    return () => { planned ||= setTimeout(() => { planned = 0; act(); }, 100); };
  };
  const plan = soon(() => refresh(liveParts));
  const count = soon(() => refresh(counts, "/waiting"));
  for (const kind of COUNTED) stream.addEventListener(kind, count);
  for (const kind of kinds) stream.addEventListener(kind, plan);
  stream.addEventListener("stream.opened", (event) => {
    if (JSON.parse(event.data).complete) return;
    count();
    if (kinds.size) plan();
  });
  stream.onerror = () => { if (stream.readyState === 2) stream = null; };
}
// A hidden page holds no connection: browsers have six for all pages together.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    lastCount = waiting(document.title);
    stream?.close();
    stream = null;
  } else if (counts().length) {
    refresh(counts, "/waiting");
    if (liveParts().length) refresh(liveParts);
    follow();
  }
});

// Figures of a moment are read again while somebody may look at them.
const OFTEN_MS = 5_000;
setInterval(() => {
  const parts = () => [...document.querySelectorAll("[data-often]")];
  if (!document.hidden && parts().length) refresh(parts);
}, OFTEN_MS);

// A hidden page asks now and then, and calls its person if more calls wait.
const LOOK_MS = 30_000;
const waiting = (title) => Number(title.match(/^\((\d+)\) /)?.[1] ?? 0);
// The title may count more by what was asked for before the page was hidden.
let lastCount = waiting(document.title);
function notify(text) {
  try {
    const shown = new Notification("toolcell", { body: text, tag: "toolcell" });
    shown.onclick = () => { window.focus(); shown.close(); };
  } catch {
    tell("This browser shows no notifications of pages.");
  }
}
setInterval(() => {
  if (!document.hidden || window.Notification?.permission !== "granted") return;
  refresh(counts, "/waiting", () => {
    const now = waiting(document.title);
    if (now > lastCount) notify(now === 1 ? "A call waits for you." : `${now} calls wait for you.`);
    lastCount = now;
  });
}, LOOK_MS);
const bell = document.getElementById("notify");
if (bell && window.Notification?.permission === "default") {
  bell.hidden = false;
  bell.addEventListener("click", async () => {
    bell.hidden = true;
    if (await Notification.requestPermission() === "granted") notify("Calls that wait are told here.");
  });
}

// The keys of the inbox. They open and focus; Enter and the space bar act.
function openCall(step) {
  const cards = [...document.querySelectorAll("details.call")];
  const at = cards.findIndex((each) => each.open);
  const next = cards[Math.min(Math.max(at + step, 0), cards.length - 1)];
  if (!next) return;
  next.open = true;
  next.firstElementChild.focus();
  next.scrollIntoView({ block: "nearest" });
}
const KEYS = {
  j: () => openCall(1),
  k: () => openCall(-1),
  a: (card) => card?.querySelector("button.main[data-guard]")?.focus(),
  d: (card) => {
    const denial = card?.querySelector(".answers details");
    if (denial) denial.open = true;
    denial?.querySelector("input:not([type=hidden])").focus();
  },
  "?": () => document.getElementById("keys").togglePopover(),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || !document.getElementById("keys")) return;
  if (event.target.matches("input, textarea, select") || !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key](document.querySelector("details.call[open]"));
});

// Output in the colours of a terminal.
function coloured([names, text]) {
  if (!names) return text;
  const piece = Object.assign(document.createElement("span"), { className: names });
  piece.append(text);
  return piece;
}
for (const each of document.querySelectorAll("[data-lines]")) {
  const lines = new EventSource(each.dataset.lines);
  lines.addEventListener("line", (event) => each.append(...JSON.parse(event.data).map(coloured)));
  lines.addEventListener("end", () => lines.close());
}
guardAll(document);
countDown();
// Acts of people wait for no store of requests, so pages that answer them have no count.
if (document.querySelector("[data-count=unread]")) refresh(counts, "/waiting");
follow();
