"""``voice transcribe``: recordings of any length in, text, JSON or subtitles out."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from voice.errors import BadRequest, EngineFailed, VoiceError
from voice.scope import Priority, Scope

if TYPE_CHECKING:
    from stages.asr.recordings.bar import Bar
    from stages.asr.recordings.options import RecordingOptions
    from stages.asr.recordings.result import RecordingTranscript
    from stages.asr.recordings.transcribe import RecordingTranscriber

_FORMATS = ("text", "json", "srt", "vtt")
_ENDINGS = {"text": ".txt", "json": ".json", "srt": ".srt", "vtt": ".vtt"}
_FILES_AT_ONCE = 4
"""So many files are read side by side: short ones fill the recogniser's batches together."""
_SUBTITLES = ("srt", "vtt")
STOPPED, TERMINATED = 130, 143
"""What a shell says of a program that Ctrl-C or SIGTERM ended."""


def add_to(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="recordings: anything that FFmpeg reads")
    parser.add_argument("--format", choices=_FORMATS, help="default: text, or by the ending of --out")
    parser.add_argument("--json", action="store_true", help="the same as --format json: one object a line")
    parser.add_argument("--speakers", action="store_true", help="tell who says what: A, B, …")
    parser.add_argument(
        "--reference",
        metavar="FILE",
        action="append",
        help="what was said, for each recording: counts word errors",
    )
    parser.add_argument(
        "--asr",
        metavar="URL_OR_NAME",
        action="append",
        help="a transcription server (URL#model), a recogniser's name or a folder; several share the work",
    )
    parser.add_argument(
        "--language", metavar="CODE", help="such as en; default: found in each recording's beginning"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="shorter pieces: 30 %% less time, and up to twice the words wrong",
    )
    parser.add_argument("--out", metavar="FILE", help="write here; a folder for several recordings")
    parser.add_argument(
        "--no-resume",
        dest="resume",
        action="store_false",
        help="begin anew, and keep no journal for a next time",
    )


def run(args: argparse.Namespace) -> int:
    """Transcribe; the exit status: 0, 1 if a recording failed, 130 or 143 if it was stopped."""
    plan = _Plan(args)
    try:
        return asyncio.run(plan.run())
    except asyncio.CancelledError:
        return _stopped(args, TERMINATED)
    except KeyboardInterrupt:
        return _stopped(args, STOPPED)


def _stopped(args: argparse.Namespace, status: int) -> int:
    again = "; the same command goes on where it was" if args.resume else ""
    print(f"voice: stopped{again}", file=sys.stderr, flush=True)
    return status


class _Plan:
    """What was asked for, checked before any engine is loaded.

    Raises:
        BadRequest: Options that don't go together, a file that is not there, a place that can't be written to.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.files = [Path(file) for file in args.files]
        self.form = _form(args)
        self.out = None if args.out is None else Path(args.out)
        self.references = _references(args)
        self._check_out()

    def _check_out(self) -> None:
        if self.out is None:
            if self.form in _SUBTITLES and len(self.files) > 1:
                raise BadRequest("subtitles of several recordings need a folder: --out FOLDER")
            return
        if len(self.files) > 1 or self.out.is_dir():
            if not self.out.is_dir():
                raise BadRequest(
                    f"there is no folder {self.out} for the transcripts of {len(self.files)} recordings"
                )
            targets = [self.target(file) for file in self.files]
            if len(set(targets)) < len(targets):
                raise BadRequest(f"two of the recordings would be written to the same file in {self.out}")
        elif not self.out.resolve().parent.is_dir():
            raise BadRequest(f"{self.out} can't be written: there is no folder {self.out.resolve().parent}")
        folder = self.out if self.out.is_dir() else self.out.resolve().parent
        if not os.access(folder, os.W_OK):
            raise BadRequest(f"{self.out} can't be written: the folder {folder} takes no new files")
        for file in self.files:
            target = self.target(file)
            if target.exists() and file.exists() and target.samefile(file):
                raise BadRequest(f"{target} is the recording itself: its transcript would replace it")

    def target(self, file: Path) -> Path:
        assert self.out is not None
        return self.out / (file.stem + _ENDINGS[self.form]) if self.out.is_dir() else self.out

    # ------------------------------------------------------------ the work

    async def run(self) -> int:
        """Transcribe all files; output in their order."""
        from stages.asr.recordings.bar import Bar
        from stages.asr.recordings.cut import QUICK_AIM_S, CutOptions
        from stages.asr.recordings.options import RecordingOptions

        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may not know all letters
        failed = 0
        good: list[tuple[int, Path]] = []
        for number, file in enumerate(self.files):
            try:
                await asyncio.to_thread(_look_at, file)  # a bad file is told before the engines are loaded
                good.append((number, file))
            except VoiceError as error:
                failed += 1
                print(f"voice: {error}", file=sys.stderr, flush=True)
        if not good:
            return 1
        transcriber = await asyncio.to_thread(self._engines)
        cut = CutOptions(aim_s=QUICK_AIM_S) if self.args.quick else CutOptions()
        options = RecordingOptions(self.args.language, self.args.speakers, self.args.resume, cut)
        bar = Bar([file.name for _, file in good])
        places = asyncio.Semaphore(_FILES_AT_ONCE)
        with _on_sigterm(), Scope("process", priority=Priority.BACKGROUND) as scope:
            told: asyncio.Event | None = None  # set when the recording before is printed, or never will be
            work = []
            for number, file in good:
                output = _Output(self, number, file, bar, told)
                told = output.over
                work.append(
                    asyncio.create_task(_transcribe(transcriber, file, scope, options, bar, places, output))
                )
            try:
                for task in work:
                    try:
                        await task
                    except BadRequest:
                        raise
                    except VoiceError as error:
                        failed += 1
                        bar.line(f"voice: {error}")
            finally:
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
                bar.close()
        return 1 if failed else 0

    def _engines(self) -> RecordingTranscriber:
        from stages import presets
        from stages.asr.recordings.speech import SpeechMeter
        from stages.asr.recordings.transcribe import RecordingTranscriber

        recognisers = presets.recording_recognisers(self.args.asr or ())
        diariser = None
        if self.args.speakers:
            from stages.asr.speakers.diarise import Diariser

            diariser = Diariser()
        return RecordingTranscriber(recognisers, SpeechMeter(), diariser=diariser)


class _Output:
    """Where one recording's transcript goes: into its file at once, or to standard output in its turn.

    Args:
        plan: What was asked for.
        number: Of the recording.
        file: The recording.
        bar: Takes the notes.
        before: Set when the recording before is over; ``None``: it is the first.

    Attributes:
        over: Set when this one is printed, or never will be.
    """

    def __init__(self, plan: _Plan, number: int, file: Path, bar: Bar, before: asyncio.Event | None) -> None:
        self._plan, self._number, self._file, self._bar, self._before = plan, number, file, bar, before
        self.over = asyncio.Event()

    async def deliver(self, transcript: RecordingTranscript) -> None:
        """Write it.

        Raises:
            EngineFailed: It can't be written.
        """
        from stages.asr.recordings.formats import written

        plan = self._plan
        text = written(transcript, plan.form)
        if plan.out is not None:
            await asyncio.to_thread(_write, plan.target(self._file), text)
        else:
            if self._before is not None:
                await self._before.wait()
            if plan.form == "text" and len(plan.files) > 1:
                text = "".join(f"{self._file}: {line}\n" for line in text.splitlines() or [""])
            _print(text)
        for note in transcript.notes:
            self._bar.line(f"voice: {note}")
        if plan.references:
            from voice.word_errors import compare

            self._bar.line(f"{self._file}: {compare(plan.references[self._number], transcript.text)}")


def _print(text: str) -> None:
    try:
        print(text, end="", flush=True)
    except OSError as error:
        raise EngineFailed(f"standard output can't be written: {error}", retryable=False) from None


async def _transcribe(
    transcriber: RecordingTranscriber,
    file: Path,
    scope: Scope,
    options: RecordingOptions,
    bar: Bar,
    places: asyncio.Semaphore,
    output: _Output,
) -> None:
    try:
        async with places:
            await transcriber.transcribe(file, scope, options, bar.recording(), output.deliver)
    finally:
        output.over.set()


def _look_at(file: Path) -> None:
    from stages.asr.recordings.decode import RecordingFile

    RecordingFile(file).close()


def _form(args: argparse.Namespace) -> str:
    if args.json:
        if args.format not in (None, "json"):
            raise BadRequest(f"--json and --format {args.format}: give one of the two")
        return "json"
    if args.format is not None:
        return str(args.format)
    ending = "" if args.out is None else Path(args.out).suffix.lower()
    return next((form for form, known in _ENDINGS.items() if known == ending), "text")


def _references(args: argparse.Namespace) -> list[str]:
    paths = args.reference or []
    if paths and len(paths) != len(args.files):
        raise BadRequest(f"{len(paths)} references for {len(args.files)} recordings: give one for each")
    texts = []
    for path in paths:
        try:
            texts.append(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"the reference {path} can't be read: {error}") from None
    return texts


def _write(target: Path, text: str) -> None:
    """Whole, or not at all."""
    made: str | None = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as file:
            made = file.name
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(file.name, 0o666 & ~mask)  # a temporary file is its owner's alone
        os.replace(file.name, target)
    except (OSError, UnicodeError) as error:
        if made is not None:
            with contextlib.suppress(OSError):
                os.unlink(made)
        raise EngineFailed(f"{target} can't be written: {error}", retryable=False) from None


@contextlib.contextmanager
def _on_sigterm() -> Iterator[None]:
    """Cancel the running task at SIGTERM, so that it ends in order."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    try:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    except (NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
