"use strict";
// The leaderboard's page: tables that are loaded when they are opened, sorting, filters, and what a
// row opens to. Every text of a result file is set as text, never as markup.
const known = JSON.parse(document.getElementById("names").textContent);
const SVG = "http://www.w3.org/2000/svg";
const KINDS = { "": "ranked", r: "reference", t: "tuned", o: "outdated" };
const waiting = new Map(); // section -> what to do when its rows are there

function make(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}

// --- loading: a file of rows is a script that calls showTable -------------------------------------
function load(section, then) {
  const box = section.querySelector(".rows");
  if (box.dataset.state === "loaded") return then?.();
  if (then) waiting.set(section.id, then);
  if (box.dataset.state === "loading") return undefined;
  box.dataset.state = "loading";
  box.setAttribute("aria-busy", "true");
  box.replaceChildren(make("p", { class: "dim" }, "Loading ..."));
  const script = make("script", { src: section.dataset.file });
  script.onerror = () => {
    box.dataset.state = "failed";
    box.removeAttribute("aria-busy");
    box.replaceChildren(make("p", { role: "alert" }, `The file ${section.dataset.file} could not be loaded; it should be beside this page.`));
  };
  document.head.append(script);
  return undefined;
}

function showTable(name, table) {
  const section = document.getElementById(name);
  const box = section.querySelector(".rows");
  const title = section.querySelector("h3").textContent;
  box.replaceChildren(...table.grids.map((grid) => drawGrid(section, title, table, grid)));
  box.dataset.state = "loaded";
  box.removeAttribute("aria-busy");
  filter();
  waiting.get(name)?.();
  waiting.delete(name);
}

// --- tables ---------------------------------------------------------------------------------------
function side(words) {
  return words ? { class: "word" } : {};
}

function plainTable(caption, headings, lines, cell = (text) => text) {
  const head = make("tr", {}, ...headings.map((text) => make("th", { scope: "col", class: "word" }, text)));
  const rows = lines.map((line, at) => make("tr", {}, ...line.map((text, place) => make("td", { class: "word" }, cell(text, at, place)))));
  return wide(caption, make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...rows)));
}

function wide(label, table) {
  return make("div", { class: "wide", role: "region", tabindex: "0", "aria-label": label }, table);
}

function drawGrid(section, title, table, grid) {
  const head = make("tr");
  grid.columns.forEach(([text, words], at) => {
    const heading = make("th", { scope: "col", "aria-sort": "none", ...side(words) }, make("button", { type: "button" }, text));
    heading.classList.toggle("name", at === grid.name);
    heading.firstChild.addEventListener("click", () => sort(heading));
    head.append(heading);
  });
  const body = make("tbody");
  grid.rows.forEach((row) => {
    const line = make("tr", row.kind ? { "data-kind": row.kind } : {});
    row.cells.forEach((text, at) => {
      if (at === grid.name) line.append(nameCell(section, table, grid, row, line));
      else if (at === grid.links) line.append(make("td", { class: "word" }, ...links(row.about.links)));
      else line.append(make("td", side(grid.columns[at][1]), text || "-"));
    });
    body.append(line);
  });
  return wide(`${title}, ${grid.caption}`, make("table", {}, make("caption", {}, grid.caption), make("thead", {}, head), body));
}

function nameCell(section, table, grid, row, line) {
  const name = row.cells[grid.name];
  if (!row.about) return make("th", { scope: "row", class: "name" }, name);
  const signs = (row.signs ?? []).map(([sign, text]) => make("abbr", { title: text, "aria-label": text }, sign));
  line.id = `${section.id}/${row.id}`;
  const button = make("button", { type: "button", "aria-expanded": "false" }, name);
  button.addEventListener("click", () => toggle(table, grid, row, line, button));
  return make("th", { scope: "row", class: "name" }, button, ...signs);
}

function* links(pairs = []) {
  for (const [at, [text, target]] of pairs.entries()) {
    if (at) yield ", ";
    yield make("a", { href: target }, text);
  }
}

// --- what a row opens to --------------------------------------------------------------------------
function toggle(table, grid, row, line, button, open = button.getAttribute("aria-expanded") !== "true") {
  button.setAttribute("aria-expanded", String(open));
  if (line.nextElementSibling?.classList.contains("opened")) line.nextElementSibling.remove();
  if (!open) return button.removeAttribute("aria-controls");
  const id = `${line.id}/opened`;
  const cell = make("td", { colspan: grid.columns.length }, make("div", { class: "inside" }, ...inside(table, grid, row, line.id)));
  line.after(make("tr", { class: "opened", id }, cell));
  button.setAttribute("aria-controls", id);
  return undefined;
}

function* inside(table, grid, row, id) {
  const about = row.about;
  const name = row.cells[grid.name];
  yield make("h4", {}, name);
  for (const [sign, text] of row.signs ?? []) yield make("p", {}, `${sign} ${text}`);
  for (const note of about.notes ?? []) yield make("p", {}, note);
  const list = make("dl");
  const entry = (term, ...what) => list.append(make("dt", {}, term), make("dd", {}, ...what));
  for (const plugin of about.plugins ?? []) {
    const several = about.plugins.length > 1 ? ` of ${plugin.name}` : "";
    if (plugin.paper) entry(`paper${several}`, plugin.paper);
    if (plugin.departs) entry(`departs from the paper${several}`, plugin.departs);
    entry(`package${several}`, plugin.package);
    if (plugin.source) entry(`code version${several}`, make("code", {}, plugin.source), " (hash of its source files)");
  }
  if (about.links) entry("links", ...links(about.links));
  if (about.params) entry("parameters", about.params.map(([key, value]) => `${key} = ${value}`).join("; "));
  if (about.folder) entry("files", about.folder);
  entry("this row", make("a", { href: `#${encodeURI(id)}` }, `#${id}`));
  yield list;
  if (about.curve) yield drawCurve(table.headline, grid.rows, row);
  const file = table.runs.indexOf("file");
  yield plainTable(`runs of ${name}`, table.runs, about.runs ?? [], (text, at, place) => (place === file ? make("a", { href: about.files[at] }, text) : text));
  if (about.audits) yield plainTable(`audits of ${name}: runs that were computed again from their files`, table.audits, about.audits);
  else yield make("p", { class: "dim" }, "No run of this row has been audited.");
  if (about.runs?.length) yield make("p", {}, "To compute a run again, in the folder of this page: ", make("code", {}, `flbench verify ${table.results}/${about.folder}/${about.runs[0][file]}`));
}

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function drawCurve(headline, rows, row) {
  const own = row.about.curve;
  const every = rows.flatMap((one) => one.about.curve ?? []);
  const last = Math.max(...every.map(([round]) => round), 2);
  const [low, high] = [Math.min(...every.map(([, y]) => y)), Math.max(...every.map(([, y]) => y))];
  const x = (round) => 34 + (360 * (round - 1)) / (last - 1);
  const y = (value) => 150 - (136 * (value - low)) / (high - low || 1);
  const drawn = element("svg", { viewBox: "0 0 400 172", role: "img", "aria-label": `${headline} of ${own.at(-1)[1]} in round ${own.at(-1)[0]}` });
  const line = (points) => points.map(([round, value], at) => `${at ? "L" : "M"}${x(round).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  for (const one of rows) if (one !== row && one.about.curve) drawn.append(element("path", { d: line(one.about.curve) }));
  drawn.append(element("path", { d: line(own), class: "own" }));
  drawn.append(element("line", { x1: 34, x2: 394, y1: 152, y2: 152 }), element("line", { x1: 34, x2: 34, y1: 12, y2: 152 }));
  drawn.append(element("text", { x: 30, y: 18, "text-anchor": "end" }, high.toFixed(2)), element("text", { x: 30, y: 152, "text-anchor": "end" }, low.toFixed(2)));
  drawn.append(element("text", { x: 34, y: 168 }, "round 1"), element("text", { x: 394, y: 168, "text-anchor": "end" }, `round ${last}`));
  return make("figure", {}, drawn, make("figcaption", { class: "dim" }, `${headline} by round, mean over seeds; grey: the other rows`));
}

// --- sorting: numbers by size, words by alphabet, what is missing last ----------------------------
function key(row, column) {
  const text = row.cells[column].textContent.trim();
  const number = parseFloat(text.replace(/^~/, "")); // ~ = estimated
  return { text, number, missing: text === "-" || text === "" };
}

function compare(a, b) {
  if (a.missing || b.missing) return a.missing - b.missing;
  if (Number.isNaN(a.number) !== Number.isNaN(b.number)) return Number.isNaN(a.number) ? 1 : -1;
  return Number.isNaN(a.number) ? a.text.localeCompare(b.text) : a.number - b.number;
}

function lines(body) {
  return [...body.rows].filter((row) => !row.classList.contains("opened"));
}

function sort(header) {
  const body = header.closest("table").tBodies[0];
  const column = header.cellIndex;
  const down = header.getAttribute("aria-sort") === "ascending";
  for (const other of header.parentNode.cells) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = lines(body).map((row) => [key(row, column), row, row.nextElementSibling?.classList.contains("opened") ? [row.nextElementSibling] : []]);
  rows.sort(([a], [b]) => (a.missing || b.missing ? compare(a, b) : (down ? -1 : 1) * compare(a, b)));
  body.append(...rows.flatMap(([, row, opened]) => [row, ...opened]));
}

// --- filters --------------------------------------------------------------------------------------
const form = document.getElementById("filters");
const sections = [...document.querySelectorAll("details[data-suite]")];

function filter() {
  const wanted = new FormData(form);
  const words = wanted.get("method").toLowerCase().split(/[\s,]+/).filter(Boolean);
  const fits = (name, kind) => (!words.length || words.some((word) => name.toLowerCase().includes(word))) && (kind === "ranked" || wanted.has(kind));
  let [shown, tables] = [0, 0];
  for (const section of sections) {
    const listed = known.rows[section.id] ? known.rows[section.id].split(" ") : [];
    const rows = listed.filter((one) => fits(known.names[parseInt(one, 10)], KINDS[one.replace(/\d+/, "")])).length;
    const chosen = ["suite", "dataset"].every((name) => !wanted.get(name) || wanted.get(name) === section.dataset[name]);
    section.hidden = !chosen || (!rows && (listed.length > 0 || words.length > 0));
    if (!section.hidden) [shown, tables] = [shown + rows, tables + 1];
    for (const part of section.querySelectorAll(".rows > .wide")) {
      for (const row of lines(part.querySelector("tbody"))) {
        row.hidden = !fits(row.querySelector("th button").textContent, row.dataset.kind);
        if (row.nextElementSibling?.classList.contains("opened")) row.nextElementSibling.hidden = row.hidden;
      }
      part.hidden = lines(part.querySelector("tbody")).every((row) => row.hidden);
    }
  }
  const asked = words.length > 0 || Boolean(wanted.get("suite") || wanted.get("dataset"));
  for (const kind of document.querySelectorAll("details.kind")) {
    kind.hidden = [...kind.querySelectorAll("details")].every((one) => one.hidden);
    if (asked) kind.open = !kind.hidden;
  }
  const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
  document.getElementById("count").textContent = `${plural(shown, "row")} in ${plural(tables, "table")}`;
}

// --- addresses: #table opens a table, #table/row one of its rows ----------------------------------
function visit() {
  const name = decodeURI(location.hash.slice(1));
  const section = document.getElementById(name.split("/")[0]);
  const kind = section?.closest("details.kind");
  if (kind) kind.open = true;
  if (kind === section) return kind?.scrollIntoView();
  if (!section?.dataset?.file) return undefined;
  section.open = true;
  load(section, () => {
    const line = document.getElementById(name);
    const button = line?.querySelector("th button");
    if (button?.getAttribute("aria-expanded") === "false") button.click();
    (line ?? section).scrollIntoView();
  });
  return undefined;
}

document.querySelectorAll("#wins thead button").forEach((button) => button.addEventListener("click", () => sort(button.parentNode)));
document.querySelectorAll('#wins a[href^="#"]').forEach((link) => link.addEventListener("click", () => setTimeout(visit))); // also if it is the address already
document.querySelectorAll("details[data-file]").forEach((section) => section.addEventListener("toggle", () => section.open && load(section)));
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", visit);
filter();
visit();
