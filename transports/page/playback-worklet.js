/**
 * An AudioWorklet that plays what it is sent, knows how much of it was played, and falls silent when told to.
 *
 * Messages in:  { push: Float32Array, item }  more sound of an item
 *               { end: item }                 the item has no more sound
 *               { clear: number }             fade out and drop everything
 * Messages out: { playing: boolean }          sound began, or ran out
 *               { cleared: number, items: [{ item, played, made }] }   in samples, the item in the ear first
 *               { dropped: number }           samples that the full buffer had no room for
 */

const CAPACITY_S = 60;
/** Sound that must wait before playing (re)starts, so that a late packet makes no hole. */
const HEAD_START_S = 0.06;
const FADE_S = 0.004;

class Playback extends AudioWorkletProcessor {
  #ring = new Float32Array(CAPACITY_S * sampleRate);
  #read = 0; // absolute positions; the ring's index is their remainder
  #written = 0;
  #items = []; // { item, start, end, ended }, oldest first
  #playing = false;
  #fade = 0; // samples of a fade still to go
  #clearing = null;

  constructor() {
    super();
    this.port.onmessage = ({ data }) => {
      if (data.push) this.#push(data.push, data.item);
      else if (data.end) this.#end(data.end);
      else if (data.clear !== undefined) this.#clear(data.clear);
    };
  }

  #push(samples, item) {
    if (this.#clearing !== null) this.#drop();
    let current = this.#items.at(-1);
    if (current?.item !== item) {
      current = { item, start: this.#written, end: this.#written, ended: false };
      this.#items.push(current);
    }
    const room = this.#ring.length - (this.#written - this.#read);
    const taken = Math.min(room, samples.length);
    for (let i = 0; i < taken; i += 1) this.#ring[(this.#written + i) % this.#ring.length] = samples[i];
    this.#written += taken;
    current.end = this.#written;
    if (taken < samples.length) this.port.postMessage({ dropped: samples.length - taken });
  }

  #end(item) {
    const found = this.#items.find((known) => known.item === item);
    if (found) found.ended = true;
  }

  #clear(number) {
    this.#clearing = number;
    this.#fade = FADE_S * sampleRate;
    if (!this.#playing || this.#read === this.#written) this.#drop();
  }

  #drop() {
    const items = this.#items.map(({ item, start, end }) => ({
      item,
      played: Math.max(0, Math.min(this.#read, end) - start),
      made: end - start,
    }));
    this.#items = [];
    this.#read = this.#written;
    this.#fade = 0;
    this.port.postMessage({ cleared: this.#clearing, items });
    this.#clearing = null;
    this.#setPlaying(false);
  }

  #setPlaying(playing) {
    if (playing === this.#playing) return;
    this.#playing = playing;
    this.port.postMessage({ playing });
  }

  process(_inputs, outputs) {
    const out = outputs[0][0];
    const waiting = this.#written - this.#read;
    const complete = this.#items.length > 0 && this.#items.every((item) => item.ended);
    if (waiting === 0) this.#setPlaying(false);
    else if (waiting >= HEAD_START_S * sampleRate || complete) this.#setPlaying(true);
    if (this.#playing) this.#play(out, Math.min(waiting, out.length));
    while (this.#items.length > 0 && this.#items[0].ended && this.#items[0].end <= this.#read) this.#items.shift();
    return true;
  }

  #play(out, count) {
    for (let i = 0; i < count; i += 1) {
      let sample = this.#ring[(this.#read + i) % this.#ring.length];
      if (this.#clearing !== null) {
        sample *= Math.max(0, this.#fade) / (FADE_S * sampleRate);
        this.#fade -= 1;
      }
      out[i] = sample;
    }
    this.#read += count;
    if (this.#clearing !== null && (this.#fade <= 0 || this.#read === this.#written)) this.#drop();
  }
}

registerProcessor("playback", Playback);
