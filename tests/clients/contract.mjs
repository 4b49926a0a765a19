// What does every client script in JavaScript do alike? The contract is told in contract.py; this is its other half.

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

export const RATE_HZ = 24000;
export const FRAME_MS = 20;
export const FRAME_BYTES = (RATE_HZ * 2 * FRAME_MS) / 1000;
export const TOOL_NAME = 'get_weather';
export const TOOL_RESULT = 'sunny';
export const TOOL_PARAMETERS = {
  type: 'object',
  properties: { city: { type: 'string', description: 'Name of the city' } },
  required: ['city'],
  additionalProperties: false,
};
export const TEXT_QUESTION = 'What is two and two?';
export const ANSWERS = {
  hello: 'Hello, nice to hear you.',
  stop: 'All right, I stop.',
  pushed: 'You pushed the button.',
  text: 'Two and two is four.',
  tool: 'The weather is sunny.',
  aloud: 'Let me see.', // in the same response as the call
};

const WAIT_MS = 12000;
const SCENARIO_MS = 40000;

/** Thrown when a scenario did not go as it should. */
export class Failed extends Error {}

export function check(ok, message) {
  if (!ok) throw new Failed(message);
}

export function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** What one scenario is given, and where it puts what it received. */
export class Stage {
  constructor(url, sounds) {
    this.url = url;
    this.sounds = sounds;
    this.events = [];
  }

  /** A sentence of the caller: 24 kHz, 16 bit, mono, without the 44 bytes of the file's header. */
  sound(name) {
    return readFileSync(join(this.sounds, `${name}.wav`)).subarray(44);
  }

  took(event) {
    this.events.push(JSON.parse(JSON.stringify(event)));
  }

  of(type) {
    return this.events.filter((event) => event.type === type);
  }

  async until(what, ready, withinMs = WAIT_MS) {
    const end = Date.now() + withinMs;
    for (;;) {
      const found = ready();
      if (found) return found;
      if (Date.now() > end) {
        const recent = this.events.slice(-6).map((event) => event.type).join(', ') || 'nothing';
        throw new Failed(`no ${what} within ${withinMs} ms; the last events were ${recent}`);
      }
      await sleep(20);
    }
  }

  untilEvent(type, count = 1) {
    return this.until(`${type} number ${count}`, () => this.of(type)[count - 1]);
  }

  /** What the agent said or wrote so far, a text for each answer that is complete. */
  replies() {
    const whole = ['response.output_audio_transcript.done', 'response.output_text.done'];
    return this.events
      .filter((event) => whole.includes(event.type))
      .map((event) => (event.transcript ?? event.text).trim());
  }

  async reply(number, text) {
    await this.until(`answer ${number}`, () => this.replies().length >= number);
    const said = this.replies()[number - 1];
    check(said === text, `the agent said ${JSON.stringify(said)}, expected ${JSON.stringify(text)}`);
  }
}

/** Sends audio in real time, silence where nobody speaks: what a client's microphone does. */
export class Microphone {
  constructor(send) {
    this.waiting = Buffer.alloc(0);
    let due = Date.now();
    this.timer = setInterval(() => {
      while (due <= Date.now()) {
        const frame = Buffer.alloc(FRAME_BYTES);
        this.waiting.copy(frame, 0, 0, FRAME_BYTES);
        this.waiting = this.waiting.subarray(FRAME_BYTES);
        send(frame);
        due += FRAME_MS;
      }
    }, FRAME_MS / 2);
  }

  say(pcm) {
    this.waiting = Buffer.concat([this.waiting, pcm]);
  }

  stop() {
    clearInterval(this.timer);
  }
}

/** Bytes of its own, for clients that take an ArrayBuffer. */
export function arrayBuffer(buffer) {
  return new Uint8Array(buffer).buffer;
}

/** Run the scenarios by the contract. */
export async function main(scenarios) {
  const options = { only: [] };
  let key = '';
  for (const word of process.argv.slice(2)) {
    if (word.startsWith('--')) key = word.slice(2);
    else if (key === 'only') options.only.push(word);
    else options[key] = word;
  }
  const names = options.only.length ? options.only : Object.keys(scenarios);
  let failed = 0;
  for (const name of names) {
    const stage = new Stage(options.url, options.sounds);
    let error = null;
    let timer;
    try {
      const late = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Failed(`not over after ${SCENARIO_MS} ms`)), SCENARIO_MS);
      });
      await Promise.race([scenarios[name](stage), late]);
    } catch (caught) {
      error = caught instanceof Failed ? caught.message : `${caught?.name}: ${caught?.message ?? caught}`;
      if (!(caught instanceof Failed)) console.error(caught);
      failed += 1;
    }
    clearTimeout(timer);
    const lines = stage.events.map((event) => JSON.stringify(event) + '\n').join('');
    writeFileSync(join(options.out, `${name}.jsonl`), lines);
    process.stdout.write(JSON.stringify({ scenario: name, error }) + '\n');
  }
  process.exit(failed ? 1 : 0);
}
