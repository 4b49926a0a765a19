/**
 * The arithmetic of the waterfall: where in a turn each stage lies, in ms from the user's last sound.
 *
 * The server sends durations of stages and a few points in time (voice/events.py, TurnTimes). When the model was
 * called follows from them: the first audio was ready after model → first clause → synthesis.
 */

/** The stages in the order in which they happen; `name` is what a person reads. */
export const STAGES = [
  { key: "pause", name: "Pause", about: "silence until the pause was noticed" },
  { key: "recognition", name: "Recognition", about: "speech to text" },
  { key: "token", name: "First token", about: "the model begins to answer" },
  { key: "clause", name: "First clause", about: "the model writes enough to speak" },
  { key: "speech", name: "Speech", about: "the synthesiser’s first sound" },
  { key: "endpoint", name: "Endpoint", about: "waiting until it is certain that you are done" },
  { key: "out", name: "First audio", about: "from ready and certain to audible" },
];

/**
 * The server's figures under short names. What is missing is NaN, and so is all that would follow from it.
 * @param {object} times
 */
function figures(times) {
  const ms = (name) => times[name] ?? NaN;
  const recognised = ms("asr_ms");
  const token = ms("llm_first_token_ms");
  const clause = ms("llm_first_clause_ms");
  const speech = ms("tts_first_audio_ms");
  const ready = ms("ready_ms");
  const atPause = ms("pause_ms") + recognised;
  const fromReady = Math.max(0, ready - speech - clause);
  const called = Number.isNaN(fromReady) ? atPause : fromReady;
  return { pause: ms("pause_ms"), recognised, token, clause, speech, ready, called,
    endpoint: ms("endpoint_ms"), total: ms("voice_to_voice_ms") };
}

/**
 * Each stage that the server measured, as a bar of its own; bars may overlap, as stages run side by side.
 * A typed turn has no end of speech: its bars begin at the model's call.
 * @param {object} times
 * @returns {{ key: string, from: number, to: number }[]}
 */
export function lanes(times) {
  const { pause, recognised, token, clause, speech, ready, called, endpoint, total } = figures(times);
  const model = Number.isNaN(called) ? 0 : called;
  const bars = [
    ["pause", 0, pause],
    ["recognition", Math.max(0, called - recognised), called],
    ["token", model, model + token],
    ["clause", model + token, model + clause],
    ["speech", model + clause, model + clause + speech],
    ["endpoint", Number.isNaN(pause) ? 0 : pause, endpoint],
    ["out", Math.max(ready, Number.isNaN(endpoint) ? 0 : endpoint), total],
  ];
  return bars.filter(([, from, to]) => to >= from).map(([key, from, to]) => ({ key, from, to })); // NaN fails
}

/**
 * What the user waited for at each moment, without gaps or overlaps: the row's bar.
 * The answer is prepared while the turn is not certain yet; only the time beyond both counts.
 * @param {object} times
 * @returns {{ key: string, from: number, to: number }[]}
 */
export function strip(times) {
  const { pause, recognised, token, clause, ready, called, endpoint, total } = figures(times);
  const marks = [
    ["pause", pause],
    ["endpoint", called - recognised], // a turn that was not begun early is certain first
    ["recognition", called],
    ["token", called + token],
    ["clause", called + clause],
    ["speech", ready],
    ["endpoint", endpoint],
    ["out", total],
  ];
  const parts = [];
  let from = 0;
  for (const [key, mark] of marks) {
    const to = Math.min(mark, total);
    if (!(to - from >= 1)) continue; // NaN, or too short to see
    parts.push({ key, from, to });
    from = to;
  }
  return parts;
}

/** Voice to voice, or null when nothing was spoken or nothing was heard. */
export function totalMs(times) {
  return times?.voice_to_voice_ms ?? null;
}

/** @param {number[]} values @returns {number|null} */
export function median(values) {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** A round figure at or above `ms`, for the end of the scale. */
export function niceScale(ms) {
  const step = [200, 500, 1000, 2000, 5000].find((candidate) => ms <= candidate * 5) ?? 10000;
  return Math.max(1000, Math.ceil(ms / step) * step);
}
