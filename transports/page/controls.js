/** The controls of the page and its status line: what a person does goes out as calls, the state comes in by draw(). */

const ACTIONS = {
  retry: "Try again",
  reconnect: "Reconnect",
  websocket: "Use WebSocket",
  typed: "Go on without a microphone",
  dismiss: "Dismiss",
};

const byId = (id) => document.getElementById(id);

export class Controls {
  #on;
  #status = byId("status");
  #activity = byId("activity");
  #talk = byId("talk");
  #mute = byId("mute");
  #interrupt = byId("interrupt");
  #message = byId("message");
  #send = byId("send");
  #problem = byId("problem");
  #tokenForm = byId("token-form");
  #token = byId("token");
  #transport = byId("transport");
  #shownProblem = null;
  #live = false;
  #muted = false;

  /**
   * @param {object} on start(), hangUp(), setMuted(muted), interrupt(), type(text), setTransport(name),
   *   useToken(text), act(action)
   */
  constructor(on) {
    this.#on = on;
    this.#talk.addEventListener("click", () => (this.#talk.dataset.phase === "idle" ? on.start() : on.hangUp()));
    this.#mute.addEventListener("click", () => on.setMuted(!this.#muted));
    this.#interrupt.addEventListener("click", () => on.interrupt());
    this.#transport.addEventListener("change", (event) => on.setTransport(event.target.value));
    byId("typed").addEventListener("submit", (event) => this.#submit(event));
    this.#tokenForm.addEventListener("submit", (event) => this.#submitToken(event));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented && !event.isComposing) on.interrupt();
    });
  }

  /** @param {import("./state.js").State} state */
  draw(state) {
    const live = state.phase === "live";
    this.#drawStatus(state);
    this.#drawTalk(state.phase);
    this.#muted = state.muted;
    this.#mute.disabled = !live || !state.microphone;
    this.#mute.setAttribute("aria-pressed", String(state.muted));
    this.#interrupt.disabled = !live || !(state.responding || state.agentSpeaking);
    this.#message.disabled = this.#send.disabled = state.phase === "connecting";
    this.#transport.disabled = state.phase !== "idle";
    this.#transport.querySelector(`[value="${state.transport}"]`).checked = true;
    this.#drawProblem(state.problem);
    this.#drawToken(state.tokenNeeded);
    if (live && !this.#live && !state.microphone) this.#message.focus();
    this.#live = live;
  }

  #drawStatus(state) {
    const phase = state.away ? "connecting" : state.phase;
    const connected = `Connected by ${transportName(state)}`;
    const text = state.away
      ? "The network broke. Reconnecting…"
      : { idle: "Not connected", connecting: "Connecting…", live: connected }[phase];
    if (this.#status.textContent !== text) this.#status.textContent = text; // said once
    this.#status.dataset.phase = phase;
    this.#status.title = state.sessionId ? `Session ${state.sessionId}` : "";
    this.#activity.textContent = state.phase === "live" ? activityOf(state) : "";
    this.#activity.dataset.activity = state.phase === "live" ? activityKey(state) : "";
  }

  #drawTalk(phase) {
    if (this.#talk.dataset.phase === phase) return;
    this.#talk.dataset.phase = phase;
    const idle = phase === "idle";
    this.#talk.querySelector("span").textContent = { idle: "Start talking", connecting: "Cancel", live: "Hang up" }[phase];
    this.#talk.querySelector("use").setAttribute("href", idle ? "#icon-mic" : "#icon-hang-up");
  }

  #drawProblem(problem) {
    if (this.#shownProblem === problem) return;
    this.#shownProblem = problem;
    this.#problem.replaceChildren();
    if (!problem) return;
    const text = document.createElement("p");
    text.textContent = problem.message;
    const buttons = document.createElement("div");
    buttons.className = "buttons";
    for (const action of problem.actions.filter((name) => name in ACTIONS)) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "button";
      button.textContent = ACTIONS[action];
      button.addEventListener("click", () => this.#on.act(action));
      buttons.append(button);
    }
    this.#problem.append(text, buttons);
  }

  #drawToken(needed) {
    if (this.#tokenForm.hidden === !needed) return;
    this.#tokenForm.hidden = !needed;
    if (needed) this.#token.focus();
  }

  #submit(event) {
    event.preventDefault();
    const text = this.#message.value.trim();
    if (!text) return;
    this.#message.value = "";
    this.#on.type(text);
  }

  #submitToken(event) {
    event.preventDefault();
    const value = this.#token.value.trim();
    this.#token.value = "";
    if (value) this.#on.useToken(value);
  }
}

function transportName({ transport, microphone }) {
  return transport === "webrtc" && microphone ? "WebRTC" : "WebSocket";
}

function activityKey({ userSpeaking, agentSpeaking, responding, muted }) {
  if (userSpeaking) return "user";
  if (agentSpeaking) return "agent";
  if (responding) return "thinking";
  return muted ? "muted" : "listening";
}

function activityOf(state) {
  return {
    user: "You are speaking",
    agent: "The agent is speaking",
    thinking: "The agent is thinking",
    muted: "Your microphone is muted",
    listening: state.microphone ? "Listening" : "Waiting for your message",
  }[activityKey(state)];
}
