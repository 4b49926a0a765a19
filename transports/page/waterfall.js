/** Draws one row per turn: a bar of where the time went, and on opening it every stage with its figures. */

import { element } from "./element.js";
import { STAGES, lanes, median, niceScale, strip, totalMs } from "./turn-times.js";

const ms = (value) => `${Math.round(value).toLocaleString("en")} ms`;

export class Waterfall {
  #list = document.getElementById("turns");
  #empty = document.getElementById("timing-empty");
  #median = document.getElementById("median");
  #legend = document.getElementById("legend");
  #rows = new Map(); // response id → { row, shown, complete, number }

  constructor() {
    for (const { key, name, about } of STAGES) {
      const item = element("li", `stage ${key}`, name);
      item.title = about;
      this.#legend.append(item);
    }
    this.#legend.hidden = true;
  }

  /** @param {import("./state.js").State} state */
  draw({ turns }) {
    const totals = turns.map(({ times, earMs }) => totalMs(times) ?? earMs).filter((value) => value !== null);
    const scale = niceScale(Math.max(0, ...totals, ...turns.map(({ earMs }) => earMs ?? 0)));
    const middle = median(totals);
    this.#median.textContent = totals.length > 1 ? `median ${ms(middle)}` : "";
    this.#median.title = `Voice to voice, ${totals.length} turns`;
    this.#empty.hidden = turns.length > 0;
    this.#legend.hidden = turns.length === 0;
    this.#dropOld(turns);
    turns.forEach((turn, index) => this.#drawRow(turn, index + 1, scale));
  }

  #dropOld(turns) {
    const present = new Set(turns.map((turn) => turn.responseId));
    for (const [id, { row }] of this.#rows) {
      if (present.has(id)) continue;
      row.remove();
      this.#rows.delete(id);
    }
  }

  #drawRow(turn, number, scale) {
    const shown = JSON.stringify([turn, scale]);
    const known = this.#rows.get(turn.responseId);
    if (known?.shown === shown) return;
    const complete = turn.times !== null && !known?.complete;
    const open = complete ? this.#openNewest() : (known?.row.querySelector("details").open ?? false);
    const row = makeRow(turn, known?.number ?? number, scale, open);
    if (known) known.row.replaceWith(row);
    else this.#list.prepend(row);
    this.#rows.set(turn.responseId, { row, shown, complete: turn.times !== null, number: known?.number ?? number });
  }

  /** A turn opens when its figures come, and the one before closes, unless a person opened several. */
  #openNewest() {
    const open = this.#list.querySelectorAll("details[open]");
    if (open.length === 1) open[0].open = false;
    return true;
  }
}

function makeRow({ text, times, earMs }, number, scale, open) {
  const row = element("li", "turn");
  const details = element("details");
  details.open = open;
  details.append(makeSummary(text, times, earMs, number, scale));
  const bars = times ? lanes(times) : [];
  if (bars.length > 0) details.append(makeTable(bars, times, scale, number));
  if (!times) details.append(element("p", "fine", "The stages follow when the answer has ended."));
  if (times && earMs !== null) {
    details.append(element("p", "fine", `${ms(earMs)} as measured in this page, from microphone to loudspeaker.`));
  }
  if (times?.speculated && totalMs(times) !== null) {
    details.append(element("p", "fine", "Begun at the pause, before the turn was certain."));
  }
  row.append(details);
  return row;
}

function makeSummary(text, times, earMs, number, scale) {
  const summary = element("summary");
  const head = element("span", "turn-head");
  const total = totalMs(times);
  head.append(element("span", "turn-number", `Turn ${number}`), element("span", "turn-text", text || "…"));
  const figure = total ?? earMs;
  head.append(element("span", "turn-total", figure === null ? "–" : ms(figure)));
  const bar = element("span", "strip");
  bar.setAttribute("aria-hidden", "true");
  for (const { key, from, to } of times ? strip(times) : []) {
    const part = element("i", `part ${key}`);
    place(part, from, to, scale);
    bar.append(part);
  }
  if (earMs !== null) {
    const mark = element("i", "ear");
    mark.style.setProperty("--from", earMs / scale);
    mark.title = `${ms(earMs)} measured in this page`;
    bar.append(mark);
  }
  summary.append(head, bar);
  return summary;
}

function makeTable(bars, times, scale, number) {
  const table = element("table", "lanes");
  table.append(element("caption", "hidden", `Stages of turn ${number}, in milliseconds`));
  const head = table.createTHead().insertRow();
  for (const name of ["Stage", "", "Took"]) {
    const cell = element("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  head.cells[1].append(makeAxis(scale));
  const body = table.createTBody();
  for (const { key, from, to } of bars) {
    const { name, about } = STAGES.find((stage) => stage.key === key);
    const line = body.insertRow();
    const label = element("th", "", name);
    label.scope = "row";
    label.title = about;
    const track = element("td", "track");
    const bar = element("i", `part ${key}`);
    place(bar, from, to, scale);
    track.append(bar);
    track.title = `${ms(from)} to ${ms(to)}`;
    line.append(label, track, element("td", "figure", ms(to - from)));
  }
  if (totalMs(times) !== null) table.append(makeFoot(times));
  return table;
}

function makeAxis(scale) {
  const axis = element("span", "axis");
  axis.setAttribute("aria-hidden", "true");
  for (const share of [0, 0.5, 1]) axis.append(element("span", "", Math.round(scale * share).toLocaleString("en")));
  return axis;
}

function makeFoot(times) {
  const foot = element("tfoot");
  const line = foot.insertRow();
  const label = element("th", "", "Voice to voice");
  label.scope = "row";
  line.append(label, element("td"), element("td", "figure", ms(totalMs(times))));
  return foot;
}

function place(bar, from, to, scale) {
  bar.style.setProperty("--from", from / scale);
  bar.style.setProperty("--share", (to - from) / scale);
}
