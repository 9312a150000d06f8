"use strict";
// The theme switch, tables, and the answer browser. Model output only ever becomes text nodes.
const by = (id) => document.getElementById(id);

by("theme").addEventListener("click", changeTheme);
function changeTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

// Tables: a click on a column's name sorts by it, and each can be saved.
const cellText = (row, column) => row.cells[column]?.dataset.sort ?? row.cells[column]?.textContent.trim() ?? "";
function compareCells(a, b) {
  const [x, y] = [parseFloat(a.replace(/,/g, "")), parseFloat(b.replace(/,/g, ""))];
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
}

function sortBy(table, column, down) {
  const groups = []; // rows of seeds stay below their policy
  for (const row of table.tBodies[0].rows) {
    if (row.classList.contains("quiet") && groups.length) groups[groups.length - 1].push(row);
    else groups.push([row]);
  }
  groups.sort((a, b) => (down ? -1 : 1) * compareCells(cellText(a[0], column), cellText(b[0], column)));
  table.tBodies[0].append(...groups.flat());
}

function saveRows(rows, name) {
  const plain = (text) => (/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text); // no formulas
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
  const lines = rows.map((row) => row.map((cell) => quoted(plain(String(cell)))).join(","));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

const INTERVAL = /^(\S+) \[(\S+), (\S+)\]$/;

// One number a cell: "53 [50, 56]" and "3 / 1 / 2" become three.
function saveAsCsv(table, name) {
  const rows = [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim().replace(/\s+/g, " ")));
  const columns = rows[0].map((head, column) => {
    const cells = rows.slice(1).map((row) => row[column] ?? "");
    if (cells.some((cell) => INTERVAL.test(cell))) {
      return [[head, `${head} low`, `${head} high`], (cell) => cell.match(INTERVAL)?.slice(1) ?? [cell, "", ""]];
    }
    const parts = head.split(" / ");
    return [parts, (cell) => (parts.length > 1 ? cell.split(" / ") : [cell])];
  });
  const heads = columns.flatMap(([names]) => names);
  saveRows([heads, ...rows.slice(1).map((row) => columns.flatMap(([, split], column) => split(row[column] ?? "")))], name);
}

document.querySelectorAll("table").forEach((table, number) => {
  if (!table.tHead || !table.tBodies.length) return;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.tabIndex = 0;
    head.title = "sort";
    const sort = () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      sortBy(table, column, down);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
  });
  const save = document.createElement("button");
  save.type = "button";
  save.className = "save";
  save.textContent = "CSV";
  save.title = "save this table";
  const section = table.closest("section")?.id ?? "table";
  save.addEventListener("click", () => saveAsCsv(table, `${section}-${number + 1}.csv`));
  table.after(save);
});

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
const EXAMPLES = 10;
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
  by("judge").replaceChildren(...texts.judges.map((judge, place) => new Option(judge || "the judge", place)));
  by("judge").parentElement.hidden = texts.judges.length < 2;
  await choosePolicies(texts);
}

// The pair that is shown has an address: #answer/panel/candidate/opponent/place, each part encoded.
const ADDRESS = "#answer/";
async function followAddress() {
  const known = (select, value) => [...select.options].some((option) => option.value === value);
  let parts;
  try {
    parts = location.hash.slice(ADDRESS.length).split("/").map(decodeURIComponent);
  } catch {
    parts = []; // not an address of ours
  }
  const [name, candidate, opponent, place] = parts;
  if (known(by("panel"), name)) by("panel").value = name;
  [by("outcome").value, by("search").value] = ["", ""];
  await choosePanel();
  if (panel !== name || !known(by("candidate"), candidate) || !known(by("opponent"), opponent)) return;
  [by("candidate").value, by("opponent").value] = [candidate, opponent];
  await choosePolicies();
  const row = shown.findIndex((one) => one.place === Number(place));
  if (row >= 0) show(row);
  by("answers").scrollIntoView();
}

function writeAddress(place) {
  const parts = [panel, by("candidate").value, by("opponent").value, place].map(encodeURIComponent);
  history.replaceState(null, "", ADDRESS + parts.join("/"));
}

async function choosePolicies(texts = prompts) {
  const request = ++asked;
  const answers = await Promise.all([by("candidate"), by("opponent")].map((select) => answersOf(panel, select.value)));
  if (request !== asked) return;
  [prompts, ours, theirs] = [texts, ...answers];
  filter();
}

const difference = (place, judge) => ours[place].scores[judge] - theirs[place].scores[judge];
function outcomeOf(place, judge) {
  const apart = difference(place, judge);
  return Math.abs(apart) <= TIE ? "tie" : apart > 0 ? "win" : "loss";
}
const disagree = (place) => {
  const outcomes = prompts.judges.map((_, judge) => outcomeOf(place, judge));
  return outcomes.includes("win") && outcomes.includes("loss");
};

function filter() {
  const [domain, outcome, judge] = [by("domain").value, by("outcome").value, by("judge").value];
  const words = by("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  shown = [];
  for (let place = 0; place < prompts.prompts.length; place++) {
    if (domain && prompts.domains[place] !== domain) continue;
    const result = outcomeOf(place, judge);
    if (["win", "tie", "loss"].includes(outcome) && result !== outcome) continue;
    if (outcome === "disagree" && !disagree(place)) continue;
    if (words.length) {
      const text = `${prompts.prompts[place]}\n${ours[place].text}\n${theirs[place].text}`.toLowerCase();
      if (!words.every((word) => text.includes(word))) continue;
    }
    shown.push({ place, outcome: result });
  }
  if (outcome === "most") {
    shown.sort((a, b) => Math.abs(difference(b.place, judge)) - Math.abs(difference(a.place, judge)));
    shown = shown.slice(0, EXAMPLES);
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
  item.addEventListener("click", () => show(row, true));
  return item;
}

function show(row, addressed = false) {
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
  if (addressed) writeAddress(place);
}

function side(which, answer, outcome) {
  const name = by(`${which}-name`);
  const ended = answer.finished ? "" : ", cut off";
  const scores = prompts.judges.map((judge, place) => `${judge}${judge && " "}${answer.scores[place].toFixed(3)}`);
  name.textContent = `${by(which).value}: ${scores.join(", ")}${ended}${outcome && ` (${outcome})`}`;
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
  if (event.key === "j" || event.key === "ArrowRight") show(current + 1, true);
  if (event.key === "k" || event.key === "ArrowLeft") show(current - 1, true);
  if (event.key === "/") {
    event.preventDefault();
    by("search").focus();
  }
});

if (by("filters")) {
  by("filters").addEventListener("submit", (event) => event.preventDefault());
  by("panel").addEventListener("change", choosePanel);
  for (const id of ["candidate", "opponent"]) by(id).addEventListener("change", () => choosePolicies());
  for (const id of ["domain", "outcome", "judge"]) by(id).addEventListener("change", filter);
  let waiting;
  by("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 120);
  });
  addEventListener("hashchange", () => location.hash.startsWith(ADDRESS) && followAddress());
  (location.hash.startsWith(ADDRESS) ? followAddress() : choosePanel());
}
