// A session of `@openai/agents-realtime` as our scenarios use it, in Node and in the browser alike: what is watched.

import { RealtimeAgent, RealtimeSession, tool } from '@openai/agents-realtime';
// the client validates each event by this schema, and drops in silence what does not fit
import { parseRealtimeEvent } from './node_modules/@openai/agents-realtime/dist/openaiRealtimeEvents.mjs';

export const SERVER_VAD = {
  type: 'server_vad',
  silenceDurationMs: 300,
  createResponse: true,
  interruptResponse: true,
};

/** An agent with the one tool; `called` collects the arguments it was given. */
export function makeAgent({ name, parameters, result }, called) {
  const weather = tool({
    name,
    description: 'The weather in a city.',
    parameters,
    strict: true,
    execute: async (given) => {
      called.push(given);
      return result;
    },
  });
  return new RealtimeAgent({ name: 'caller', instructions: 'Answer briefly.', tools: [weather] });
}

/** A session that tells `took` every raw event, and keeps complaints in `errors`. */
export function makeSession(agent, transport, turnDetection, took, errors) {
  const session = new RealtimeSession(agent, {
    transport,
    model: 'gpt-realtime',
    tracingDisabled: true,
    // undefined: as the client has it when nothing is said, which is semantic detection
    ...(turnDetection === undefined ? {} : { config: { audio: { input: { turnDetection } } } }),
  });
  session.transport.on('*', (raw) => {
    if (!raw.type?.includes('.') && raw.type !== 'error') return; // the client's own events come here too
    took(raw);
    const { isGeneric } = parseRealtimeEvent({ data: JSON.stringify(raw) });
    if (isGeneric) errors.push(`its schema refuses ${JSON.stringify(raw).slice(0, 300)}`);
  });
  session.on('error', ({ error }) => errors.push(describe(error)));
  return session;
}

function describe(error) {
  return error instanceof Error ? `${error.name}: ${error.message}` : JSON.stringify(error);
}

/** The texts of one side in the session's own history. */
export function historyOf(session, role) {
  return session.history
    .filter((item) => item.type === 'message' && item.role === role)
    .map((item) => item.content.map((part) => part.transcript ?? part.text ?? '').join(' ').trim());
}
