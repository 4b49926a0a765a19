/** The two level meters: quick to rise, slow to fall, on a scale of decibels. */

/** The scale's two ends, in dB below full scale. */
const QUIETEST_DB = -54;
const LOUDEST_DB = -6;
const FALL_PER_FRAME = 0.93;
/** How often the value that assistive technology reads is renewed. */
const VALUE_MS = 250;

export class Meters {
  #meters = {
    microphone: { element: document.getElementById("microphone-level"), peak: 0, shown: 0 },
    agent: { element: document.getElementById("agent-level"), peak: 0, shown: 0 },
  };
  #running = false;
  #valuesAt = 0;

  /** A piece of sound was this loud. @param {"microphone" | "agent"} name @param {number} rms 0 … 1 */
  level(name, rms) {
    const db = 20 * Math.log10(Math.max(rms, 1e-6));
    const share = Math.max(0, Math.min(1, (db - QUIETEST_DB) / (LOUDEST_DB - QUIETEST_DB)));
    const meter = this.#meters[name];
    meter.peak = Math.max(meter.peak, share);
    if (!this.#running) {
      this.#running = true;
      requestAnimationFrame(this.#frame);
    }
  }

  #frame = (now) => {
    const renew = now - this.#valuesAt >= VALUE_MS;
    if (renew) this.#valuesAt = now;
    let moving = false;
    for (const meter of Object.values(this.#meters)) {
      meter.shown = Math.max(meter.peak, meter.shown * FALL_PER_FRAME);
      if (meter.shown < 0.005) meter.shown = 0;
      meter.peak = 0;
      meter.element.style.setProperty("--level", meter.shown.toFixed(3));
      if (renew) meter.element.setAttribute("aria-valuenow", String(Math.round(100 * meter.shown)));
      moving ||= meter.shown > 0 || meter.element.getAttribute("aria-valuenow") !== "0";
    }
    this.#running = moving;
    if (moving) requestAnimationFrame(this.#frame);
  };
}
