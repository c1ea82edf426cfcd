"use strict";
// The pages work without this script, but for passkeys. It proves people by them, keeps
// open pages up to date, and guards buttons against hasty clicks. Text is put in as
// text, and what the server sends is parsed as a document that runs nothing.
const GUARD_MS = 700;
const json = (text) => JSON.parse(text);

function tell(problem) {
  const place = document.getElementById("problem");
  place.textContent = problem;
  place.hidden = false;
}

// Passkeys: the form goes on with the proof in its field `proof`.
async function prove(form, kind) {
  const key = window.PublicKeyCredential;
  let made;
  if (kind === "create") {
    const options = json(form.querySelector("[data-options]").textContent);
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
  let field = form.elements.namedItem("proof");
  if (!field) {
    field = document.createElement("input");
    field.type = "hidden";
    field.name = "proof";
    form.append(field);
  }
  field.value = JSON.stringify(made);
}

function wanted(form) {
  if (form.dataset.passkey) return form.dataset.passkey;
  const until = Number(form.dataset.touch || Infinity);
  return until * 1000 - 5000 < Date.now() ? "touch" : null;
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.dataset.sent) return event.preventDefault();
  const kind = wanted(form);
  if (!kind) return void (form.dataset.sent = "yes");
  event.preventDefault();
  try {
    await prove(form, kind);
    delete form.dataset.passkey;
    form.dataset.touch = "Infinity";
    form.requestSubmit(event.submitter);
  } catch (error) {
    tell(`The passkey was not used: ${error.message}`);
  }
});
window.addEventListener("pageshow", () => {
  for (const form of document.forms) delete form.dataset.sent;
});

// A button that approves is dead for a moment after it appears, or gets the focus of a
// page that was behind another one: nobody approves what a click was not meant for.
function guard(button) {
  button.disabled = true;
  setTimeout(() => { button.disabled = false; }, GUARD_MS);
}
function guardAll(root) {
  for (const each of root.querySelectorAll("button[data-guard]")) guard(each);
}
window.addEventListener("focus", () => guardAll(document));

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
setInterval(() => {
  for (const each of document.querySelectorAll("[data-until]")) {
    each.textContent = span(Number(each.dataset.until) - Date.now() / 1000);
  }
}, 1000);

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
  if (focused) document.getElementById(focused)?.focus();
  const said = fresh.querySelector("[data-announce]")?.textContent;
  if (said) document.getElementById("announce").textContent = said;
}
function refresh(parts) {
  const request = new XMLHttpRequest();
  request.open("GET", location.href);
  request.responseType = "document";
  request.onload = () => {
    if (request.status === 401 || !request.response) return location.reload();
    for (const each of parts()) replace(each, request.response.getElementById(each.id));
  };
  request.send();
}

let stream = null;
function follow() {
  const parts = () => [...document.querySelectorAll("[data-live]")];
  const kinds = new Set(parts().flatMap((each) => each.dataset.live.split(" ")));
  if (stream || !kinds.size || document.hidden) return;
  stream = new EventSource("/events");
  let planned = 0;
  const plan = () => { planned ||= setTimeout(() => { planned = 0; refresh(parts); }, 100); };
  for (const kind of kinds) stream.addEventListener(kind, plan);
  stream.addEventListener("stream.opened", (event) => json(event.data).complete || plan());
  stream.onerror = () => { if (stream.readyState === 2) stream = null; };
}
// A hidden page holds no connection: browsers have six for all pages together.
document.addEventListener("visibilitychange", () => {
  if (document.hidden && stream) {
    stream.close();
    stream = null;
  } else if (!document.hidden && document.querySelector("[data-live]")) {
    refresh(() => [...document.querySelectorAll("[data-live]")]);
    follow();
  }
});

for (const each of document.querySelectorAll("[data-lines]")) {
  const lines = new EventSource(each.dataset.lines);
  lines.addEventListener("line", (event) => each.append(json(event.data)));
  lines.addEventListener("end", () => lines.close());
}
guardAll(document);
follow();
