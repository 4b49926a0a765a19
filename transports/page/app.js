/** The page: connects the controls, the call, the conversation and the views. */

import { Call } from "./call.js";
import { Conversation } from "./conversation.js";
import { Controls } from "./controls.js";
import { Failure } from "./failure.js";
import { Meters } from "./meters.js";
import { State } from "./state.js";
import { Transcript } from "./transcript.js";
import { Waterfall } from "./waterfall.js";

const TOKEN_KEY = "voice.token";

const state = new State();
const meters = new Meters();
const transcript = new Transcript();
const waterfall = new Waterfall();
const controls = new Controls({ start, hangUp, setMuted, interrupt, type, setTransport, useToken, act });

let call = null;
let conversation = null;
let wanted = { microphone: true, message: "" }; // how the last call was begun, for another try
let token = sessionStorage.getItem(TOKEN_KEY) ?? "";

state.watch((now) => transcript.draw(now));
state.watch((now) => waterfall.draw(now));
state.watch((now) => controls.draw(now));
addEventListener("pagehide", hangUp);

/** Begin a call. Without a microphone it is a conversation by keyboard; the agent speaks all the same. */
async function start({ microphone = true, message = "" } = {}) {
  if (state.phase !== "idle") return;
  wanted = { microphone, message };
  state.set({ phase: "connecting", problem: null, tokenNeeded: false, microphone });
  const mine = new Call({
    event: (event) => conversation.receive(event),
    speaking: (agentSpeaking) => state.set({ agentSpeaking }),
    away: (away) => state.set({ away }),
    level: (name, rms) => meters.level(name, rms),
    measured: (ms) => conversation.measured(ms),
    lost: (failure) => ended(conversation.farewell ?? failure),
  });
  call = mine;
  conversation = new Conversation(state, (event) => mine.send(event));
  try {
    await mine.open({ transport: state.transport, token, microphone, muted: state.muted });
  } catch (error) {
    if (call === mine) ended(error); // else it was hung up meanwhile
    return;
  }
  state.set({ phase: "live" });
  wanted.message = "";
  if (message) conversation.type(message);
}

function hangUp() {
  call?.close();
  ended(null);
}

/** The call is over, by wish (`null`), or because of a failure. */
function ended(failure) {
  call = null;
  conversation?.end();
  state.set({ phase: "idle", away: false });
  if (failure === null) return;
  if (!(failure instanceof Failure)) console.error(failure);
  const known = failure instanceof Failure ? failure : new Failure(`Something went wrong: ${failure.message}`);
  if (known.actions.includes("token")) state.set({ tokenNeeded: true, problem: token ? known : null });
  else state.set({ problem: known });
}

function setMuted(muted) {
  state.set({ muted });
  call?.setMuted(muted);
}

function interrupt() {
  if (state.phase === "live" && (state.responding || state.agentSpeaking)) call.interrupt(state.responding !== null);
}

function type(text) {
  if (state.phase === "idle") void start({ microphone: false, message: text });
  if (state.phase !== "live") return;
  interrupt();
  conversation.type(text);
}

function setTransport(transport) {
  state.set({ transport });
}

function useToken(value) {
  token = value;
  sessionStorage.setItem(TOKEN_KEY, value);
  void start(wanted);
}

/** What the buttons of a failure do. */
function act(action) {
  state.set({ problem: null });
  if (action === "websocket") setTransport("websocket");
  if (action === "typed") wanted.microphone = false;
  if (action !== "dismiss") void start(wanted);
}
