/**
 * A call over WebSocket: sound and events share one socket, and the page plays the sound itself.
 *
 * It offers what webrtc.js offers: send(event), interrupt(), close(), and the callbacks of `on`:
 *   event(serverEvent), speaking(boolean), agentSound(AudioNode), away(boolean), lost(Failure).
 * When the network breaks, it comes back to the same conversation by itself, if it can within the server's grace time.
 */

import { CHUNK_MS, Chunker, tap } from "./audio-in.js";
import { Player } from "./audio-out.js";
import { encodePcm } from "./base64.js";
import { Failure, closeFailure, httpFailure, lostFailure, unreachableFailure } from "./failure.js";

/** Longest wait for the connection: a server that has just started loads its models first. */
const OPEN_MS = 40000;
/** Sound that may wait in the socket (base64 of 24 kHz PCM). Beyond it new sound is dropped: it would be heard too late. */
const MAX_BUFFERED_BYTES = 0.5 * 24000 * 2 * (4 / 3);
/** Pause between two tries to come back, and how much of the microphone is kept for it. */
const RETRY_MS = 400;
const KEPT_CHUNKS = 15000 / CHUNK_MS;

const url = (path) => new URL(path, document.baseURI);

/**
 * @param {object} options context: AudioContext, microphone: MediaStream or null, token, on, signal: AbortSignal
 * @returns {Promise<WebSocketCall>}
 */
export async function openWebSocket(options) {
  const { token, signal } = options;
  const socket = await openSocket(token, "1", signal).catch(async (closed) => {
    signal.throwIfAborted();
    if (closed instanceof Failure) throw closed;
    throw closed.code === 1006 ? await whyRefused(token) : closeFailure(closed.code, closed.reason);
  });
  return new WebSocketCall(socket, options);
}

/** `resume`: "1" for a new conversation that can be resumed, or the key of one. Rejects with a Failure or a CloseEvent. */
function openSocket(token, resume, signal) {
  const address = url(`v1/realtime?extensions=1&resume=${encodeURIComponent(resume)}`);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  const protocols = token ? ["realtime", `openai-insecure-api-key.${token}`] : ["realtime"];
  return new Promise((resolve, reject) => {
    let socket;
    try {
      socket = new WebSocket(address, protocols);
    } catch (error) {
      // a subprotocol has a narrow alphabet, and so has a token that travels as one
      reject(new Failure(`This token can’t be sent: ${error.message}`, ["token"]));
      return;
    }
    const giveUp = () => socket.close();
    const timer = setTimeout(giveUp, OPEN_MS);
    const settle = (settled, value) => {
      clearTimeout(timer);
      signal.removeEventListener("abort", giveUp);
      settled(value);
    };
    socket.onopen = () => settle(resolve, socket);
    socket.onclose = (event) => settle(reject, event);
    signal.addEventListener("abort", giveUp);
  });
}

/** A browser does not tell why a WebSocket was refused, so ask over HTTP. */
async function whyRefused(token) {
  try {
    const ready = await fetch(url("readyz"));
    if (ready.status === 503) return await httpFailure(ready);
    const headers = { "Content-Type": "application/json" };
    if (token) headers.Authorization = `Bearer ${token}`;
    const secret = await fetch(url("v1/realtime/client_secrets"), { method: "POST", headers, body: "{}" });
    if (!secret.ok) return await httpFailure(secret);
  } catch {
    return unreachableFailure();
  }
  return new Failure("The server refused the connection; it may be full. Try again in a moment.");
}

class WebSocketCall {
  #socket;
  #on;
  #token;
  #signal;
  #player;
  #untap = () => {};
  #closed = false;
  #cut = new Set(); // items whose further sound is not wanted
  #current = null; // the item whose sound came last
  #resume = null; // { token, grace_s }: how to come back when the network breaks
  #recent = []; // the newest chunks of the microphone, to be sent again after a break
  #chunks = 0; // how many were made since the call began

  constructor(socket, { context, microphone, token, on, signal }) {
    this.#on = on;
    this.#token = token;
    this.#signal = signal;
    this.#player = new Player(context, on.speaking);
    on.agentSound(this.#player.node);
    this.#adopt(socket);
    if (microphone) {
      const chunker = new Chunker(context.sampleRate, (pcm) => this.#sendSound(encodePcm(pcm)));
      this.#untap = tap(context, context.createMediaStreamSource(microphone), ({ samples }) => chunker.push(samples));
    }
  }

  send(event) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(event));
  }

  /** Stop the agent: no more sound in the ear at once, and none made. */
  interrupt(responding) {
    if (responding) this.send({ type: "response.cancel" });
    this.#silence();
  }

  close() {
    this.#stop();
    this.#socket.close(1000);
  }

  #adopt(socket) {
    this.#socket = socket;
    socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    socket.onclose = ({ code, reason }) => {
      if (code === 1006 && this.#resume) void this.#comeBack();
      else this.#end(closeFailure(code, reason));
    };
  }

  /** The network broke. The server keeps the conversation for a while. */
  async #comeBack() {
    this.#on.away(true);
    const until = performance.now() + 1000 * this.#resume.grace_s;
    while (!this.#closed && performance.now() < until) {
      const socket = await openSocket(this.#token, this.#resume.token, this.#signal).catch(() => null);
      if (socket) {
        this.#on.away(false);
        this.#adopt(socket);
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
    if (!this.#closed) this.#end(lostFailure());
  }

  #end(failure) {
    this.#stop();
    this.#on.lost(failure);
  }

  #stop() {
    this.#closed = true;
    this.#socket.onmessage = this.#socket.onclose = null;
    this.#untap();
    this.#player.close();
  }

  #sendSound(audio) {
    if (this.#socket.bufferedAmount > MAX_BUFFERED_BYTES) return;
    this.#chunks += 1;
    this.#recent.push(audio);
    if (this.#recent.length > KEPT_CHUNKS) this.#recent.shift();
    this.send({ type: "input_audio_buffer.append", audio });
  }

  /** Back again: what the server has not heard goes out once more, each sound once. */
  #sendMissed(receivedMs) {
    const missing = this.#chunks - Math.ceil(receivedMs / CHUNK_MS);
    if (missing <= 0) return;
    for (const audio of this.#recent.slice(-missing)) this.send({ type: "input_audio_buffer.append", audio });
  }

  #receive(event) {
    if (event.type === "response.output_audio.delta") {
      if (this.#cut.has(event.item_id)) return;
      this.#current = event.item_id;
      this.#player.push(event.item_id, event.delta);
    }
    if (event.type === "response.output_audio.done") this.#player.end(event.item_id);
    if (event.type === "input_audio_buffer.speech_started") this.#silence();
    if (event.type === "voice.resumable") this.#resume = event;
    if (event.type === "voice.resumed") this.#sendMissed(event.audio_received_ms);
    this.#on.event(event);
  }

  /** Drop the sound in hand, and tell the server how much of it was heard. */
  async #silence() {
    if (this.#current !== null) this.#cut.add(this.#current);
    for (const { item, heardMs } of await this.#player.clear()) {
      this.#cut.add(item);
      this.send({ type: "conversation.item.truncate", item_id: item, content_index: 0, audio_end_ms: heardMs });
    }
  }
}
