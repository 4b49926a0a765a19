/**
 * What the server's events mean: Realtime events in, changes of the state out. No DOM, no sound.
 *
 * Cut answers: the server says that an item was truncated, and is then asked for the item, whose transcript is the part
 * that was heard.
 */

import { Failure } from "./failure.js";

/** Harmless: the server was faster, and what we asked for has happened already. */
const EXPECTED_ERRORS = new Set(["response_cancel_not_active", "conversation_already_has_active_response"]);

/** The server's last words before it ends a conversation that works. */
const FAREWELLS = new Set(["session_expired", "session_idle", "server_draining"]);

const newId = (prefix) => `${prefix}_${crypto.getRandomValues(new Uint32Array(2)).join("")}`;

export class Conversation {
  #state;
  #send;
  #askWhenFree = false; // an answer is wanted as soon as the one under way has ended
  #asked = new Map(); // event id of a retrieve → item id
  #answering = null; // id of the newest response, under way or not
  #questions = new Map(); // response id → the user's entry that it answers
  #messages = new Map(); // response id → id of its message
  #sounded = new Set(); // ids of messages of which sound arrived
  /** Why the server is about to end the call, or null. @type {Failure | null} */
  farewell = null;

  /** @param {import("./state.js").State} state @param {(event: object) => void} send */
  constructor(state, send) {
    this.#state = state;
    this.#send = send;
  }

  /** What the user typed. The answer under way must have been interrupted before. */
  type(text) {
    const id = newId("msg");
    this.#state.edit(this.#state.entry(id, "user"), { text, status: "done" });
    this.#send({
      type: "conversation.item.create",
      item: { id, type: "message", role: "user", content: [{ type: "input_text", text }] },
    });
    if (this.#state.responding) this.#askWhenFree = true;
    else this.#send({ type: "response.create" });
  }

  /** The page measured a turn: it belongs to the answer under way, or to the last one. */
  measured(earMs) {
    if (this.#answering) this.#state.editTurn(this.#answering, { earMs, text: this.#question(this.#answering) });
  }

  /** The call is over: nothing stays half said. */
  end() {
    for (const entry of [...this.#state.entries]) {
      if (entry.status !== "open" && entry.status !== "recognising") continue;
      if (entry.text) this.#state.edit(entry, { tail: "", status: "done" });
      else this.#state.remove(entry);
    }
    this.#state.set({ userSpeaking: false, agentSpeaking: false, responding: null });
  }

  /** @param {{ type: string }} event */
  receive(event) {
    switch (event.type) {
      case "session.created":
        return this.#begin(event.session);
      case "input_audio_buffer.speech_started":
        return this.#userBegins(event.item_id);
      case "input_audio_buffer.speech_stopped":
        return this.#userStops(event.item_id);
      case "conversation.item.input_audio_transcription.delta":
        return this.#userText(event.item_id, event.delta ?? "");
      case "voice.user_partial":
        return this.#userGuess(event.item_id, event.text.slice(event.stable.length));
      case "conversation.item.input_audio_transcription.completed":
        return this.#userSaid(event.item_id, event.transcript);
      case "conversation.item.input_audio_transcription.failed":
        return this.#notUnderstood(event.item_id, event.error);
      case "conversation.item.added":
      case "conversation.item.done":
        return this.#item(event.item);
      case "conversation.item.truncated":
        return this.#truncated(event.item_id, event.audio_end_ms);
      case "conversation.item.retrieved":
        return this.#retrieved(event.item);
      case "response.created":
        return this.#responseBegins(event.response.id);
      case "response.output_audio_transcript.delta":
      case "response.output_text.delta":
        return this.#agentText(event);
      case "response.output_audio.delta":
        return this.#sounds(event.item_id);
      case "output_audio_buffer.started":
        return this.#sounds(this.#messages.get(event.response_id));
      case "response.done":
        return this.#responded(event.response);
      case "voice.turn_times":
        return this.#turnEnds(event.response_id, event.times);
      case "voice.tool_started":
        return this.#toolBegins(event.call_id, event.name, event.arguments);
      case "voice.tool_ended":
        return this.#toolEnds(event.call_id, event.error ?? null);
      case "voice.problem":
        return this.#note(event.message);
      case "error":
        return this.#error(event.error);
      default:
        return undefined; // all others only repeat what these say
    }
  }

  #begin(session) {
    this.#state.set({ sessionId: session.id ?? "" });
    if (session.type === "transcription") return;
    // who asks for a transcript is told the words while they are spoken
    this.#send({
      type: "session.update",
      session: { type: "realtime", audio: { input: { transcription: { model: "whisper-1" } } } },
    });
  }

  // ------------------------------------------------------------------ the user

  #userBegins(id) {
    for (const entry of [...this.#state.entries]) {
      // what came before held no words, or its words would be here
      if (entry.kind === "user" && entry.status === "open" && !entry.text && entry.id !== id) this.#state.remove(entry);
    }
    this.#state.edit(this.#state.entry(id, "user"), { status: "open" });
    this.#state.set({ userSpeaking: true });
  }

  #userStops(id) {
    const entry = this.#state.find(id);
    if (entry?.status === "open") this.#state.edit(entry, { status: "recognising" });
    this.#state.set({ userSpeaking: false });
  }

  #userText(id, delta) {
    const entry = this.#state.entry(id, "user");
    if (entry.status !== "done") this.#state.edit(entry, { text: entry.text + delta });
  }

  /** Words that may still change, after those that don't. */
  #userGuess(id, tail) {
    const entry = this.#state.entry(id, "user");
    if (entry.status !== "done") this.#state.edit(entry, { tail });
  }

  #userSaid(id, transcript) {
    const text = transcript.trim();
    const entry = this.#state.entry(id, "user");
    if (text) this.#state.edit(entry, { text, tail: "", status: "done" });
    else this.#state.remove(entry);
  }

  #notUnderstood(id, error) {
    this.#state.edit(this.#state.entry(id, "user"), {
      status: "failed",
      tail: "",
      detail: error?.message ?? "This could not be recognised.",
    });
  }

  #question(responseId) {
    return this.#questions.get(responseId)?.text ?? "";
  }

  // ------------------------------------------------------------------ the agent

  #item(item) {
    if (item.type === "function_call") {
      this.#toolBegins(item.call_id, item.name, item.arguments);
    } else if (item.type === "function_call_output") {
      const entry = this.#state.entry(item.call_id, "tool");
      this.#state.edit(entry, { result: item.output, status: "done" });
    } else if (item.type === "message" && item.role === "assistant") {
      const written = textOf(item);
      const entry = this.#state.entry(item.id, "agent");
      if (written.length > entry.text.length) this.#state.edit(entry, { text: written });
    }
  }

  #toolBegins(callId, name, args) {
    this.#state.edit(this.#state.entry(callId, "tool"), { text: name, detail: args });
  }

  #toolEnds(callId, error) {
    const entry = this.#state.find(callId);
    if (entry) this.#state.edit(entry, { status: error === null ? "done" : "failed", result: error });
  }

  #responseBegins(id) {
    this.#answering = id;
    const question = this.#state.entries.findLast((entry) => entry.kind === "user");
    this.#questions = new Map([...this.#questions, [id, question]].slice(-8)); // only the newest are asked for
    this.#messages = new Map([...this.#messages].slice(-8));
    this.#state.set({ responding: id });
  }

  #agentText({ response_id: responseId, item_id: id, delta }) {
    this.#messages.set(responseId, id);
    const entry = this.#state.entry(id, "agent");
    this.#state.edit(entry, { text: entry.text + delta });
  }

  #sounds(id) {
    this.#sounded.add(id);
    if (this.#sounded.size > 8) this.#sounded.delete(this.#sounded.values().next().value);
  }

  #turnEnds(responseId, times) {
    this.#state.editTurn(responseId, { times, text: this.#question(responseId) });
  }

  #responded(response) {
    const reason = response.status_details?.reason;
    for (const item of response.output ?? []) {
      const entry = this.#state.find(item.type === "function_call" ? item.call_id : item.id);
      if (!entry || entry.kind !== "agent" || entry.status === "cut") continue;
      // the cut of an answer that sounded is told by item.truncated; of another nothing was heard
      if (response.status !== "cancelled") this.#state.edit(entry, { status: "done" });
      else this.#state.edit(entry, { status: "cut", heard: this.#sounded.has(item.id) ? null : "" });
    }
    if (response.status === "failed") this.#failed(response);
    if (response.status === "incomplete" && reason) this.#note(`The answer ended early (${reason.replaceAll("_", " ")}).`);
    if (this.#state.responding === response.id) this.#state.set({ responding: null });
    if (this.#askWhenFree) {
      this.#askWhenFree = false;
      this.#send({ type: "response.create" });
    }
  }

  #failed(response) {
    const message = response.status_details?.error?.message;
    this.#note(message ? `The answer failed: ${message}` : "The answer failed.");
  }

  #note(text) {
    this.#state.edit(this.#state.entry(newId("note"), "note"), { text, status: "failed" });
  }

  // ------------------------------------------------------------------ cut answers

  #truncated(id, heardMs) {
    const entry = this.#state.find(id);
    if (!entry) return;
    this.#state.edit(entry, { status: "cut", heardMs });
    const eventId = newId("retrieve");
    this.#asked.set(eventId, entry.id);
    this.#send({ type: "conversation.item.retrieve", event_id: eventId, item_id: entry.id });
  }

  #retrieved(item) {
    const entry = this.#state.find(item.id);
    if (entry?.status === "cut") this.#state.edit(entry, { heard: textOf(item) });
    for (const [eventId, itemId] of this.#asked) if (itemId === item.id) this.#asked.delete(eventId);
  }

  // ------------------------------------------------------------------ errors

  #error(error) {
    const itemId = this.#asked.get(error.event_id);
    if (itemId !== undefined) {
      // an answer of which nothing was heard is no item any more
      this.#asked.delete(error.event_id);
      const entry = this.#state.find(itemId);
      if (entry) this.#state.edit(entry, { heard: "" });
    } else if (FAREWELLS.has(error.code)) {
      this.farewell = new Failure(`The server ended the call. ${error.message}`, ["reconnect"]);
    } else if (!EXPECTED_ERRORS.has(error.code)) {
      this.#state.set({ problem: new Failure(error.message, ["dismiss"]) });
    }
  }
}

/** All text of an item, however it is carried. */
function textOf(item) {
  return (item.content ?? []).map((part) => part.transcript ?? part.text ?? "").join("");
}

/**
 * Split a cut answer where the ear stopped.
 * @returns {[string, string]} what was heard, and the rest
 */
export function splitAtHeard(text, heard) {
  const said = heard.trim();
  if (text.startsWith(said)) return [text.slice(0, said.length), text.slice(said.length)];
  // the server may have tidied blanks: count words instead
  const words = said.split(/\s+/).filter(Boolean).length;
  const found = [...text.matchAll(/\S+/g)][words - 1];
  const end = words === 0 ? 0 : found ? found.index + found[0].length : text.length;
  return [text.slice(0, end), text.slice(end)];
}
