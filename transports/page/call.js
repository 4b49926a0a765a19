/** One call from the click that starts it to its end: sound context, microphone, connection, levels. */

import { openContext, openMicrophone, tap } from "./audio-in.js";
import { Ear } from "./ear.js";
import { openWebRtc } from "./webrtc.js";
import { openWebSocket } from "./websocket.js";

export class Call {
  #context = null;
  #microphone = null;
  #connection = null;
  #abort = new AbortController();
  #untaps = [];
  #ear;
  #on;

  /**
   * @param {object} on callbacks: event(serverEvent), speaking(boolean), away(boolean), lost(Failure),
   *   level("microphone" | "agent", rms), measured(ms)
   */
  constructor(on) {
    this.#on = on;
    this.#ear = new Ear(on.measured);
  }

  /** @param {{ transport: "webrtc" | "websocket", token: string, microphone: boolean, muted: boolean }} wanted */
  async open({ transport, token, microphone, muted }) {
    try {
      this.#context = await openContext();
      this.#context.addEventListener("statechange", this.#resume);
      document.addEventListener("visibilitychange", this.#resume);
      if (microphone) {
        this.#microphone = await openMicrophone();
        this.setMuted(muted);
        this.#listen();
      }
      this.#abort.signal.throwIfAborted();
      const open = transport === "webrtc" && microphone ? openWebRtc : openWebSocket;
      this.#connection = await open({
        context: this.#context,
        microphone: this.#microphone,
        token,
        signal: this.#abort.signal,
        on: { ...this.#on, agentSound: (node) => this.#watchAgent(node), lost: (failure) => this.#lost(failure) },
      });
    } catch (error) {
      this.close();
      throw error;
    }
  }

  send(event) {
    this.#connection?.send(event);
  }

  interrupt(responding) {
    this.#connection?.interrupt(responding);
  }

  /** A muted track goes on as silence, so that the server's clock of the conversation goes on too. */
  setMuted(muted) {
    for (const track of this.#microphone?.getAudioTracks() ?? []) track.enabled = !muted;
  }

  close() {
    this.#abort.abort(new DOMException("the call was ended", "AbortError"));
    this.#connection?.close();
    this.#release();
  }

  #lost(failure) {
    this.#release();
    this.#on.lost(failure);
  }

  #release() {
    this.#connection = null;
    for (const untap of this.#untaps.splice(0)) untap();
    for (const track of this.#microphone?.getTracks() ?? []) track.stop();
    document.removeEventListener("visibilitychange", this.#resume);
    this.#context?.removeEventListener("statechange", this.#resume);
    if (this.#context && this.#context.state !== "closed") void this.#context.close();
  }

  /** Phones suspend the sound when a call comes in or the screen goes dark. */
  #resume = () => {
    if (document.visibilityState === "visible" && this.#context.state !== "running" && this.#context.state !== "closed") {
      void this.#context.resume();
    }
  };

  #listen() {
    const source = this.#context.createMediaStreamSource(this.#microphone);
    this.#untaps.push(
      tap(this.#context, source, ({ samples, rms, at }) => {
        this.#ear.microphone(rms, at + samples.length / this.#context.sampleRate);
        this.#on.level("microphone", rms);
      }),
    );
  }

  #watchAgent(node) {
    this.#untaps.push(
      tap(this.#context, node, ({ rms, at }) => {
        this.#ear.agent(rms, at + (this.#context.outputLatency || 0));
        this.#on.level("agent", rms);
      }),
    );
  }
}
