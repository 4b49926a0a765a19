/** Draws the transcript, and reads it to screen readers a sentence at a time. */

import { splitAtHeard } from "./conversation.js";
import { element } from "./element.js";

const NAMES = { user: "You", agent: "Agent", tool: "Tool", note: "Note" };
/** Lines that the screen reader's log keeps. */
const MAX_SPOKEN = 30;

export class Transcript {
  #list = document.getElementById("transcript");
  #scroll = document.getElementById("transcript-scroll");
  #empty = document.getElementById("transcript-empty");
  #announcer = new Announcer(document.getElementById("announcer"));
  #lines = new Map(); // entry id → { line, version }
  #atEnd = true; // stay at the newest line, unless a person scrolled up

  constructor() {
    this.#scroll.addEventListener("scroll", () => {
      const below = this.#scroll.scrollHeight - this.#scroll.scrollTop - this.#scroll.clientHeight;
      this.#atEnd = below < 60;
    });
    new ResizeObserver(() => this.#follow()).observe(this.#scroll);
  }

  #follow() {
    if (this.#atEnd) this.#scroll.scrollTop = this.#scroll.scrollHeight;
  }

  /** @param {import("./state.js").State} state */
  draw({ entries }) {
    const present = new Set(entries.map((entry) => entry.id));
    for (const [id, { line }] of this.#lines) {
      if (present.has(id)) continue;
      line.remove();
      this.#lines.delete(id);
    }
    for (const entry of entries) this.#drawLine(entry);
    this.#empty.hidden = entries.length > 0;
    this.#follow();
  }

  #drawLine(entry) {
    const known = this.#lines.get(entry.id);
    if (known?.version === entry.version) return;
    const line = known?.line ?? element("li");
    line.className = `entry ${entry.kind} ${entry.status}`;
    line.replaceChildren(element("span", "speaker", NAMES[entry.kind]), ...body(entry));
    if (!known) this.#list.append(line);
    this.#lines.set(entry.id, { line, version: entry.version });
    this.#announcer.hear(entry);
  }
}

function body(entry) {
  switch (entry.kind) {
    case "user":
      return userBody(entry);
    case "agent":
      return agentBody(entry);
    case "tool":
      return toolBody(entry);
    default:
      return [element("p", "text", entry.text)];
  }
}

function userBody({ text, tail, status, detail }) {
  if (status === "failed") return [element("p", "text unclear", text || "…"), element("p", "fine", detail)];
  if (text || tail) {
    const said = element("p", "text", text);
    if (tail) said.append(element("span", "guess", text ? tail : tail.trimStart()));
    return [said];
  }
  const waiting = element("p", "text waiting");
  waiting.append(element("span", "hidden", status === "open" ? "speaking" : "being recognised"));
  for (let i = 0; i < 3; i += 1) waiting.append(element("i"));
  return [waiting];
}

function agentBody({ text, status, heard, heardMs }) {
  if (status !== "cut" || heard === null) return [element("p", "text", text)];
  const [said, rest] = splitAtHeard(text, heard);
  const paragraph = element("p", "text", said);
  if (rest) {
    const unheard = element("del", "unheard");
    unheard.append(element("span", "hidden", "Not heard: "), rest.trimStart());
    paragraph.append(" ", unheard);
  }
  const where = heardMs ? ` after ${(heardMs / 1000).toFixed(1)} s` : said ? "" : " before it was heard";
  return [paragraph, element("p", "fine cut-note", `Interrupted${where}`)];
}

function toolBody({ text, detail, status, result }) {
  const call = element("p", "text");
  call.append(element("code", "", `${text}(${compact(detail)})`));
  const state = { open: "running", done: "done", failed: "failed" }[status];
  if (result === null) return [call, element("p", "fine", state)];
  const outcome = element("details", "result");
  outcome.append(element("summary", "", status === "failed" ? "Failed" : "Result"), element("pre", "", result));
  return [call, outcome];
}

/** Arguments as a person would write them: `day: "Sunday"`. */
function compact(json) {
  try {
    const values = JSON.parse(json || "{}");
    return Object.entries(values).map(([name, value]) => `${name}: ${JSON.stringify(value)}`).join(", ");
  } catch {
    return json; // still being written
  }
}

/** Puts whole sentences into a live region, each once. */
class Announcer {
  #region;
  #said = new Map(); // entry id → how much of its text was announced

  constructor(region) {
    this.#region = region;
  }

  hear(entry) {
    if (entry.kind === "agent") this.#agent(entry);
    else if (entry.status === "done" && !this.#said.has(entry.id) && entry.text) {
      this.#said.set(entry.id, entry.text.length);
      this.#say(`${NAMES[entry.kind]}: ${entry.text}`);
    }
  }

  #agent({ id, text, status }) {
    const from = this.#said.get(id) ?? 0;
    if (from === Infinity) return;
    const fresh = text.slice(from);
    const whole = status === "open" ? (fresh.match(/^[\s\S]*[.!?…。！？](?=\s|$)/)?.[0] ?? "") : fresh;
    if (status === "cut") this.#say("Agent interrupted.");
    else if (whole.trim()) this.#say(`${from === 0 ? "Agent: " : ""}${whole.trim()}`);
    this.#said.set(id, status === "cut" ? Infinity : from + whole.length);
  }

  #say(text) {
    this.#region.append(element("p", "", text));
    while (this.#region.childElementCount > MAX_SPOKEN) this.#region.firstElementChild.remove();
    if (this.#said.size > 600) this.#said.clear();
  }
}
