/**
 * Everything the page shows, in one place.
 *
 * conversation.js and app.js write it, the views read it. A view is told at most once per animation frame, so
 * that a burst of events costs one drawing.
 *
 * @typedef {object} Entry one line of the transcript
 * @property {string} id the item's id in the protocol
 * @property {"user"|"agent"|"tool"|"note"} kind
 * @property {string} text all that was said or written so far
 * @property {string} tail of what the user is saying: words after `text` that may still change
 * @property {"open"|"recognising"|"done"|"cut"|"failed"} status
 * @property {string|null} heard of a cut answer: the part that reached the ear; null while not known
 * @property {number|null} heardMs of a cut answer: its audible length
 * @property {string} detail a tool's arguments, or why something failed
 * @property {string|null} result what a tool returned
 * @property {number} version counts changes; a view draws an entry again when it differs
 *
 * @typedef {object} Turn one row of the waterfall
 * @property {string} responseId
 * @property {string} text what the user said
 * @property {object|null} times the server's figures; null until the answer has ended
 * @property {number|null} earMs voice to ear as measured in this page
 */

/** The oldest lines and rows leave above these numbers, so that a long call does not grow the page. */
const MAX_ENTRIES = 300;
const MAX_TURNS = 100;

export class State {
  /** @type {"idle"|"connecting"|"live"} */
  phase = "idle";
  /** @type {"webrtc"|"websocket"} */
  transport = "webrtc";
  muted = false;
  /** False when the call was begun without a microphone. */
  microphone = true;
  /** The network broke, and the connection tries to come back. */
  away = false;
  userSpeaking = false;
  agentSpeaking = false;
  /** Id of the response that the server is making, or null. */
  responding = null;
  /** What went wrong: { text, actions }, or null. */
  problem = null;
  tokenNeeded = false;
  sessionId = "";
  /** @type {Entry[]} */
  entries = [];
  /** @type {Turn[]} */
  turns = [];

  #views = [];
  #scheduled = false;

  /** Call `view(state)` after changes, and once now. */
  watch(view) {
    this.#views.push(view);
    view(this);
  }

  /** Set some fields. */
  set(fields) {
    Object.assign(this, fields);
    this.#changed();
  }

  /** The entry with this id; made at the end of the transcript if there is none. */
  entry(id, kind) {
    let entry = this.entries.find((known) => known.id === id);
    if (!entry) {
      entry = { id, kind, text: "", tail: "", status: "open", version: 0 };
      Object.assign(entry, { heard: null, heardMs: null, detail: "", result: null });
      this.entries.push(entry);
      if (this.entries.length > MAX_ENTRIES) this.entries.shift();
      this.#changed();
    }
    return entry;
  }

  /** The entry with this id, or undefined. */
  find(id) {
    return this.entries.find((entry) => entry.id === id);
  }

  /** Set some fields of an entry. */
  edit(entry, fields) {
    Object.assign(entry, fields);
    entry.version += 1;
    this.#changed();
  }

  /** Take an entry out, as when a sound turns out to hold no words. */
  remove(entry) {
    this.entries = this.entries.filter((other) => other !== entry);
    this.#changed();
  }

  /** Set some fields of the turn that `responseId` answers. */
  editTurn(responseId, fields) {
    let turn = this.turns.find((known) => known.responseId === responseId);
    if (!turn) {
      turn = { responseId, text: "", times: null, earMs: null };
      this.turns.push(turn);
      if (this.turns.length > MAX_TURNS) this.turns.shift();
    }
    Object.assign(turn, fields);
    this.#changed();
  }

  #changed() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      this.#scheduled = false;
      for (const view of this.#views) view(this);
    });
  }
}
