/** The microphone, and taps on any sound of the page. */

import { Failure, insecureFailure, microphoneFailure } from "./failure.js";
import { Resampler } from "./resampler.js";

export const RATE_HZ = 24000;
/** Length of one message's sound: short enough for a quick barge-in, long enough to keep the messages few. */
export const CHUNK_MS = 40;
const CHUNK_SAMPLES = (RATE_HZ * CHUNK_MS) / 1000;

/** Ask for the microphone. Must run in the click that starts the call. */
export async function openMicrophone() {
  if (!navigator.mediaDevices?.getUserMedia) throw insecureFailure();
  try {
    return await navigator.mediaDevices.getUserMedia({
      audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 },
    });
  } catch (error) {
    throw microphoneFailure(error);
  }
}

/** A running AudioContext that knows the page's worklets. */
export async function openContext() {
  const context = new AudioContext({ latencyHint: "interactive" });
  try {
    await Promise.all(
      ["tap-worklet.js", "playback-worklet.js"].map((file) =>
        context.audioWorklet.addModule(new URL(file, import.meta.url)),
      ),
    );
  } catch (error) {
    void context.close();
    throw new Failure(`This browser can’t run the page’s sound code (${error.message}).`);
  }
  await context.resume();
  return context;
}

/** Call `onPiece({ samples, rms, at })` with all sound that leaves `source`. Returns a function that ends it. */
export function tap(context, source, onPiece) {
  const node = new AudioWorkletNode(context, "tap", { channelCount: 1, channelCountMode: "explicit" });
  node.port.onmessage = ({ data }) => onPiece(data);
  source.connect(node);
  node.connect(context.destination); // it is silent; unconnected nodes do not run
  return () => {
    node.port.onmessage = null;
    node.disconnect(); // the source goes with its context
  };
}

/** Makes 40 ms chunks of 24 kHz PCM of pieces at the context's rate. */
export class Chunker {
  #resampler;
  #chunk = new Int16Array(CHUNK_SAMPLES);
  #filled = 0;
  #onChunk;

  /** @param {number} rateHz @param {(pcm: Int16Array) => void} onChunk */
  constructor(rateHz, onChunk) {
    this.#resampler = new Resampler(rateHz, RATE_HZ);
    this.#onChunk = onChunk;
  }

  /** @param {Float32Array} samples */
  push(samples) {
    for (const sample of this.#resampler.push(samples)) {
      this.#chunk[this.#filled] = Math.max(-32768, Math.min(32767, Math.round(sample * 32768)));
      this.#filled += 1;
      if (this.#filled === CHUNK_SAMPLES) {
        this.#filled = 0;
        this.#onChunk(this.#chunk);
      }
    }
  }
}
