/**
 * What can go wrong with a call, in words for the person in front of the page.
 *
 * A failure offers actions, which app.js carries out: "retry", "websocket" (try the other connection), "typed" (go on
 * without a microphone), "token" (ask for an access token).
 */

export class Failure extends Error {
  /** @param {string} text @param {string[]} actions */
  constructor(text, actions = ["retry"]) {
    super(text);
    this.actions = actions;
  }
}

/** Why the microphone could not be opened. */
export function microphoneFailure(error) {
  switch (error.name) {
    case "NotAllowedError":
    case "SecurityError":
      return new Failure(
        "The microphone is blocked for this page. Allow it beside the address bar, then try again.",
        ["retry", "typed"],
      );
    case "NotFoundError":
    case "OverconstrainedError":
      return new Failure("No microphone was found. Connect one, or type instead.", ["retry", "typed"]);
    case "NotReadableError":
    case "AbortError":
      return new Failure("The microphone is in use by another program, or failed to start.", ["retry", "typed"]);
    default:
      return new Failure(`The microphone could not be opened (${error.message}).`, ["retry", "typed"]);
  }
}

/** Browsers hide the microphone from pages that did not come over https or from this machine. */
export function insecureFailure() {
  return new Failure(
    "Browsers only open the microphone for pages that come over https or from localhost. You can type instead.",
    ["typed"],
  );
}

/** A reply of the server other than success, as a failure. */
export async function httpFailure(response) {
  const body = await response.json().catch(() => null);
  const said = body?.error?.message ?? "";
  const quote = said ? ` The server says: ${said}` : "";
  if (response.status === 401) return new Failure(said || "An access token is needed.", ["token"]);
  if (response.status === 403) return new Failure(`This page may not use the server.${quote}`);
  if (response.status === 429) return new Failure(`You have too many calls open already.${quote}`);
  if (body?.status === "loading") return new Failure("The server is still loading its models. Try again in a moment.");
  if (response.status === 503) return new Failure(`The server is full or not ready yet. Try again in a moment.${quote}`);
  if (response.status === 404) return new Failure("The server does not offer this kind of connection.", ["websocket"]);
  return new Failure(`The server refused the call (${response.status}).${quote}`);
}

export function unreachableFailure() {
  return new Failure("The server can’t be reached. Is it running, and are you online?");
}

export function noPathFailure() {
  return new Failure(
    "The server answered, but no WebRTC sound path could be opened; networks often block it. " +
      "A WebSocket works almost everywhere.",
    ["websocket", "retry"],
  );
}

export function lostFailure() {
  return new Failure("The connection was lost.", ["reconnect"]);
}

/** Why an open WebSocket was closed by the server. */
export function closeFailure(code, reason) {
  const said = reason ? ` (${reason})` : "";
  switch (code) {
    case 1000:
      return new Failure(`The server ended the call${said}.`, ["reconnect"]);
    case 1001:
    case 1012:
      return new Failure(`The server is shutting down or restarting${said}.`, ["reconnect"]);
    case 1013:
      return new Failure(`The server is full. Try again in a moment${said}.`);
    case 1008:
      return new Failure(`The server refused the call${said}.`);
    case 1009:
    case 1011:
      return new Failure(`The server ended the call after an error${said}.`, ["reconnect"]);
    default:
      return lostFailure();
  }
}
