// Is an event exactly what the `openai` package's type declarations say? Asks the TypeScript compiler.

import { rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

const HERE = dirname(fileURLToPath(import.meta.url));

/** What does not fit: missing fields, wrong types, and fields that the declarations do not know. */
export function misfits(events) {
  const path = join(HERE, `events-${process.pid}.ts`);
  const seen = new Map(); // events alike but for their texts and ids need no second look
  for (const event of events) {
    const shape = JSON.stringify(event, (key, value) => (typeof value === 'string' && key !== 'type' ? '' : value));
    if (!seen.has(shape)) seen.set(shape, event);
  }
  const literals = [...seen.values()].map((event, n) => `export const e${n}: RealtimeServerEvent = ${JSON.stringify(shorter(event))};`);
  const head = "import type { RealtimeServerEvent } from 'openai/resources/realtime/realtime';";
  writeFileSync(path, [head, ...literals].join('\n'));
  try {
    const program = ts.createProgram([path], {
      strict: true,
      strictNullChecks: false, // the vendor sends null where the declarations only know of absence
      noEmit: true,
      skipLibCheck: true,
      types: [],
      module: ts.ModuleKind.NodeNext,
      moduleResolution: ts.ModuleResolutionKind.NodeNext,
      target: ts.ScriptTarget.ES2022,
      lib: ['lib.es2022.d.ts', 'lib.dom.d.ts'],
    });
    const source = program.getSourceFile(path);
    const found = [...program.getSyntacticDiagnostics(source), ...program.getSemanticDiagnostics(source)];
    return found.map((one) => {
      const line = ts.getLineAndCharacterOfPosition(source, one.start).line;
      const name = [...seen.values()][line - 1]?.type;
      return `${name}: ${ts.flattenDiagnosticMessageText(one.messageText, ' ').slice(0, 300)}`;
    });
  } finally {
    rmSync(path);
  }
}

function shorter(event) {
  if (event.type === 'response.output_audio.delta') return { ...event, delta: '' };
  if (event.type === 'session.created' || event.type === 'session.updated') {
    const { object, id, expires_at, ...session } = event.session; // sent by the vendor, and not declared
    return { ...event, session };
  }
  return event;
}
