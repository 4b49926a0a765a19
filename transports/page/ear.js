/**
 * Measures voice to ear in the page: from the last sound of the user's voice in the microphone to the first sound of the
 * agent. Unlike the server's figure it holds the way over the network and the browser's buffers.
 */

/** Levels are RMS in 0 … 1. A voice stands out from the room; the agent's silence is nearly digital. */
const VOICE = 0.008;
const OVER_ROOM = 3;
const AGENT = 0.003;
/** Silence of the agent that separates one answer from the next, and the longest wait that is still an answer. */
const QUIET_S = 0.25;
const LONGEST_S = 15;
/** How fast the idea of the room's noise follows when the room gets louder, per piece of 10 ms. */
const ROOM_RISE = 1.003;

export class Ear {
  #room = VOICE / OVER_ROOM;
  #voiceAt = null;
  #agentAt = -Infinity;
  #onMeasured;

  /** @param {(ms: number) => void} onMeasured */
  constructor(onMeasured) {
    this.#onMeasured = onMeasured;
  }

  /** A piece of the microphone's sound: its level and the time of its end. */
  microphone(rms, at) {
    this.#room = Math.max(1e-4, Math.min(rms, this.#room * ROOM_RISE));
    const agentSounds = at - this.#agentAt < QUIET_S; // what the microphone hears may be the agent's echo
    if (!agentSounds && rms > Math.max(VOICE, OVER_ROOM * this.#room)) this.#voiceAt = at;
  }

  /** A piece of the agent's sound: its level and the time its first sample reaches the ear. */
  agent(rms, at) {
    if (rms < AGENT) return;
    const begins = at - this.#agentAt >= QUIET_S;
    this.#agentAt = at;
    if (!begins || this.#voiceAt === null) return;
    const waited = at - this.#voiceAt;
    this.#voiceAt = null;
    if (waited > 0 && waited < LONGEST_S) this.#onMeasured(1000 * waited);
  }
}
