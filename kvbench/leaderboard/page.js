"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const FULL = "full";
const [MEAN, LOW, HIGH, N, FAILED, WHOLE, SAMPLES] = [0, 1, 2, 3, 4, 5, 6]; // places in a cell
const P = 3; // the place of a difference's p
const byId = (id) => document.getElementById(id);
const hiddenCurves = new Set(); // presses whose curve is not drawn
const chosen = {}; // the value of each filter, "" for any
let wantedPresses = []; // words of the press filter

// Everything from the data enters the page as text or as an attribute's value, never as markup.
function add(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
const h = (tag, attributes = {}, ...children) => add(document.createElement(tag), attributes, children);
const g = (tag, attributes = {}, ...children) =>
  add(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const say = (text) => { byId("live").textContent = text; };
const plural = (count, one, several = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : several}`;
const isWanted = (press) =>
  press === FULL || !wantedPresses.length || wantedPresses.some((word) => press.toLowerCase().includes(word));
const isDrawn = (press) => isWanted(press) && !hiddenCurves.has(press);
const isExponential = (board) => board.protocol.fields.shown_as === "exp";
const isLower = (board) => board.protocol.fields.lower_is_better;
const nameOf = (press) => (press === FULL ? "full cache" : press);

/* Numbers */

function decimalsOf(table) {
  const cells = table.rows.flatMap((row) => Object.values(row.cells));
  const scale = Math.max(1, ...cells.map((cell) => Math.abs(cell[MEAN] ?? 0)));
  const halves = cells.filter((cell) => cell[LOW] !== null).map((cell) => (cell[HIGH] - cell[LOW]) / 2);
  const narrow = halves.length > 0 && Math.max(...halves) < 0.01 * scale;
  return 2 - (scale > 10) + narrow;
}
const shorten = (text) => text.replace(/^0\./, ".");
const halfOf = (cell, decimals) =>
  cell[LOW] === null ? "" : `±${shorten(((cell[HIGH] - cell[LOW]) / 2).toFixed(decimals))}`;
const endsOf = (cell, decimals) =>
  cell[LOW] === null ? "" : ` [${cell[LOW].toFixed(decimals)}, ${cell[HIGH].toFixed(decimals)}]`;
const intervalOf = (cell, decimals) =>
  cell[LOW] === null ? "no interval" : `95 % interval ${cell[LOW].toFixed(decimals)} to ${cell[HIGH].toFixed(decimals)}`;

/* Curves */

const MARKERS = {
  o: "M-3.4 0A3.4 3.4 0 1 0 3.4 0A3.4 3.4 0 1 0 -3.4 0Z",
  s: "M-3 -3H3V3H-3Z",
  D: "M0 -4.2L4.2 0L0 4.2L-4.2 0Z",
  "^": "M0 -4.1L3.8 3.1H-3.8Z",
  v: "M0 4.1L3.8 -3.1H-3.8Z",
  "<": "M-4.1 0L3.1 -3.8V3.8Z",
  ">": "M4.1 0L-3.1 -3.8V3.8Z",
  p: "M0 -4.1L3.9 -1.3L2.4 3.3H-2.4L-3.9 -1.3Z",
  P: "M-1.4 -4.1H1.4V-1.4H4.1V1.4H1.4V4.1H-1.4V1.4H-4.1V-1.4H-1.4Z",
  X: "M-4 -2.2L-2.2 -4L0 -1.8L2.2 -4L4 -2.2L1.8 0L4 2.2L2.2 4L0 1.8L-2.2 4L-4 2.2L-1.8 0Z",
  h: "M0 -4.1L3.6 -2.05V2.05L0 4.1L-3.6 2.05V-2.05Z",
};
const lineClass = (press) => (data.looks[press].dashed ? "line dashed" : "line");

function swatch(press) {
  const picture = { class: "swatch", width: 26, height: 12, viewBox: "-13 -6 26 12", "aria-hidden": "true" };
  if (press === FULL) return g("svg", { ...picture, "--colour": "var(--ink)" }, g("path", { class: "line", d: "M-13 0H13" }));
  const look = data.looks[press];
  return g("svg", { ...picture, "--colour": look.colour },
    g("path", { class: lineClass(press), d: "M-13 0H13" }), g("path", { class: "marker", d: MARKERS[look.marker] }));
}

function ticks(low, high, about) {
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let index = Math.ceil(low / step); index * step <= high + step / 1e6; index += 1) found.push(index * step);
  return { found, decimals: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

function logTicks(low, high, about) {
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) powers.push(10 ** power);
  const inside = (factors) => powers.flatMap((power) => factors.map((factor) => factor * power)).filter((tick) => tick >= low && tick <= high);
  const found = [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 7]].map(inside).find((some) => some.length >= Math.min(3, about)) ?? ticks(low, high, about).found;
  return { found, decimals: Math.max(0, ...found.map((tick) => (String(Number(tick.toPrecision(4))).split(".")[1] ?? "").length)) };
}

/* Moves labels apart, as little as needed, within top and bottom; they come sorted by their wanted place. */
function spread(labels, gap, top, bottom) {
  let last = top - gap;
  for (const label of labels) last = label.at = Math.max(label.y, last + gap);
  last = Math.max(bottom, top + gap * (labels.length - 1)) + gap;
  for (const label of labels.toReversed()) last = label.at = Math.min(label.at, last - gap);
}

class Chart {
  constructor(board, caption, small) {
    this.board = board;
    this.small = small;
    this.tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this.svg = g("svg", { class: "chart", role: "img" });
    this.caption = h("figcaption", {}, caption);
    this.figure = h("figure", {}, ...(small ? [this.caption, this.svg] : [this.svg, this.caption]), this.tip);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("click", (event) => {
      const nearest = this.nearest(event);
      if (nearest) location.hash = addressOf(board, this.table, nearest.press, nearest.label);
    });
    new ResizeObserver(() => {
      if (this.table && this.figure.clientWidth !== this.width) this.draw(this.table, this.scale);
    }).observe(this.figure);
  }

  /* Draws a table's curves; `scale` holds the tables whose scores set the axis, by default its own. */
  draw(table, scale = [table]) {
    this.table = table;
    this.scale = scale;
    this.width = this.figure.clientWidth;
    if (!this.width) return;
    const { small, width } = this;
    const height = small ? 150 : Math.min(440, Math.max(250, width * 0.62));
    const budgets = table.budgets.toSorted((one, other) => one.tokens - other.tokens);
    const rows = table.rows.filter((row) => row.press !== FULL && isDrawn(row.press));
    const full = table.rows.find((row) => row.press === FULL)?.cells[FULL];
    const labelled = !small && width >= 480 && rows.length > 0;
    const longest = Math.max(0, ...rows.map((row) => row.press.length));
    const right = labelled ? Math.min(170, 30 + 6.3 * longest) : 10;
    const box = { left: 34, right: width - right, top: small ? 8 : 20, bottom: height - (small ? 20 : 40) };

    // A perplexity's axis is logarithmic, and has no 0; presses' intervals are beside the full cache, which has none.
    const beside = isExponential(this.board);
    const drawn = scale.flatMap((one) => one.rows).filter((row) => isDrawn(row.press));
    const cells = drawn.flatMap((row) => Object.values(row.cells));
    const ranged = drawn.filter((row) => !(beside && row.press === FULL)).flatMap((row) => Object.values(row.cells));
    const means = cells.map((cell) => cell[MEAN]).filter((value) => value !== null);
    const values = [...means, ...ranged.flatMap((cell) => [cell[LOW], cell[HIGH]]).filter((value) => value !== null)];
    const log = beside && values.length > 0;
    const top = log ? Math.max(...values) * 1.05 : Math.max(...values, 0) || 1;
    const low = log ? Math.min(...values) / 1.05 : Math.min(...means, 0) < 0 ? Math.min(...values) : 0;
    const high = log ? top : top + 0.03 * (top - low);
    const place = log ? Math.log : (score) => score;
    const first = Math.log2(budgets[0]?.tokens ?? 1);
    const last = Math.log2(budgets.at(-1)?.tokens ?? 2);
    const range = last - first || 1;
    const x = (tokens) => box.left + 10 + ((Math.log2(tokens) - first + (last === first ? 0.5 : 0)) / range) * (box.right - box.left - 20);
    const y = (score) => box.bottom - ((place(Math.max(score, low)) - place(low)) / (place(high) - place(low))) * (box.bottom - box.top);

    const parts = this.axes(box, budgets, x, y, low, high);
    if (full && full[MEAN] !== null) {
      if (full[LOW] !== null && !beside) {
        parts.push(g("rect", { class: "band", x: box.left, width: box.right - box.left, y: y(full[HIGH]), height: Math.max(0, y(full[LOW]) - y(full[HIGH])) }));
      }
      parts.push(g("line", { class: "reference", x1: box.left, x2: box.right, y1: y(full[MEAN]), y2: y(full[MEAN]) }));
    }
    this.points = [];
    const ends = [];
    const curves = rows.toReversed().map((row) => {
      const known = budgets.filter((budget) => (row.cells[budget.label]?.[MEAN] ?? null) !== null);
      const places = known.map((budget) => ({
        press: row.press, label: budget.label, tokens: budget.tokens, cell: row.cells[budget.label],
        x: x(budget.tokens), y: y(row.cells[budget.label][MEAN]),
      }));
      this.points.push(...places);
      const look = data.looks[row.press];
      const curve = g("g", { class: "curve", "--colour": look.colour },
        g("path", { class: lineClass(row.press), d: `M${places.map((place) => `${place.x.toFixed(1)} ${place.y.toFixed(1)}`).join("L")}` }),
        ...places.filter((place) => place.cell[LOW] !== null).map((place) =>
          g("line", { class: "whisker", x1: place.x, x2: place.x, y1: y(place.cell[LOW]), y2: y(place.cell[HIGH]) })),
        ...places.map((place) =>
          g("path", { class: "marker", transform: `translate(${place.x.toFixed(1)} ${place.y.toFixed(1)})${small ? " scale(0.75)" : ""}`, d: MARKERS[look.marker] })));
      curve.dataset.press = row.press;
      if (!places.length) return g("g");
      ends.push({ press: row.press, y: places.at(-1).y, x: places.at(-1).x, curve });
      return curve;
    });
    if (labelled) this.label(ends, box, full && full[MEAN] !== null ? y(full[MEAN]) : null, parts, width);
    this.svg.replaceChildren(...parts, ...curves);
    this.svg.classList.toggle("few", rows.length <= 3);
    add(this.svg, { viewBox: `0 0 ${width} ${height}`, height, "aria-label": this.summary(rows, budgets) }, []);
    this.light(this.board.lit);
  }

  axes(box, budgets, x, y, low, high) {
    const parts = [];
    const { found, decimals } = (isExponential(this.board) ? logTicks : ticks)(low, high, this.small ? 3 : 6);
    for (const tick of found) {
      parts.push(g("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }));
      parts.push(g("text", { x: box.left - 6, y: y(tick) + 3.5, "text-anchor": "end" }, tick.toFixed(decimals)));
    }
    parts.push(g("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    const mixed = budgets.some((budget) => budget.share) && budgets.some((budget) => !budget.share);
    const until = [-Infinity, -Infinity]; // where the last text of each row ends
    for (const budget of budgets) {
      const row = mixed && budget.share ? 1 : 0;
      const at = x(budget.tokens);
      const half = 3.2 * budget.label.length + 3;
      parts.push(g("line", { class: "axis", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 }));
      if (at - half < until[row] || (this.small && row)) continue;
      until[row] = at + half;
      parts.push(g("text", { x: at, y: box.bottom + 15 + 11 * row, "text-anchor": "middle" }, budget.label));
    }
    if (!this.small) {
      parts.push(g("text", { x: 0, y: 11 }, `${this.board.protocol.fields.metric}${isLower(this.board) ? " (lower is better)" : ""}`));
      const shares = budgets.some((budget) => budget.share) ? " (% of the context)" : "";
      parts.push(g("text", { x: (box.left + box.right) / 2, y: box.bottom + (mixed ? 38 : 32), "text-anchor": "middle" }, `cache size, tokens per KV head${shares}`));
    }
    return parts;
  }

  label(ends, box, reference, parts, width) {
    const labels = [...ends];
    if (reference !== null) labels.push({ press: FULL, y: reference, x: box.right, curve: null });
    labels.sort((one, other) => one.y - other.y);
    spread(labels, 13, box.top, box.bottom);
    const room = Math.floor((width - box.right - 24) / 6);
    for (const { press, x, y, at, curve } of labels) {
      const name = nameOf(press);
      const text = g("text", { x: box.right + 20, y: at + 3.5 }, name.length > room ? `${name.slice(0, room - 1)}…` : name);
      const leader = g("path", { class: "leader", d: `M${x + 4} ${y}L${box.right + 17} ${at}` });
      if (curve) curve.append(leader, text);
      else parts.push(text);
    }
  }

  summary(rows, budgets) {
    const named = rows.map((row) => row.press).join(", ") || "no press";
    const over = budgets.map((budget) => budget.label).join(", ");
    const of = this.table.subtask === null ? "" : ` in ${this.table.subtask}`;
    return `Curves of ${this.board.protocol.fields.metric}${of} over cache sizes ${over} for ${named}; the table holds the numbers.`;
  }

  nearest(event) {
    const frame = this.svg.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    const named = event.target.closest?.(".curve")?.dataset.press;
    let best = null;
    let least = 45;
    for (const point of this.points ?? []) {
      const distance = Math.hypot(point.x - x, point.y - y) + (named && named !== point.press ? 1e3 : 0);
      if (distance < least || (named === point.press && distance < (least === 45 ? Infinity : least))) [best, least] = [point, distance];
    }
    return best;
  }

  point(event) {
    const nearest = this.nearest(event);
    if (!nearest) return this.leave();
    const decimals = decimalsOf(this.table) + 1;
    const { cell } = nearest;
    this.tip.replaceChildren(
      h("b", {}, nearest.press),
      `${nearest.label}${nearest.label.endsWith("%") ? " of the context" : " tokens"}: ${cell[MEAN].toFixed(decimals)}`, h("br"),
      intervalOf(cell, decimals), h("br"),
      plural(cell[N], "answer"), cell[FAILED] ? `, ${cell[FAILED]} failed` : "");
    this.tip.hidden = false;
    const left = Math.min(Math.max(0, nearest.x + 12), Math.max(0, this.width - this.tip.offsetWidth));
    const beside = nearest.x + 12 > left && this.width < 480;
    const above = nearest.y + this.svg.offsetTop - this.tip.offsetHeight - 10;
    const y = (this.svg.getBoundingClientRect().top - this.figure.getBoundingClientRect().top) + nearest.y;
    this.tip.style.left = `${left}px`;
    this.tip.style.top = `${beside || above > 0 ? y - this.tip.offsetHeight - 10 : y + 12}px`;
    this.board.light(nearest.press);
  }

  leave() {
    this.tip.hidden = true;
    this.board.light(null);
  }

  light(press) {
    const lit = [...this.svg.querySelectorAll(".curve")].filter((curve) => curve.dataset.press === press);
    this.svg.classList.toggle("lighting", lit.length > 0);
    for (const curve of this.svg.querySelectorAll(".curve")) curve.classList.toggle("lit", lit.includes(curve));
    if (lit.length && this.svg.lastElementChild !== lit[0]) this.svg.append(lit[0]);
  }
}

/* One protocol: its curves and its table */

class Board {
  constructor(protocol, index) {
    this.protocol = protocol;
    this.view = "budget";
    this.subtask = null;
    this.sorting = null;
    this.lit = null;
    this.subtasks = protocol.tables.map((table) => table.subtask).filter((name) => name !== null);
    const budgets = protocol.tables[0].budgets;
    this.budget = budgets[Math.floor((budgets.length - 1) / 2)]?.label ?? FULL;
    this.id = `board-${protocol.hash}`;
    this.chart = new Chart(this, "", false);
    this.small = this.subtasks.map((name) => new Chart(this, name, true));
    this.table = h("table", { class: "scores" });
    this.scroll = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Scores: ${protocol.title} (${index + 1})` }, this.table);
    this.panels = h("div", { class: "panels" });
    this.many = h("div", { class: "many" }, ...this.small.map((chart) => chart.figure));
    this.note = h("p", { class: "note" });
    this.element = h("section", { class: "board", id: this.id, "aria-labelledby": `${this.id}-title ${this.id}-conditions` },
      h("h2", { id: `${this.id}-title` }, protocol.title),
      h("p", { class: "conditions", id: `${this.id}-conditions` }, protocol.conditions),
      this.controls(), this.panels, this.note);
    this.panels.append(this.chart.figure, this.scroll, this.many);
  }

  get current() {
    return this.protocol.tables.find((table) => table.subtask === (this.view === "budget" ? this.subtask : null));
  }

  controls() {
    const option = (value, text, selected) => h("option", { value, selected }, text);
    this.switches = ["budget", "subtask"].map((view) =>
      h("button", { type: "button", "aria-pressed": String(view === this.view), onclick: () => this.change({ view }) },
        view === "budget" ? "By cache size" : "By subtask"));
    this.subtaskChoice = h("label", {}, "Score ",
      h("select", { onchange: (event) => this.change({ subtask: event.target.value || null }) },
        option("", `mean of ${plural(this.subtasks.length, "subtask")}`, true), ...this.subtasks.map((name) => option(name, name))));
    this.budgetChoice = h("label", {}, "Cache size ",
      h("select", { onchange: (event) => this.change({ budget: event.target.value }) },
        ...this.protocol.tables[0].budgets.map(({ label }) => option(label, label, label === this.budget))));
    return h("div", { class: "controls" },
      h("span", { class: "switch", role: "group", "aria-label": "Columns" }, ...(this.subtasks.length > 1 ? this.switches : [])),
      this.subtaskChoice, this.budgetChoice,
      h("button", { type: "button", onclick: () => download(`${this.protocol.hash.slice(0, 12)}.csv`, "text/csv", csv([this.protocol])) }, "CSV of this table"));
  }

  change(what) {
    Object.assign(this, what);
    this.sorting = null;
    this.update();
    say(`${this.protocol.title}: ${this.view === "budget" ? this.subtask ?? "mean of all subtasks" : `every subtask at cache size ${this.budget}`}`);
  }

  columns() {
    const table = this.current;
    const columns = [{ head: "press", press: true, value: (row) => row.press }];
    const score = (head, cellOf, of, label) => ({ head, value: (row) => cellOf(row)?.[MEAN] ?? null, cellOf, of, label, score: true, up: isLower(this) });
    if (this.view === "budget") {
      const labels = table.budgets.length ? table.budgets.map(({ label }) => label) : [FULL];
      if (labels.length > 1) {
        columns.push({ head: "AUC", value: (row) => row.auc[MEAN], area: true, up: isLower(this) });
        columns.push({ head: "at 95 %", value: (row) => row.enough?.[0] ?? null, up: true, enough: true });
      }
      columns.push(...labels.map((label) => score(label, (row) => row.cells[label] ?? row.cells[FULL], table, label)));
      const total = (place) => (row) => Object.values(row.cells).reduce((sum, cell) => sum + cell[place], 0);
      if (table.rows.some(total(FAILED))) columns.push({ head: "failed", value: total(FAILED), decimals: 0 });
      const whole = (row) => (row.press === FULL ? 0 : total(WHOLE)(row));
      if (table.rows.some(whole)) columns.push({ head: "whole", value: whole, decimals: 0 });
      return columns;
    }
    for (const one of this.protocol.tables) {
      const rows = new Map(one.rows.map((row) => [row.press, row.cells]));
      columns.push(score(one.subtask ?? "mean", (row) => rows.get(row.press)?.[this.budget] ?? rows.get(row.press)?.[FULL], one, this.budget));
    }
    return columns;
  }

  update() {
    const byBudget = this.view === "budget";
    this.panels.classList.toggle("pair", byBudget);
    this.switches.forEach((button, index) => button.setAttribute("aria-pressed", String(byBudget === (index === 0))));
    this.subtaskChoice.hidden = !byBudget || this.subtasks.length < 2;
    this.budgetChoice.hidden = byBudget;
    this.chart.figure.hidden = !byBudget || !this.current.budgets.length;
    this.many.hidden = byBudget;
    this.list = this.columns();
    this.sorting ??= { column: 1, down: !isLower(this) }; // the area, or the mean
    this.head = h("tr", {}, ...this.list.map((column, index) =>
      h("th", { scope: "col" }, h("button", { type: "button", onclick: () => this.sort(index) }, column.head))));
    this.body = h("tbody");
    this.table.replaceChildren(
      h("caption", { class: "unseen" }, `${this.protocol.title}${this.subtask && byBudget ? `, ${this.subtask}` : ""}${byBudget ? "" : `, cache size ${this.budget}`}. ${this.protocol.conditions}`),
      h("thead", {}, this.head), this.body);
    this.fill();
    this.draw();
    this.note.textContent = this.notes();
  }

  sort(index) {
    const { press, up } = this.list[index];
    const down = this.sorting.column === index ? !this.sorting.down : !(press || up);
    this.sorting = { column: index, down };
    this.fill();
    say(`sorted by ${this.list[index].head}, ${down ? "descending" : "ascending"}`);
  }

  fill() {
    const { column, down } = this.sorting;
    [...this.head.children].forEach((head, index) => {
      if (index === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const value = this.list[column].value;
    const order = (one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === null || b === null) return (a === null) - (b === null); // what is not known comes last
      return (down ? -1 : 1) * (typeof a === "string" ? a.localeCompare(b) : a - b);
    };
    const rows = this.current.rows.filter((row) => isWanted(row.press));
    const full = rows.filter((row) => row.press === FULL);
    this.rows = [...full, ...rows.filter((row) => row.press !== FULL).sort(order)];
    const contenders = rows.filter((row) => row.press !== FULL && !this.current.bounds.includes(row.press));
    const best = this.list.map((one) => {
      const values = contenders.map((row) => one.value(row)).filter((number) => number !== null);
      const top = isLower(this) ? Math.min(...values) : Math.max(...values);
      return one.score && values.some((number) => number !== top) ? top : null;
    });
    const reference = this.list.map((one) => (one.score && full.length ? one.value(full[0]) : null));
    this.body.replaceChildren(...this.rows.map((row) => this.row(row, best, reference)));
  }

  row(row, best, reference) {
    const isFull = row.press === FULL;
    const tr = h("tr", { class: isFull ? "full" : hiddenCurves.has(row.press) ? "off" : null,
      onmouseenter: () => this.light(row.press), onmouseleave: () => this.light(null),
      onfocusin: () => this.light(row.press), onfocusout: () => this.light(null) });
    tr.dataset.press = row.press;
    tr.append(...this.list.map((column, index) => {
      if (column.press) return h("th", { scope: "row", title: row.press }, this.chooser(row.press));
      if (column.score) return this.scoreCell(row, column, best[index], reference[index]);
      const value = column.value(row);
      if (value === null) return h("td", { class: "unknown" }, isFull ? "" : "n/a");
      if (column.area) return this.areaCell(row);
      if (column.enough) return h("td", { class: "enough" }, `${row.enough[1] === "=" ? "" : `${row.enough[1]} `}${value.toFixed(0)}`);
      return h("td", {}, value.toFixed(column.decimals));
    }));
    return tr;
  }

  /* The area, with "*" for the leader and "=" for a press that the samples do not tell from it, "?" for one of which they say nothing. */
  areaCell(row) {
    const leads = row.press === this.current.leader;
    const decimals = isExponential(this) ? 3 : 2;
    const half = h("small", {}, halfOf(row.auc, decimals));
    const mark = leads ? ["*", "leads"] : row.tied ? ["=", "not told from the leader"] : row.incomparable ? ["?", "too few samples to compare it"]
      : ["", this.current.bounds.includes(row.press) ? "a bound" : ""];
    return h("td", { class: leads ? "area leads" : "area" }, h("b", {}, row.auc[MEAN].toFixed(decimals)), half,
      h("span", { class: "mark", "aria-hidden": "true" }, mark[0]), h("span", { class: "unseen" }, mark[1]));
  }

  chooser(press) {
    if (press === FULL) return h("span", { class: "name" }, swatch(press), h("span", {}, nameOf(press)));
    const bound = this.current.bounds.includes(press) ? h("i", {}, "bound") : null;
    return h("label", {},
      h("input", { type: "checkbox", checked: !hiddenCurves.has(press), onchange: (event) => choose([press], event.target.checked) }),
      swatch(press), h("span", {}, press), bound);
  }

  scoreCell(row, column, best, reference) {
    const cell = column.cellOf(row);
    if (!cell) return h("td", { class: "unknown" }, h("span", { "aria-hidden": "true" }, "–"), h("span", { class: "unseen" }, "not run"));
    const isFull = row.press === FULL;
    const isBest = !isFull && !this.current.bounds.includes(row.press) && cell[MEAN] !== null && cell[MEAN] === best;
    const decimals = decimalsOf(column.of);
    const content = cell[MEAN] === null ? ["n/a"] : [cell[MEAN].toFixed(decimals), h("small", {}, (isExponential(this) ? endsOf : halfOf)(cell, decimals))];
    const share = reference > 0 && cell[MEAN] !== null ? Math.min(1, Math.max(0, isLower(this) ? reference / cell[MEAN] : cell[MEAN] / reference)) : 0;
    return h("td", { class: isBest ? "score best" : "score", "--share": share.toFixed(3) },
      h("a", { href: addressOf(this, column.of, row.press, isFull ? FULL : column.label) }, ...content));
  }

  notes() {
    const cells = this.current.rows.flatMap((row) => Object.values(row.cells));
    const counts = cells.map((cell) => cell[N]);
    const [least, most] = [Math.min(...counts), Math.max(...counts)];
    const notes = [...this.protocol.notes, ...this.current.notes, `${least === most ? plural(most, "answer") : `${least} to ${most} answers`} per score`];
    if (this.view === "budget" && this.current.rows.some((row) => row.ahead)) notes.push("* leads; = not told from it (paired bootstrap by source document, Holm-adjusted p ≥ 0.05)");
    if (this.view === "budget" && this.current.rows.some((row) => row.incomparable)) notes.push("? too few samples to compare it");
    if (isLower(this)) notes.push("lower is better, AUC included");
    if (this.current.noise) notes.push(this.current.noise);
    if (this.current.bounds.length) notes.push(`${this.current.bounds.join(", ")}: a bound that sees the future, and no contender`);
    const failed = cells.reduce((sum, cell) => sum + cell[FAILED], 0);
    if (failed) notes.push(`${plural(failed, "answer")} failed and ${failed === 1 ? "is" : "are"} in no mean`);
    if (this.list.some(({ head }) => head === "whole")) notes.push("whole: answers whose budget held the whole context, so that nothing was evicted");
    const text = `${notes.join("; ")}.`;
    return text[0].toUpperCase() + text.slice(1);
  }

  draw() {
    if (this.element.hidden) return;
    if (this.view === "budget") this.chart.draw(this.current);
    else this.small.forEach((chart, index) => chart.draw(this.protocol.tables[index + 1], this.protocol.tables.slice(1)));
  }

  light(press) {
    if (press === this.lit) return;
    this.lit = press;
    for (const row of this.body.children) row.classList.toggle("lit", press !== null && row.dataset.press === press);
    for (const chart of this.view === "budget" ? [this.chart] : this.small) chart.light(press);
  }

  chosen() {
    for (const row of this.body.children) {
      const box = row.querySelector("input");
      if (!box) continue;
      box.checked = !hiddenCurves.has(row.dataset.press);
      row.classList.toggle("off", !box.checked);
    }
    this.draw();
  }
}

/* What produced a cell */

function addressOf(board, table, press, budget) {
  const where = { protocol: board.protocol.hash, press, budget };
  if (table.subtask !== null) where.subtask = table.subtask;
  return `#cell?${new URLSearchParams(where)}`;
}

function commandOf(protocol, table, press, budget) {
  const cell = table.rows.find((row) => row.press === press).cells[budget];
  const budgets = budget === FULL ? table.budgets[0]?.label ?? "1" : budget;
  return ["kvbench run --model", protocol.command.model, "--press", protocol.presses[press].quoted, "--task", table.task,
    "--budgets", budgets, "--limit", cell[SAMPLES], protocol.command.rest, "--results reproduced"].join(" ");
}

function facts(pairs) {
  return h("table", { class: "facts" }, h("tbody", {}, ...pairs.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) =>
    h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, String(value) || "–")))));
}

function detailOf(protocol, table, press, budget) {
  const row = table.rows.find((one) => one.press === press);
  const cell = row.cells[budget];
  const made = protocol.presses[press].made[budget];
  const decimals = decimalsOf(table) + 2;
  const command = h("code", {}, commandOf(protocol, table, press, budget));
  const isShare = budget.endsWith("%");
  const kept = made.kept && (made.kept[0] === made.kept[1] ? `${made.kept[0]}` : `${made.kept[0]} to ${made.kept[1]}`);
  const environments = made.environments.flatMap((name) => [
    h("h3", {}, `Environment ${name}`),
    data.environments[name] ? facts(Object.entries(data.environments[name])) : h("p", {}, "It is not in the results folder."),
  ]);
  return h("div", { class: "sheet" },
    h("header", {},
      h("h2", { id: "detail-title" }, `${nameOf(press)}${press === FULL ? "" : ` at ${budget}${isShare ? " of the context" : " tokens per KV head"}`}`),
      h("button", { type: "button", onclick: () => byId("detail").close() }, "Close")),
    h("p", { class: "conditions" }, `${protocol.title}${table.subtask ? ` · ${table.subtask}` : ""}`),
    h("p", { class: "figure" }, cell[MEAN] === null ? "n/a" : cell[MEAN].toFixed(decimals), " ", h("small", {}, intervalOf(cell, decimals))),
    facts([
      ["answers", `${cell[N]} scored, ${cell[FAILED]} failed`],
      ["of these, nothing evicted", press === FULL ? null : cell[WHOLE]],
      ["samples per subtask", cell[SAMPLES]],
      ["area over all cache sizes", row.auc[MEAN] === null ? null : `${row.auc[MEAN].toFixed(3)}, ${intervalOf(row.auc, 3)}`],
      ["area less the leader’s", row.ahead && row.ahead[MEAN] !== null ? `${row.ahead[MEAN].toFixed(3)}, ${intervalOf(row.ahead, 3)}${row.ahead[P] === null ? "" : `, Holm-adjusted p ${row.ahead[P].toPrecision(2)}`}` : null],
      ["entries kept per head, measured", kept],
      ["cache, measured", made.bytes === null ? null : `${(made.bytes / 1e6).toPrecision(3)} MB on average`],
      ["press identity", protocol.presses[press].identities.join(", ") || null],
      ["records", protocol.file],
    ]),
    h("h3", {}, "Reproduce"),
    h("pre", { tabindex: 0, "aria-label": "Command" }, command),
    h("button", { type: "button", onclick: () => copy(command) }, "Copy the command"),
    h("h3", {}, `Protocol ${protocol.hash}`),
    facts(Object.entries(protocol.fields).map(([name, value]) => [name.replaceAll("_", " "), Array.isArray(value) ? value.join(", ") : value])),
    h("h3", {}, "Source data"),
    facts(Object.entries(protocol.data).filter(([name]) => (table.subtask ?? name) === name).map(([name, origins]) => [name, origins.join("; ")])),
    ...environments);
}

async function copy(element) {
  try {
    await navigator.clipboard.writeText(element.textContent);
    say("copied");
  } catch {
    getSelection().selectAllChildren(element); // where a page may not write to the clipboard
    say("selected: copy it with the keyboard");
  }
}

function showAddressed() {
  const dialog = byId("detail");
  const where = location.hash.startsWith("#cell?") ? new URLSearchParams(location.hash.slice(6)) : null;
  const protocol = where && data.protocols.find(({ hash }) => hash === where.get("protocol"));
  const table = protocol?.tables.find(({ subtask }) => subtask === where.get("subtask"));
  const [press, budget] = [where?.get("press"), where?.get("budget")];
  if (!table?.rows.find((row) => row.press === press)?.cells[budget]) {
    if (dialog.open) dialog.close();
    return;
  }
  dialog.replaceChildren(detailOf(protocol, table, press, budget));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

/* Downloads */

function csv(protocols) {
  const field = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const head = ["protocol", "model", "task", "subtask", "press", "budget", "budget_tokens", "mean", "low", "high", "n", "failed", "whole", "auc", "auc_low", "auc_high", "tied"];
  const lines = [head];
  for (const { hash, fields, tables } of protocols) {
    for (const table of tables) {
      const tokens = Object.fromEntries(table.budgets.map((budget) => [budget.label, budget.tokens]));
      for (const row of table.rows) {
        for (const [label, cell] of Object.entries(row.cells)) {
          lines.push([hash, fields.model, fields.task, table.subtask, row.press, label, tokens[label], ...cell.slice(0, WHOLE + 1), ...row.auc, row.press === FULL ? null : row.tied]);
        }
      }
    }
  }
  return `${lines.map((line) => line.map((value) => field(String(value ?? ""))).join(",")).join("\n")}\n`;
}

function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: address, download: `kvbench-${name}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
  say(`kvbench-${name} is downloaded`);
}

/* The page */

const boards = data.protocols.map((protocol, index) => new Board(protocol, index));

function choose(presses, drawn) {
  for (const press of presses) {
    if (drawn) hiddenCurves.delete(press);
    else hiddenCurves.add(press);
  }
  boards.forEach((board) => board.chosen());
  count();
}

function count() {
  const presses = Object.keys(data.looks);
  const open = boards.filter((board) => !board.element.hidden).length;
  const text = `${presses.filter(isWanted).length} of ${plural(presses.length, "press", "presses")}, ${open} of ${plural(boards.length, "table")}`;
  byId("shown").textContent = text;
  byId("empty").hidden = open > 0;
  return text;
}

function filter() {
  wantedPresses = byId("press").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const board of boards) {
    const fields = board.protocol.fields;
    board.element.hidden = !Object.entries(chosen).every(([name, value]) => !value || String(fields[name]) === value);
    byId(`to-${board.id}`).hidden = board.element.hidden;
    board.fill();
    board.draw();
  }
  say(count());
}

function addFilters() {
  const press = byId("press").parentElement;
  for (const name of ["model", "task", "question", "schedule", "dtype", "device"]) {
    const values = [...new Set(data.protocols.map(({ fields }) => String(fields[name])))].sort();
    if (values.length < 2) continue;
    const select = h("select", { id: `filter-${name}`, onchange: () => { chosen[name] = select.value; filter(); } },
      h("option", { value: "" }, "all"), ...values.map((value) => h("option", { value }, value)));
    press.before(h("label", {}, name[0].toUpperCase() + name.slice(1), select));
  }
}

/* A list of the tables, each with those of its conditions that not all share. */
function addContents() {
  const conditions = data.protocols.map((protocol) => protocol.conditions.split(", "));
  const common = new Set(conditions[0].filter((one) => conditions.every((all) => all.includes(one))));
  const items = boards.map(({ id, protocol }, index) =>
    h("li", { id: `to-${id}` }, h("a", { href: `#${id}` }, protocol.title), " ", conditions[index].filter((one) => !common.has(one)).join(", ")));
  byId("contents").append(h("ol", {}, ...items));
  byId("contents").hidden = boards.length < 2;
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  const dark = (theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  byId("theme").setAttribute("aria-pressed", String(dark));
}

function start() {
  const answers = data.protocols.reduce((sum, { tables: [{ rows }] }) => sum + rows.flatMap(({ cells }) => Object.values(cells)).reduce((n, cell) => n + cell[N], 0), 0);
  byId("scope").textContent = `KV-cache eviction: ${plural(Object.keys(data.looks).length, "press", "presses")}, ${plural(boards.length, "protocol")}, ${plural(answers, "answer")}`;
  addFilters();
  addContents();
  byId("boards").append(...boards.map(({ element }) => element), h("p", { id: "empty", class: "empty", hidden: true }, "No table matches the filters."));
  boards.forEach((board) => board.update());
  count();
  byId("press").addEventListener("input", filter);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("all").addEventListener("click", () => { choose(Object.keys(data.looks), true); say("all curves are drawn"); });
  byId("none").addEventListener("click", () => { choose(Object.keys(data.looks), false); say("no curve is drawn"); });
  byId("csv").addEventListener("click", () => download("results.csv", "text/csv", csv(data.protocols)));
  byId("json").addEventListener("click", () => download("results.json", "application/json", JSON.stringify(data, null, 1)));
  byId("theme").addEventListener("click", () => setTheme(byId("theme").getAttribute("aria-pressed") === "true" ? "light" : "dark"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(document.documentElement.dataset.theme));
  byId("detail").addEventListener("close", () => {
    if (location.hash.startsWith("#cell?")) history.replaceState(null, "", location.pathname + location.search);
  });
  byId("detail").addEventListener("click", (event) => { if (event.target === byId("detail")) byId("detail").close(); });
  addEventListener("hashchange", showAddressed);
  setTheme(null);
  showAddressed();
}

start();
