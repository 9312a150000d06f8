"use strict";
// The theme switch and the answer browser. Model output only ever becomes text nodes.
const by = (id) => document.getElementById(id);

by("theme").addEventListener("click", changeTheme);
function changeTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

async function unpacked(element) {
  const bytes = Uint8Array.from(atob(element.textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const cache = new Map();
function once(element) {
  if (!cache.has(element)) cache.set(element, unpacked(element));
  return cache.get(element);
}
const answersOf = (panel, policy) => once(document.querySelector(`[data-answers="${CSS.escape(panel)} ${CSS.escape(policy)}"]`));

const TIE = 1e-6;
let shown = []; // what passes the filters: {place, outcome}
let current = 0;
let panel, prompts, ours, theirs;

function fill(select, values, chosen) {
  select.replaceChildren(...values.map((value) => new Option(value || "all", value, false, value === chosen)));
}

let asked = 0; // if choices are made in quick succession, the last one counts
async function choosePanel() {
  const request = ++asked;
  const element = document.querySelector(`[data-panel="${CSS.escape(by("panel").value)}"]`);
  const texts = await once(element);
  if (request !== asked) return;
  panel = element.dataset.panel;
  const policies = element.dataset.policies.split(" ");
  const baseline = element.dataset.baseline;
  const others = policies.filter((policy) => policy !== baseline && policy !== "initial");
  fill(by("candidate"), policies, others[others.length - 1] ?? policies[0]);
  fill(by("opponent"), policies, baseline);
  fill(by("domain"), ["", ...[...new Set(texts.domains)].filter(Boolean).sort()], "");
  await choosePolicies(texts);
}

async function choosePolicies(texts = prompts) {
  const request = ++asked;
  const answers = await Promise.all([by("candidate"), by("opponent")].map((select) => answersOf(panel, select.value)));
  if (request !== asked) return;
  [prompts, ours, theirs] = [texts, ...answers];
  filter();
}

function outcomeOf(place) {
  const difference = ours[place].score - theirs[place].score;
  return Math.abs(difference) <= TIE ? "tie" : difference > 0 ? "win" : "loss";
}

function filter() {
  const [domain, outcome] = [by("domain").value, by("outcome").value];
  const words = by("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  shown = [];
  for (let place = 0; place < prompts.prompts.length; place++) {
    if (domain && prompts.domains[place] !== domain) continue;
    const result = outcomeOf(place);
    if (outcome && result !== outcome) continue;
    if (words.length) {
      const text = `${prompts.prompts[place]}\n${ours[place].text}\n${theirs[place].text}`.toLowerCase();
      if (!words.every((word) => text.includes(word))) continue;
    }
    shown.push({ place, outcome: result });
  }
  by("count").textContent = `${shown.length} of ${prompts.prompts.length}`;
  by("list").replaceChildren(...shown.map(listed));
  show(0);
}

function listed({ place, outcome }, row) {
  const item = document.createElement("li");
  const [text, result] = [document.createElement("span"), document.createElement("span")];
  text.textContent = prompts.prompts[place].slice(0, 160);
  result.textContent = outcome;
  result.className = outcome;
  item.append(text, result);
  item.addEventListener("click", () => show(row));
  return item;
}

function show(row) {
  const items = by("list").children;
  items[current]?.removeAttribute("aria-selected");
  current = Math.max(0, Math.min(row, shown.length - 1));
  if (!shown.length) {
    for (const id of ["prompt", "candidate-name", "candidate-text", "opponent-name", "opponent-text"]) by(id).textContent = "";
    return;
  }
  items[current].setAttribute("aria-selected", "true");
  const list = by("list");
  const item = items[current];
  if (item.offsetTop - list.offsetTop < list.scrollTop || item.offsetTop - list.offsetTop > list.scrollTop + list.clientHeight - 40) {
    list.scrollTop = item.offsetTop - list.offsetTop - 80;
  }
  const place = shown[current].place;
  by("prompt").textContent = prompts.prompts[place];
  side("candidate", ours[place], shown[current].outcome);
  side("opponent", theirs[place], "");
}

function side(which, answer, outcome) {
  const name = by(`${which}-name`);
  const ended = answer.finished ? "" : ", cut off";
  name.textContent = `${by(which).value}: ${answer.score.toFixed(3)}${ended}${outcome && ` (${outcome})`}`;
  name.className = outcome;
  by(`${which}-text`).textContent = answer.text || "(empty)";
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|SELECT)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "t") changeTheme();
  if (!by("list")) return;
  if (event.key === "j" || event.key === "ArrowRight") show(current + 1);
  if (event.key === "k" || event.key === "ArrowLeft") show(current - 1);
  if (event.key === "/") {
    event.preventDefault();
    by("search").focus();
  }
});

if (by("filters")) {
  by("filters").addEventListener("submit", (event) => event.preventDefault());
  by("panel").addEventListener("change", choosePanel);
  for (const id of ["candidate", "opponent"]) by(id).addEventListener("change", () => choosePolicies());
  for (const id of ["domain", "outcome"]) by(id).addEventListener("change", filter);
  let waiting;
  by("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 120);
  });
  choosePanel();
}
