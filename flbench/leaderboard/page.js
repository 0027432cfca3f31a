"use strict";
// Sorting, filtering and curves of the leaderboard. Everything is in the page; nothing is fetched.
const curves = JSON.parse(document.getElementById("curves").textContent);
const panel = document.getElementById("curve");
const SVG = "http://www.w3.org/2000/svg";

// --- sorting: numbers by size, words by alphabet, what is missing last ---------------------------
function key(row, column) {
  const text = row.cells[column].textContent.trim();
  const number = parseFloat(text);
  return { text, number, missing: text === "-" || text === "" };
}

function compare(a, b) {
  if (a.missing || b.missing) return a.missing - b.missing;
  if (Number.isNaN(a.number) !== Number.isNaN(b.number)) return Number.isNaN(a.number) ? 1 : -1;
  return Number.isNaN(a.number) ? a.text.localeCompare(b.text) : a.number - b.number;
}

function sort(header) {
  const body = header.closest("table").tBodies[0];
  const column = header.cellIndex;
  const down = header.getAttribute("aria-sort") === "ascending";
  for (const other of header.parentNode.cells) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...body.rows].map((row) => [key(row, column), row]);
  rows.sort(([a], [b]) => (a.missing || b.missing ? compare(a, b) : (down ? -1 : 1) * compare(a, b)));
  body.append(...rows.map(([, row]) => row));
}

// --- filters --------------------------------------------------------------------------------------
const form = document.getElementById("filters");

function filter() {
  const wanted = new FormData(form);
  const words = wanted.get("method").toLowerCase().split(/[\s,]+/).filter(Boolean);
  let shown = 0;
  for (const section of document.querySelectorAll("section")) {
    const fits = ["suite", "dataset"].every((name) => !wanted.get(name) || wanted.get(name) === section.dataset[name]);
    let rows = 0;
    for (const row of section.querySelectorAll("tbody tr")) {
      const name = row.cells[row.dataset.name].textContent.toLowerCase();
      const kind = row.dataset.kind;
      const ok = (!words.length || words.some((word) => name.includes(word))) && (kind === "ranked" || wanted.has(kind));
      row.hidden = !ok;
      rows += ok;
    }
    for (const part of section.querySelectorAll(".wide")) part.hidden = !part.querySelector("tbody tr:not([hidden])");
    section.hidden = !fits || !rows;
    if (!section.hidden) shown += rows;
  }
  document.getElementById("count").textContent = `${shown} rows`;
}

// --- curves ---------------------------------------------------------------------------------------
function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function show(row) {
  const table = curves[row.dataset.table];
  const own = table[row.dataset.row];
  if (!own) return hide();
  const every = Object.values(table).flat();
  const last = Math.max(...every.map(([round]) => round), 2);
  const [low, high] = [Math.min(...every.map(([, y]) => y)), Math.max(...every.map(([, y]) => y))];
  const x = (round) => 34 + (360 * (round - 1)) / (last - 1);
  const y = (value) => 150 - (136 * (value - low)) / (high - low || 1);
  const drawn = element("svg", { viewBox: "0 0 400 172", role: "img", "aria-label": `accuracy of ${own.at(-1)[1]} in round ${own.at(-1)[0]}` });
  const line = (points) => points.map(([round, value], at) => `${at ? "L" : "M"}${x(round).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  for (const points of Object.values(table)) if (points !== own) drawn.append(element("path", { d: line(points) }));
  drawn.append(element("path", { d: line(own), class: "own" }));
  drawn.append(element("line", { x1: 34, x2: 394, y1: 152, y2: 152 }), element("line", { x1: 34, x2: 34, y1: 12, y2: 152 }));
  drawn.append(element("text", { x: 2, y: 18 }, high.toFixed(2)), element("text", { x: 2, y: 150 }, low.toFixed(2)));
  drawn.append(element("text", { x: 34, y: 168 }, "round 1"), element("text", { x: 394, y: 168, "text-anchor": "end" }, `round ${last}`));
  panel.querySelector("p").textContent = `${row.cells[row.dataset.name].textContent.trim()}: accuracy, mean over seeds`;
  panel.querySelector("div").replaceChildren(drawn);
  panel.hidden = false;
  document.querySelectorAll("tr.shown").forEach((other) => other.classList.remove("shown"));
  row.classList.add("shown");
}

function hide() {
  panel.hidden = true;
  document.querySelectorAll("tr.shown").forEach((row) => row.classList.remove("shown"));
}

document.querySelectorAll("thead button").forEach((button) => button.addEventListener("click", () => sort(button.closest("th"))));
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
for (const event of ["mouseover", "focusin"]) {
  document.addEventListener(event, ({ target }) => {
    const row = target.closest?.("tbody tr[data-row]");
    if (row) show(row);
  });
}
document.addEventListener("mouseout", ({ relatedTarget }) => relatedTarget?.closest?.("tbody tr[data-row]") || hide());
document.addEventListener("keydown", ({ key }) => key === "Escape" && hide());
filter();
