/**
 * From one sample rate to another, piece by piece, with a windowed sinc.
 *
 * The browser's sound runs at the rate of the device, the protocol's at 24 kHz.
 */

/** Zero crossings of the sinc on each side, and the share of the band that passes unharmed. */
const CROSSINGS = 14;
const BAND = 0.92;

const divisor = (a, b) => (b === 0 ? a : divisor(b, a % b));

export class Resampler {
  #up;
  #down;
  #kernels;
  #taps;
  #kept;
  /** Where the next output lies, in steps of 1/#up of an input sample from the first kept one. */
  #at = 0;

  constructor(fromHz, toHz) {
    const common = divisor(fromHz, toHz);
    this.#up = toHz / common;
    this.#down = fromHz / common;
    const cutoff = BAND * Math.min(1, toHz / fromHz);
    const half = Math.ceil(CROSSINGS / cutoff);
    this.#taps = 2 * half;
    this.#kernels = Array.from({ length: this.#up }, (_, phase) => kernel(half, cutoff, phase / this.#up));
    this.reset();
  }

  /** Forget what was pushed. */
  reset() {
    this.#kept = new Float32Array(this.#taps / 2); // the first output lies at the first input
    this.#at = 0;
  }

  /** @param {Float32Array} input @returns {Float32Array} what can be computed by now */
  push(input) {
    if (this.#up === this.#down) return input;
    const all = new Float32Array(this.#kept.length + input.length);
    all.set(this.#kept);
    all.set(input, this.#kept.length);
    const last = all.length - this.#taps;
    const count = last < 0 ? 0 : Math.max(0, Math.floor(((last + 1) * this.#up - 1 - this.#at) / this.#down) + 1);
    const output = new Float32Array(count);
    for (let n = 0; n < count; n += 1) {
      const first = Math.floor(this.#at / this.#up);
      const weights = this.#kernels[this.#at % this.#up];
      let sum = 0;
      for (let k = 0; k < this.#taps; k += 1) sum += weights[k] * all[first + k];
      output[n] = sum;
      this.#at += this.#down;
    }
    const done = Math.min(Math.floor(this.#at / this.#up), all.length);
    this.#kept = all.slice(done);
    this.#at -= done * this.#up;
    return output;
  }
}

/** Weights for an output that lies `fraction` behind the input sample in the middle; they add up to 1. */
function kernel(half, cutoff, fraction) {
  const weights = new Float32Array(2 * half);
  let sum = 0;
  for (let k = 0; k < weights.length; k += 1) {
    const x = k - half - fraction;
    const sinc = x === 0 ? 1 : Math.sin(Math.PI * cutoff * x) / (Math.PI * cutoff * x);
    const window = Math.abs(x) >= half ? 0 : 0.5 + 0.5 * Math.cos((Math.PI * x) / half);
    weights[k] = sinc * window;
    sum += weights[k];
  }
  return weights.map((weight) => weight / sum);
}
