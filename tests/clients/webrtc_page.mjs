// The page that `webrtc_chromium.py` opens: the stock client's WebRTC transport, and a caller whose voice is a file.

import { OpenAIRealtimeWebRTC } from '@openai/agents-realtime';
import { SERVER_VAD, historyOf, makeAgent, makeSession } from './agents_session.mjs';

const state = { events: [], errors: [], called: [] };

/** Connect: the microphone is a stream that we fill ourselves, so nothing filters the caller's tones. */
async function connect({ key, url, tool, detection }) {
  state.context = new AudioContext({ sampleRate: 48000 });
  state.microphone = state.context.createMediaStreamDestination();
  const room = new ConstantSourceNode(state.context, { offset: 0 }); // a microphone is never without samples
  room.connect(state.microphone);
  room.start();
  state.element = new Audio();
  const transport = new OpenAIRealtimeWebRTC({
    baseUrl: url,
    mediaStream: state.microphone.stream,
    audioElement: state.element,
  });
  const turnDetection = { server: SERVER_VAD, default: undefined, none: null }[detection];
  const took = (raw) => state.events.push(JSON.parse(JSON.stringify(raw)));
  state.session = makeSession(makeAgent(tool, state.called), transport, turnDetection, took, state.errors);
  await state.session.connect({ apiKey: key });
}

/** Speak a file; resolves at its end. */
async function say(name) {
  const bytes = await (await fetch(`/stock-client/${name}.wav`)).arrayBuffer();
  const source = state.context.createBufferSource();
  source.buffer = await state.context.decodeAudioData(bytes);
  source.connect(state.microphone);
  const ended = new Promise((resolve) => (source.onended = resolve));
  source.start();
  await ended;
}

/** Energy of the sound received so far, as the browser counts it. */
async function energy() {
  let total = 0;
  const stats = await state.session.transport.connectionState.peerConnection.getStats();
  stats.forEach((one) => {
    if (one.type === 'inbound-rtp' && one.kind === 'audio') total += one.totalAudioEnergy ?? 0;
  });
  return total;
}

window.caller = {
  state,
  connect,
  say,
  energy,
  events: (from) => state.events.slice(from),
  send: (event) => state.session.transport.sendEvent(event),
  write: (text) => state.session.sendMessage(text),
  history: (role) => historyOf(state.session, role),
  close: () => state.session.close(),
};
