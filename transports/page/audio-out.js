/** Plays the agent's sound of a WebSocket call, and knows how much of it was heard. */

import { RATE_HZ } from "./audio-in.js";
import { decodePcm } from "./base64.js";
import { Resampler } from "./resampler.js";

export class Player {
  #context;
  #resampler;
  #clears = new Map();
  #count = 0;

  /** @param {AudioContext} context @param {(playing: boolean) => void} onPlaying */
  constructor(context, onPlaying) {
    this.#context = context;
    this.#resampler = new Resampler(RATE_HZ, context.sampleRate);
    this.node = new AudioWorkletNode(context, "playback", { numberOfInputs: 0, outputChannelCount: [1] });
    this.node.connect(context.destination);
    this.node.port.onmessage = ({ data }) => {
      if (data.playing !== undefined) onPlaying(data.playing);
      else if (data.cleared !== undefined) this.#cleared(data);
      else if (data.dropped) console.warn(`playback buffer full: ${data.dropped} samples dropped`);
    };
  }

  /** More sound of an item: base64 of 24 kHz PCM. */
  push(item, base64) {
    const samples = this.#resampler.push(decodePcm(base64));
    if (samples.length > 0) this.node.port.postMessage({ push: samples, item }, [samples.buffer]);
  }

  /** The item has no more sound. */
  end(item) {
    this.node.port.postMessage({ end: item });
  }

  /**
   * Fall silent within a few milliseconds and drop what was not played.
   * @returns {Promise<{ item: string, heardMs: number }[]>} the items that were cut, the one in the ear first
   */
  clear() {
    this.#resampler.reset();
    this.#count += 1;
    const number = this.#count;
    return new Promise((resolve) => {
      this.#clears.set(number, resolve);
      this.node.port.postMessage({ clear: number });
    });
  }

  #cleared({ cleared, items }) {
    // what the worklet gave out is heard after the way to the loudspeaker
    const latency = (this.#context.outputLatency || 0) * this.#context.sampleRate;
    const cut = items.map(({ item, played }) => ({
      item,
      heardMs: Math.round((1000 * Math.max(0, played - latency)) / this.#context.sampleRate),
    }));
    this.#clears.get(cleared)?.(cut);
    this.#clears.delete(cleared);
  }

  close() {
    this.node.port.onmessage = null;
    this.node.disconnect();
  }
}
