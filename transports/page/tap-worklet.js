/**
 * An AudioWorklet that hands out the sound which flows into it, in pieces of about 10 ms, and is silent itself.
 *
 * Message out: { samples: Float32Array, rms, at }, where `at` is the context's time of the piece's first sample.
 */

const BLOCKS = 4; // of 128 samples

class Tap extends AudioWorkletProcessor {
  #piece = new Float32Array(128 * BLOCKS);
  #filled = 0;
  #at = 0;

  process(inputs) {
    const channel = inputs[0][0];
    if (this.#filled === 0) this.#at = currentTime;
    if (channel) this.#piece.set(channel, this.#filled);
    else this.#piece.fill(0, this.#filled, this.#filled + 128);
    this.#filled += 128;
    if (this.#filled === this.#piece.length) this.#hand();
    return true;
  }

  #hand() {
    const samples = this.#piece;
    let sum = 0;
    for (const sample of samples) sum += sample * sample;
    this.port.postMessage({ samples, rms: Math.sqrt(sum / samples.length), at: this.#at }, [samples.buffer]);
    this.#piece = new Float32Array(128 * BLOCKS);
    this.#filled = 0;
  }
}

registerProcessor("tap", Tap);
