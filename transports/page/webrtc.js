/**
 * A call over WebRTC: sound travels as Opus in both directions, events in the data channel "oai-events".
 *
 * It offers what websocket.js offers. The server knows what it played, so it cuts answers by itself.
 */

import { httpFailure, lostFailure, noPathFailure, unreachableFailure } from "./failure.js";

/** Longest wait for the browser's own addresses, for the open data channel, and for a broken path to come back. */
const GATHER_MS = 1500;
const CONNECT_MS = 10000;
const DISCONNECTED_MS = 5000;

const url = (path) => new URL(path, document.baseURI);

/**
 * @param {object} options context: AudioContext, microphone: MediaStream, token, on, signal: AbortSignal
 * @returns {Promise<WebRtcCall>}
 */
export async function openWebRtc({ context, microphone, token, on, signal }) {
  const call = new WebRtcCall(context, microphone, token, on, await iceServers(token, signal));
  try {
    await call.open(signal);
  } catch (error) {
    call.close();
    throw error;
  }
  return call;
}

/** The STUN and TURN servers that the server knows of; none on one network. */
async function iceServers(token, signal) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(url("v1/realtime/ice_servers"), { headers, signal }).catch(() => null);
  return answer?.ok ? (await answer.json()).ice_servers : []; // the offer tells what else is wrong
}

class WebRtcCall {
  #peer;
  #channel;
  #context;
  #on;
  #token;
  #audio = document.getElementById("agent-audio");
  #callId = null;
  #disconnected = 0;
  #closed = false;

  constructor(context, microphone, token, on, iceServers) {
    this.#peer = new RTCPeerConnection({ iceServers });
    this.#context = context;
    this.#token = token;
    this.#on = on;
    for (const track of microphone.getTracks()) this.#peer.addTrack(track, microphone);
    this.#channel = this.#peer.createDataChannel("oai-events");
    this.#channel.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    this.#peer.ontrack = ({ streams: [stream] }) => this.#play(stream);
  }

  async open(signal) {
    await this.#peer.setLocalDescription();
    await this.#gathered();
    signal.throwIfAborted();
    await this.#peer.setRemoteDescription({ type: "answer", sdp: await this.#answer(signal) });
    await this.#opened(signal);
    this.#channel.onclose = () => this.#lost();
    this.#peer.onconnectionstatechange = () => this.#watch();
  }

  send(event) {
    if (this.#channel.readyState === "open") this.#channel.send(JSON.stringify(event));
  }

  /** Stop the agent: what the server has queued is dropped, and nothing more is made. */
  interrupt(responding) {
    if (responding) this.send({ type: "response.cancel" });
    this.send({ type: "output_audio_buffer.clear" });
  }

  close() {
    this.#stop();
    if (this.#callId === null) return;
    const headers = this.#token ? { Authorization: `Bearer ${this.#token}` } : {};
    // the closed peer says it too, but its packet may be lost
    fetch(url(`v1/realtime/calls/${this.#callId}/hangup`), { method: "POST", headers, keepalive: true }).catch(() => {});
  }

  #stop() {
    this.#closed = true;
    clearTimeout(this.#disconnected);
    this.#channel.onmessage = this.#channel.onclose = this.#peer.onconnectionstatechange = null;
    this.#peer.close();
    this.#audio.srcObject = null;
  }

  /** The offer carries all addresses, as the protocol knows no way to send them later. */
  #gathered() {
    if (this.#peer.iceGatheringState === "complete") return Promise.resolve();
    return new Promise((resolve) => {
      setTimeout(resolve, GATHER_MS);
      this.#peer.addEventListener("icegatheringstatechange", () => {
        if (this.#peer.iceGatheringState === "complete") resolve();
      });
    });
  }

  async #answer(signal) {
    const headers = { "Content-Type": "application/sdp" };
    if (this.#token) headers.Authorization = `Bearer ${this.#token}`;
    let response;
    try {
      response = await fetch(url("v1/realtime/calls?extensions=1"), {
        method: "POST",
        headers,
        body: this.#peer.localDescription.sdp,
        signal,
      });
    } catch (error) {
      signal.throwIfAborted();
      throw unreachableFailure(error);
    }
    if (!response.ok) throw await httpFailure(response);
    this.#callId = response.headers.get("Location")?.split("/").at(-1) ?? null;
    return response.text();
  }

  #opened(signal) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(noPathFailure()), CONNECT_MS);
      const settle = (settled, value) => {
        clearTimeout(timer);
        settled(value);
      };
      this.#channel.onopen = () => settle(resolve);
      this.#peer.onconnectionstatechange = () => {
        if (this.#peer.connectionState === "failed") settle(reject, noPathFailure());
      };
      signal.addEventListener("abort", () => settle(reject, signal.reason));
    });
  }

  #play(stream) {
    this.#audio.srcObject = stream;
    this.#on.agentSound(this.#context.createMediaStreamSource(stream));
  }

  #receive(event) {
    if (event.type === "output_audio_buffer.started") this.#on.speaking(true);
    if (event.type === "output_audio_buffer.stopped" || event.type === "output_audio_buffer.cleared") {
      this.#on.speaking(false);
    }
    this.#on.event(event);
  }

  /** A path can break for a moment, as when a phone changes networks. */
  #watch() {
    clearTimeout(this.#disconnected);
    const state = this.#peer.connectionState;
    if (state === "failed" || state === "closed") this.#lost();
    else if (state === "disconnected") this.#disconnected = setTimeout(() => this.#lost(), DISCONNECTED_MS);
  }

  #lost() {
    if (this.#closed) return;
    this.#stop();
    this.#on.lost(lostFailure());
  }
}
