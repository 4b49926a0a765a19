// Does the official `openai` package for Node converse with our server? It connects by TLS only.

import OpenAI from 'openai';
import { OpenAIRealtimeWS } from 'openai/realtime/ws';
import * as contract from './contract.mjs';
import { ANSWERS, Microphone, check, main, sleep } from './contract.mjs';
import { misfits } from './sdk_types.mjs';

const SERVER_VAD = { type: 'server_vad', silence_duration_ms: 300 };

async function calling(stage, scenario, session = {}) {
  const baseURL = stage.url.replace(/^ws/, 'http').replace(/\/realtime$/, '');
  const rt = new OpenAIRealtimeWS({ model: 'gpt-realtime' }, new OpenAI({ apiKey: 'unused', baseURL }));
  const caller = { stage, rt, audioBytes: 0, errors: [] };
  rt.on('event', (event) => stage.took(event));
  rt.on('error', (error) => caller.errors.push(error.message));
  rt.on('response.output_audio.delta', (event) => {
    caller.audioBytes += Buffer.from(event.delta, 'base64').length;
  });
  caller.microphone = null;
  try {
    await stage.untilEvent('session.created');
    await update(caller, {
      audio: { input: { turn_detection: SERVER_VAD, transcription: { model: 'gpt-4o-mini-transcribe' } } },
      ...session,
    });
    await scenario(caller);
  } finally {
    caller.microphone?.stop();
    rt.close();
  }
  check(!caller.errors.length, `the client reported ${caller.errors}`);
  const found = misfits(stage.events);
  check(!found.length, `its types do not fit: ${found.slice(0, 3).join(' | ')}`);
}

async function update({ rt, stage }, session) {
  const number = stage.of('session.updated').length + 1;
  rt.send({ type: 'session.update', session: { type: 'realtime', ...session } });
  await stage.untilEvent('session.updated', number);
}

function listen(caller) {
  caller.microphone = new Microphone((frame) => append(caller, frame));
}

function append({ rt }, pcm) {
  rt.send({ type: 'input_audio_buffer.append', audio: pcm.toString('base64') });
}

const spoken = (stage) =>
  calling(stage, async (caller) => {
    listen(caller);
    caller.microphone.say(stage.sound('hello'));
    await stage.reply(1, ANSWERS.hello);
    await stage.untilEvent('response.done');
    check(caller.audioBytes >= 0.8 * 48000, `the answer had ${caller.audioBytes} bytes of sound`);
    const heard = await stage.untilEvent('conversation.item.input_audio_transcription.completed');
    check(heard.transcript === 'Hello there.', `the words were taken for ${heard.transcript}`);
  });

const tool = (stage) => withTool(stage, 'weather', []);
const tool_aloud = (stage) => withTool(stage, 'forecast', [ANSWERS.aloud]);

const withTool = (stage, sound, first) =>
  calling(
    stage,
    async (caller) => {
      listen(caller);
      caller.microphone.say(stage.sound(sound));
      const { response } = await stage.untilEvent('response.done');
      const call = response.output.at(-1);
      check(call.name === contract.TOOL_NAME, `it called ${call.name}`);
      check(JSON.parse(call.arguments).city === 'Paris', `with ${call.arguments}`);
      const output = JSON.stringify({ weather: contract.TOOL_RESULT });
      caller.rt.send({
        type: 'conversation.item.create',
        item: { type: 'function_call_output', call_id: call.call_id, output },
      });
      caller.rt.send({ type: 'response.create' });
      await stage.reply(first.length + 1, ANSWERS.tool);
      const before = stage.replies().slice(0, -1).join();
      check(before === first.join(), `before the call it said ${before}`);
      await stage.untilEvent('response.done', 2);
    },
    {
      tools: [
        {
          type: 'function',
          name: contract.TOOL_NAME,
          description: 'The weather in a city.',
          parameters: contract.TOOL_PARAMETERS,
        },
      ],
    },
  );

const barge_in = (stage) =>
  calling(stage, async (caller) => {
    listen(caller);
    caller.microphone.say(stage.sound('story'));
    const first = await stage.untilEvent('response.output_audio.delta');
    await sleep(1500);
    caller.microphone.say(stage.sound('stop'));
    await stage.untilEvent('input_audio_buffer.speech_started', 2);
    const { item_id, content_index } = first;
    caller.rt.send({ type: 'conversation.item.truncate', item_id, content_index, audio_end_ms: 1500 });
    await stage.untilEvent('conversation.item.truncated');
    await stage.untilEvent('response.done', 2);
    await stage.reply(2, ANSWERS.stop);
    const statuses = stage.of('response.done').map((event) => event.response.status).join();
    check(statuses === 'cancelled,completed', `the responses ended ${statuses}`);
  });

const push_to_talk = (stage) =>
  calling(
    stage,
    async (caller) => {
      append(caller, stage.sound('pushed'));
      caller.rt.send({ type: 'input_audio_buffer.commit' });
      await stage.untilEvent('input_audio_buffer.committed');
      await sleep(300);
      check(!stage.of('response.created').length, 'a commit alone started a response');
      caller.rt.send({ type: 'response.create' });
      await stage.reply(1, ANSWERS.pushed);
      await stage.untilEvent('response.done');
    },
    { audio: { input: { turn_detection: null } } },
  );

const text = (stage) =>
  calling(stage, async (caller) => {
    const content = [{ type: 'input_text', text: contract.TEXT_QUESTION }];
    caller.rt.send({ type: 'conversation.item.create', item: { type: 'message', role: 'user', content } });
    caller.rt.send({ type: 'response.create' });
    await stage.reply(1, ANSWERS.text);
    await stage.untilEvent('response.done');
  });

await main({ spoken, tool, tool_aloud, barge_in, push_to_talk, text });
