"""The command line, and the composition root: the only module of ``voice`` that knows engines and transports."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import secrets
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import soundfile

from voice.agent import DEFAULT_INSTRUCTIONS, Agent, load_agent
from voice.compute import CpuBudget
from voice.errors import BadRequest, VoiceError
from voice.events import SessionEvent
from voice.interfaces import Stages
from voice.report import Report
from voice.running import settle
from voice.session import Session
from voice.speaking import spoken_text

if TYPE_CHECKING:
    from transports.options import ServerOptions

_Ready: TypeAlias = Callable[[str, str], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 1 for failure, 2 for wrong use."""
    args = _parser().parse_args(argv)
    args.argv = sys.argv[1:] if argv is None else list(argv)
    try:
        return int(args.run(args))
    except BadRequest as error:
        return _fail(str(error), 2)
    except VoiceError as error:
        return _fail(str(error), 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - the last boundary: a sentence, not a traceback, for the user
        if os.environ.get("VOICE_DEBUG"):
            traceback.print_exc()
        return _fail(f"unexpected {type(error).__name__}: {error} (VOICE_DEBUG=1 shows where)", 1)


def _fail(message: str, status: int) -> int:
    print(f"voice: {message}", file=sys.stderr)
    return status


# ---------------------------------------------------------------- talk, console


def _talk(args: argparse.Namespace) -> int:
    if bool(args.caller) == bool(args.ask):
        raise BadRequest("give the caller's audio files, or a question with --ask TEXT (one of the two)")
    if args.out:
        _check_out(args.out)
    for text in args.ask or ():
        if not text.strip():
            raise BadRequest("there is nothing to ask")
    for file in args.caller or ():
        if not Path(file).is_file():
            raise BadRequest(f"there is no file {file}")
        if args.out and Path(args.out).exists() and Path(args.out).samefile(file):
            raise BadRequest(f"{args.out} is the caller's own file: the recording would replace it")
    agent = _agent(args)
    return asyncio.run(_talk_with_files(agent, args))


async def _talk_with_files(agent: Agent, args: argparse.Namespace) -> int:
    from stages import presets
    from transports.file import FileCaller

    with tempfile.TemporaryDirectory(prefix="voice-") as folder:
        files = [Path(f) for f in args.caller]
        caller = FileCaller(files, record_to=args.out) if files else None
        if caller is not None:
            await caller.prepare()  # a bad file is told before the engines are loaded
        _say(args, "loading the engines …")
        await presets.warm_up(agent.stages)
        if caller is None:
            for number, text in enumerate(args.ask):
                files.append(Path(folder) / f"question-{number}.wav")
                pcm = await spoken_text(agent.stages.synthesiser, text, None)
                soundfile.write(files[-1], pcm, agent.stages.synthesiser.sample_rate)
            caller = FileCaller(files, record_to=args.out)
        report = Report(as_json=args.json)
        unwritten: list[OSError] = []

        def tell(event: SessionEvent) -> None:
            try:
                report(event)
            except OSError as error:  # whoever reads our output is gone
                unwritten.append(error)
                session.hang_up("output_closed")

        session = Session(agent, caller, on_event=tell)
        async with session:
            await caller.run(session)
        if unwritten:
            raise unwritten[0]
    report.finish(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    if args.out:
        _say(args, f"recorded to {args.out}: left the caller, right the agent")
    return 1 if report.failed and not report.latencies_ms else 0


def _console(args: argparse.Namespace) -> int:
    agent = _agent(args)
    return asyncio.run(_talk_with_microphone(agent, args))


async def _talk_with_microphone(agent: Agent, args: argparse.Namespace) -> int:
    from stages import presets
    from transports.microphone import Microphone

    microphone = Microphone()
    await microphone.open()  # a missing device is told at once; the session needs to know its delay, too
    try:
        _say(args, "loading the engines …")
        await presets.warm_up(agent.stages)
        report = Report(as_json=args.json)
        async with Session(agent, microphone, on_event=report) as session:
            _say(args, "speak; end with Ctrl-C. Wear headphones: the agent hears what the loudspeaker plays.")
            await microphone.run(session)
    finally:
        await microphone.close()
    report.finish(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return 0


def _agent(args: argparse.Namespace) -> Agent:
    """The agent that the options describe, with its models pulled."""
    from stages import presets

    if args.agent is None:
        stages = presets.local(llm=args.llm, asr=args.asr, tts=args.tts)
        return Agent(args.instructions or DEFAULT_INSTRUCTIONS, stages)
    agent = load_agent(args.agent)
    if args.instructions:
        agent.instructions = args.instructions
    if args.llm or args.asr or args.tts:
        agent.stages = _replaced(agent.stages, presets.local(llm=args.llm, asr=args.asr, tts=args.tts), args)
    return agent


def _replaced(stages: Stages, other: Stages, args: argparse.Namespace) -> Stages:
    if args.llm:
        stages = replace(stages, model=other.model)
    if args.asr:
        stages = replace(stages, recogniser=other.recogniser)
    if args.tts:
        stages = replace(stages, synthesiser=other.synthesiser)
    return stages


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.json:
        print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- serve


def _serve(args: argparse.Namespace) -> int:
    from transports.monitoring import log_to_stderr
    from transports.serving import listen, serve
    from transports.serving_options import server_options

    if args.as_worker is not None:
        return _work(args)
    options = server_options(args)
    sockets = listen(args.host, args.port)  # a port that is taken is told before the engines are loaded
    log_to_stderr(as_json=args.log_json)
    _note("loading the engines …")
    ready = partial(_announce, args, sockets[0].getsockname()[1], bool(options.tokens))
    if args.workers > 1:
        drained = _serve_with_workers(args, options, sockets, ready)
    else:
        from transports.server import app

        agent = _agent(args)
        server = app(agent, options=options, warm_up=_warm_up)
        budget = CpuBudget.detect().describe()
        drained = asyncio.run(serve(server, sockets, on_ready=partial(ready, _described(agent), budget)))
    if drained:
        _note("stopped")
    return _leave(0 if drained else 1)


def _serve_with_workers(
    args: argparse.Namespace, options: ServerOptions, sockets: Sequence[socket.socket], ready: _Ready
) -> bool:
    from transports.workers import serve_with_workers, worker_command

    budget = CpuBudget.detect(args.workers)
    each = f"{args.workers} workers, each has {budget.describe()}"
    work = serve_with_workers(
        worker_command([*args.argv, "--as-worker"]),
        budget.environment(args.workers),
        sockets,
        args.workers,
        options.secret_key or secrets.token_hex(32),
        on_ready=lambda about: ready(about, each),
    )
    return asyncio.run(work)


def _work(args: argparse.Namespace) -> int:
    from transports.serving_options import server_options
    from transports.worker_main import run_worker

    def make_agent() -> tuple[Agent, str]:
        agent = _agent(args)
        return agent, _described(agent)

    options = server_options(args)
    return _leave(run_worker(args.as_worker, options, make_agent, _warm_up, log_json=args.log_json))


def _leave(status: int) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a tool that still runs in a thread would hold the interpreter up


async def _warm_up(stages: Stages) -> None:
    from stages import presets

    await presets.warm_up(stages)
    settle()


def _described(agent: Agent) -> str:
    stages = agent.stages
    return f"agent {agent.name}: {stages.recogniser.name}, {stages.model.name}, {stages.synthesiser.name}"


def _announce(args: argparse.Namespace, port: int, keyed: bool, about: str, processor: str) -> None:
    host = args.host
    _note(about)
    _note(f"processor: {processor}")
    if keyed:
        _note("clients show a token: Authorization: Bearer TOKEN")
    elif host in ("localhost", "::1") or host.startswith("127."):
        _note("no token is needed; only programs and pages of this machine can reach it")
    else:
        _note(f"WARNING: anyone who reaches {host} can talk to the agent: no --token was given")
    print(f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/", flush=True)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- speak


def _speak(args: argparse.Namespace) -> int:
    from stages import presets

    text = sys.stdin.read() if args.text == "-" else args.text
    if not text.strip():
        raise BadRequest("there is nothing to speak")
    _check_out(args.out)
    synthesiser = presets.local(tts=args.tts).synthesiser
    pcm = asyncio.run(spoken_text(synthesiser, text, args.voice))
    if pcm.size == 0:
        raise BadRequest("nothing of the text can be spoken")
    try:
        soundfile.write(args.out, pcm, synthesiser.sample_rate)
    except (soundfile.SoundFileError, OSError) as error:
        raise BadRequest(f"{args.out} can't be written: {error}") from None
    print(f"{args.out}: {pcm.size / synthesiser.sample_rate:.1f} s", file=sys.stderr)
    return 0


def _check_out(out: str) -> None:
    folder = Path(out).resolve().parent
    if Path(out).is_dir() or not folder.is_dir():
        raise BadRequest(
            f"{out} can't be written: "
            + ("it is a folder" if Path(out).is_dir() else f"there is no folder {folder}")
        )
    if Path(out).suffix.lower() != ".wav":
        raise BadRequest(f"{out} must end in .wav")


# ---------------------------------------------------------------- models


def _models(args: argparse.Namespace) -> int:
    from voice import models

    if args.action == "list":
        rows = models.rows(args.names or None)
    elif args.action == "pull":
        if not args.names:
            raise BadRequest("name the models to pull; `voice models list` shows them")
        rows = models.pull_all(args.names)
    else:
        rows = models.verify(args.names or None)
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        size = models.size_text(row.size_bytes)
        detail = f"  {row.detail}" if row.detail else ""
        print(f"{row.name:<{width}}  {size:>8}  {row.licence:<12}  {row.state:<13}  {row.purpose}{detail}")
    return 0 if args.action == "list" or all(row.ok for row in rows) else 1


# ---------------------------------------------------------------- arguments


def _parser() -> argparse.ArgumentParser:
    from stages.asr.recordings import command as recordings
    from transports import serving_options

    parser = argparse.ArgumentParser(
        prog="voice", description="Talk to agents: locally, from files, by microphone, over a network."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    talk = commands.add_parser("talk", help="hold a conversation with a caller made of audio files")
    talk.add_argument(
        "caller", nargs="*", metavar="CALLER.wav", help="what the caller says; each file is a turn"
    )
    talk.add_argument(
        "--ask", action="append", metavar="TEXT", help="have the default voice ask this instead of a file"
    )
    talk.add_argument(
        "--out", metavar="RECORDING.wav", help="record the call: left the caller, right the agent"
    )
    _add_agent_options(talk)
    _add_report_option(talk)
    talk.set_defaults(run=_talk)

    console = commands.add_parser("console", help="hold a conversation by microphone and loudspeaker")
    _add_agent_options(console)
    _add_report_option(console)
    console.set_defaults(run=_console)

    serve = commands.add_parser("serve", help="serve the agent: Realtime API, WebRTC, telephone, web page")
    _add_agent_options(serve)
    serving_options.add_to(serve)
    serve.set_defaults(run=_serve)

    speak = commands.add_parser("speak", help="speak a text into a file")
    speak.add_argument("text", metavar="TEXT", help="what to say; - reads it from standard input")
    speak.add_argument("--out", required=True, metavar="a.wav")
    speak.add_argument("--tts", metavar="NAME", help="a voice of the catalogue, or a Piper .onnx file")
    speak.add_argument("--voice", metavar="NAME", help="a speaker of a voice that has several")
    speak.set_defaults(run=_speak)

    transcribe = commands.add_parser("transcribe", help="write down what is said in recordings")
    recordings.add_to(transcribe)
    transcribe.set_defaults(run=recordings.run)

    models = commands.add_parser("models", help="list, pull or verify models")
    models.add_argument("action", nargs="?", choices=("list", "pull", "verify"), default="list")
    models.add_argument("names", nargs="*", metavar="NAME")
    models.set_defaults(run=_models)
    return parser


def _add_report_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a transcript")


def _add_agent_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", metavar="FILE.py:NAME", help="the agent to talk to, from a Python file")
    parser.add_argument("--instructions", metavar="TEXT", help="what the agent is told (the system prompt)")
    parser.add_argument(
        "--llm", metavar="URL_OR_NAME", help="an OpenAI-compatible server (URL#model) or a local model"
    )
    parser.add_argument(
        "--asr",
        metavar="URL_OR_NAME",
        help="the recogniser: a transcription server (URL#model), whisper-tiny.en, whisper-base or a folder",
    )
    parser.add_argument(
        "--tts", metavar="NAME", help="the voice: a name of the catalogue or a Piper .onnx file"
    )


if __name__ == "__main__":
    sys.exit(main())
