// Does `@openai/agents-realtime` converse with our server by WebSocket? Its session runs tools and sends truncations.

import { OpenAIRealtimeWebSocket } from '@openai/agents-realtime';
import { SERVER_VAD, historyOf, makeAgent, makeSession } from './agents_session.mjs';
import * as contract from './contract.mjs';
import { ANSWERS, Microphone, arrayBuffer, check, main, sleep } from './contract.mjs';

const TOOL = { name: contract.TOOL_NAME, parameters: contract.TOOL_PARAMETERS, result: contract.TOOL_RESULT };

async function calling(stage, scenario, { turnDetection } = { turnDetection: SERVER_VAD }) {
  const caller = { stage, called: [], errors: [], audioBytes: 0, interrupted: 0, microphone: null };
  process.once('unhandledRejection', (error) => caller.errors.push(`unhandled: ${error}`));
  const transport = new OpenAIRealtimeWebSocket();
  const session = makeSession(makeAgent(TOOL, caller.called), transport, turnDetection, (raw) => stage.took(raw), caller.errors);
  caller.session = session;
  session.on('audio', (event) => (caller.audioBytes += event.data.byteLength));
  session.on('audio_interrupted', () => (caller.interrupted += 1));
  try {
    await session.connect({ apiKey: 'unused', url: `${stage.url}?model=gpt-realtime` });
    await stage.untilEvent('session.updated');
    await scenario(caller);
  } finally {
    caller.microphone?.stop();
    session.close();
  }
  check(!caller.errors.length, `the client reported ${caller.errors.slice(0, 3)}`);
}

function listen(caller) {
  caller.microphone = new Microphone((frame) => caller.session.sendAudio(arrayBuffer(frame)));
}

const spoken = (stage) =>
  calling(stage, async (caller) => {
    listen(caller);
    caller.microphone.say(stage.sound('hello'));
    await stage.reply(1, ANSWERS.hello);
    await stage.untilEvent('response.done');
    check(caller.audioBytes >= 0.8 * 48000, `the answer had ${caller.audioBytes} bytes of sound`);
    await stage.until('words in the history', () => historyOf(caller.session, 'user').includes('Hello there.'));
    const said = historyOf(caller.session, 'assistant');
    check(said.includes(ANSWERS.hello), `the history holds ${JSON.stringify(said)}`);
  }, {});

const tool = (stage) => withTool(stage, 'weather', []);
const tool_aloud = (stage) => withTool(stage, 'forecast', [ANSWERS.aloud]);

const withTool = (stage, sound, first) =>
  calling(stage, async (caller) => {
    listen(caller);
    caller.microphone.say(stage.sound(sound));
    await stage.reply(first.length + 1, ANSWERS.tool);
    const before = stage.replies().slice(0, -1).join();
    check(before === first.join(), `before the call it said ${before}`);
    await stage.untilEvent('response.done', 2);
    check(JSON.stringify(caller.called) === '[{"city":"Paris"}]', `the tool was given ${JSON.stringify(caller.called)}`);
  });

const barge_in = (stage) =>
  calling(stage, async (caller) => {
    listen(caller);
    caller.microphone.say(stage.sound('story'));
    await stage.until('sound', () => caller.audioBytes);
    await sleep(1500);
    caller.microphone.say(stage.sound('stop'));
    await stage.until('interruption', () => caller.interrupted);
    await stage.untilEvent('conversation.item.truncated');
    await stage.untilEvent('conversation.item.retrieved');
    await stage.untilEvent('response.done', 2);
    await stage.reply(2, ANSWERS.stop);
    const statuses = stage.of('response.done').map((event) => event.response.status).join();
    check(statuses === 'cancelled,completed', `the responses ended ${statuses}`);
    const story = historyOf(caller.session, 'assistant')[0];
    check(story.split(' ').length < 20, `its history holds more than was heard: ${story}`);
  });

const push_to_talk = (stage) =>
  calling(
    stage,
    async (caller) => {
      caller.session.sendAudio(arrayBuffer(stage.sound('pushed')), { commit: true });
      await stage.untilEvent('input_audio_buffer.committed');
      await sleep(300);
      check(!stage.of('response.created').length, 'a commit alone started a response');
      caller.session.transport.requestResponse();
      await stage.reply(1, ANSWERS.pushed);
      await stage.untilEvent('response.done');
    },
    { turnDetection: null },
  );

const text = (stage) =>
  calling(stage, async (caller) => {
    caller.session.sendMessage(contract.TEXT_QUESTION);
    await stage.reply(1, ANSWERS.text);
    await stage.untilEvent('response.done');
    const written = historyOf(caller.session, 'user');
    check(written.includes(contract.TEXT_QUESTION), `the history holds ${JSON.stringify(written)}`);
  });

await main({ spoken, tool, tool_aloud, barge_in, push_to_talk, text });
