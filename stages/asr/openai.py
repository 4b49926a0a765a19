"""How does a transcription server become a recogniser? Any server with ``POST …/audio/transcriptions``: OpenAI, vLLM,
speaches, Groq and others.

The audio goes out as WAV made in memory and comes back as JSON, with scores where the server has them. Silence isn't
sent, and the answer is judged by our own checks, since servers invent words like any Whisper. Answers are not streamed:
what is believed of a text is known only at its end.
"""

from __future__ import annotations

import asyncio
import io
import wave
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import httpx
import numpy as np
import numpy.typing as npt

from stages.asr import levels
from stages.asr.guards import Judgement, Severity
from stages.asr.openai_answer import Answer, Verdict, believe, final, read_answer
from stages.asr.recogniser_input import check_audio, check_language, prompt_of
from stages.asr.request_slots import RequestSlots
from stages.asr.text_guards import SECOND_TEMPERATURE, echoes, wants_second_look
from stages.asr.whisper_languages import NAMES
from stages.http_engine import Endpoint, ModelServer, retry_after_s
from stages.patience import Patience
from voice.errors import DeadlineExceeded, EngineFailed, Overloaded
from voice.executor import ThreadExecutor
from voice.interfaces import ASR_RATE_HZ, Pcm16, RecogniserCapabilities, Transcript
from voice.retry_budget import RetryBudget
from voice.scope import Priority, Scope

Fields: TypeAlias = Mapping[str, str | list[str]]
"""Of a form; a list sends its field several times."""

PATH = "/audio/transcriptions"
ANSWER_BYTES = 4 << 20
"""Longest answer that is read; two minutes of speech with word times take about 100 kB."""
LONGEST_WAIT_S = 600.0
"""Longest wait for a place, where the scope has no deadline: that of a long file whose pieces come all at once."""
SECOND_LOOK_S = 3.0
"""Longest second look: it may mend a doubtful text, and must not cost it."""
LONGEST_PAUSE_S = 5.0
"""Longest wait before a request is sent again to a server that asks for one."""

_FORMATS: tuple[Fields, ...] = (
    {"response_format": "verbose_json", "timestamp_granularities[]": ["segment"]},
    {"response_format": "json", "include[]": ["logprobs"]},
    {"response_format": "json"},
)
"""From the one that tells most to the one that all servers know."""
_UNSUPPORTED = frozenset({400, 415, 422, 501})  # what servers answer to a format they don't have
_ASR_NAMES = ("whisper", "transcri", "asr", "stt", "speech-to-text", "parakeet", "canary")


@dataclass(frozen=True, slots=True)
class _Utterance:
    """What is sent, and what its answer is judged by."""

    wav: bytes
    audio_s: float
    loudness: npt.NDArray[np.float32]


class OpenAITranscriber:
    """A :class:`~voice.interfaces.Recogniser` behind a transcription server.

    May be shared by any number of sessions and used from one event loop after another. A request that failed in passing
    (a broken connection, a 5xx, a 429 with a short wait) is sent once more, within a budget; never for partials.

    Args:
        base_url: ``http://host:port``, with or without ``/v1``.
        model: As the server calls it. ``None``: the first recogniser it lists, asked for once.
        api_key: Sent as a bearer token; ``None``: the environment's ``OPENAI_API_KEY``, or none at all. Never logged.
        answer_timeout_s: From sending a request to the end of its answer, on top of the audio's own length.
        max_concurrent: Requests that the server has at once; partials leave one place free for finals.
        max_audio_s: Longest audio of a call.
        word_times: Ask for the time of each word. Costs the server time, and not every server can.
        languages: Codes of what the model knows; ``None``: Whisper's, or English for a model named ``….en``.

    Attributes:
        name: The model; before the server was asked, its ``host:port``.
        capabilities: See :class:`~voice.interfaces.RecogniserCapabilities`.
        counters: What happened since the start: ``utterances``, ``requests``, ``retries``, ``second_looks``,
            ``simpler_format``, ``rejected_REASON`` (of transcripts) and ``dropped_REASON`` (of segments).

    Raises:
        BadRequest: ``base_url`` is no http or https URL, or a bound makes no sense.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        api_key: str | None = None,
        *,
        answer_timeout_s: float = 20.0,
        max_concurrent: int = 16,
        max_audio_s: float = 120.0,
        word_times: bool = False,
        languages: Sequence[str] | None = None,
    ) -> None:
        self.endpoint = Endpoint.parse(base_url, PATH)
        self.model = model
        self.name = model or self.endpoint.host
        self.answer_timeout_s = answer_timeout_s
        known = languages or (("en",) if (model or "").endswith(".en") else tuple(NAMES))
        self.capabilities = RecogniserCapabilities(
            languages=tuple(known), word_times=word_times, hints=True, max_audio_s=max_audio_s
        )
        self.counters: Counter[str] = Counter()
        self._server = ModelServer(self.endpoint, api_key)
        self._slots = RequestSlots(self._server.source, max_concurrent)
        self._retries = RetryBudget()
        self._prepare_on = ThreadExecutor("transcriber-prepare")
        self._format = 0  # the first of _FORMATS that this server is known to take

    async def warm_up(self) -> None:
        """Connect and learn the model's name, so that the first turn needn't.

        Raises:
            EngineFailed: The server can't be reached, refuses the key, or lists no model where none was named.
        """
        with Scope("stage") as scope:
            patience = self._server.patience(scope, self.answer_timeout_s)
            with patience.watching(), self._server.naming_failures():
                if self.model is None:
                    await self._find_model(patience)
                    return
                async with self._server.request("GET", "/models", patience) as response:
                    if response.status_code in (401, 403):
                        raise await self._server.refusal(response, scope)
                    await self._server.body(response, ANSWER_BYTES, patience)  # or it can't be used again

    @property
    def waiting(self) -> int:
        """Requests that wait for a place at the server."""
        return self._slots.waiting

    async def aclose(self) -> None:
        """Close the connections of the running event loop. A later call opens new ones."""
        await self._server.aclose()

    def close(self) -> None:
        """Take no more work."""
        self._prepare_on.close()

    async def transcribe(
        self, audio: Pcm16, scope: Scope, *, language: str | None = None, hints: Sequence[str] = ()
    ) -> Transcript:
        """Recognise ``audio`` (16 kHz). Its class is ``scope.priority``; ``hints`` go as the prompt.

        ``language`` is a code like ``"de"`` or ``"en-US"``; ``None`` leaves it to the server. ``rejected`` of the
        result is as :meth:`stages.asr.whisper.WhisperCt2.transcribe` names it, or ``"echo"``: it repeats the hints.

        Raises:
            BadAudio: Not one-dimensional int16, or longer than ``capabilities.max_audio_s``.
            BadRequest: A language that is not among ``capabilities.languages``.
            Overloaded: A partial, and no place is free; or the server refuses for its load.
            EngineFailed: The server refused, failed, hung or broke off; the sentence names its ``host:port``.
            DeadlineExceeded, ScopeCancelled: As named.
        """
        check_audio(audio, self.capabilities.max_audio_s)
        code = check_language(language, self.capabilities.languages, self.name)
        scope.check()
        self.counters["utterances"] += 1
        prepared = await self._prepare_on.run(_prepare, audio)
        if isinstance(prepared, str):
            self.counters[f"rejected_{prepared}"] += 1
            return Transcript("", code, rejected=prepared)
        prompt = prompt_of(hints)
        verdict = await self._look(prepared, scope, _fields(code, prompt=prompt))
        if echoes(verdict.transcript.text, prompt):
            verdict = replace(verdict, judgement=Judgement(Severity.BAD, "echo"))
        if wants_second_look(verdict.judgement, scope.priority):
            verdict = min(
                verdict, await self._second_look(prepared, scope, code, verdict), key=lambda v: v.order
            )
        transcript = final(verdict)
        if transcript.rejected is not None:
            self.counters[f"rejected_{transcript.rejected}"] += 1
        self.counters.update(f"dropped_{reason}" for reason in verdict.dropped)
        return transcript if code is None else replace(transcript, language=code)

    # ------------------------------------------------------------ one look: a request that is answered

    async def _look(self, utterance: _Utterance, scope: Scope, fields: Fields) -> Verdict:
        waiting = self._server.patience(scope, LONGEST_WAIT_S, "took no further request")
        with waiting.watching():
            async with self._slots.one(waiting):
                answer = await self._ask_patiently(utterance, scope, fields)
        return believe(answer, utterance.loudness)

    async def _second_look(
        self, utterance: _Utterance, scope: Scope, language: str | None, first: Verdict
    ) -> Verdict:
        """Without hints and at a higher temperature; the first one's verdict where there is no time for it."""
        self.counters["second_looks"] += 1
        fields = _fields(language, temperature=str(SECOND_TEMPERATURE))
        try:
            with scope.child("stage", timeout_s=SECOND_LOOK_S) as soon:
                return await self._look(utterance, soon, fields)
        except (Overloaded, DeadlineExceeded, EngineFailed):
            return first

    async def _ask_patiently(self, utterance: _Utterance, scope: Scope, fields: Fields) -> Answer:
        """Ask, and ask once more after a failure that may pass."""
        timeout_s = self.answer_timeout_s + utterance.audio_s
        patience = self._server.patience(scope, timeout_s)
        try:
            return await self._ask(utterance, patience, fields)
        except (EngineFailed, Overloaded) as error:
            pause_s = None if patience.expired else _pause_s(error, scope)
            if pause_s is None or not self._retries.spend(asyncio.get_running_loop().time()):
                raise
        self.counters["retries"] += 1
        patience = self._server.patience(scope, timeout_s + pause_s)
        with patience.watching():
            await patience.wait(asyncio.sleep(pause_s))
        return await self._ask(utterance, patience, fields)

    async def _ask(self, utterance: _Utterance, patience: Patience, fields: Fields) -> Answer:
        """One request, in the format that the server is known to take; in simpler ones when it refuses that."""
        first_refusal: EngineFailed | None = None
        with patience.watching(), self._server.naming_failures():
            if self.model is None:
                await self._find_model(patience)
            for number in range(self._format, len(_FORMATS)):
                answer = await self._post(utterance, fields, number, patience)
                if isinstance(answer, Answer):
                    self._learn(number, answer)
                    return answer
                first_refusal = first_refusal or answer
        assert first_refusal is not None  # the loop runs at least once
        raise first_refusal

    async def _post(
        self, utterance: _Utterance, fields: Fields, number: int, patience: Patience
    ) -> Answer | EngineFailed:
        """One request in one of :data:`_FORMATS`: its answer, or the refusal that may be meant for the format."""
        self.counters["requests"] += 1
        self._retries.called()
        files = {"file": ("audio.wav", utterance.wav, "audio/wav")}
        data = {"model": self.model or "", **fields, **self._format_fields(number)}
        async with self._server.request("POST", PATH, patience, files=files, data=data) as response:
            if response.status_code != 200:
                refusal = await self._server.refusal(response, patience.scope)
                if response.status_code in _UNSUPPORTED:
                    return refusal
                raise _overload(response, refusal) or refusal
            self._server.check_kind(response)
            body = await self._server.body(response, ANSWER_BYTES, patience)
        if len(body) > ANSWER_BYTES:
            raise EngineFailed(f"{self._server.source} answered more than {ANSWER_BYTES >> 20} MiB")
        return read_answer(self._server.decoded(body), utterance.audio_s, self._server.source)

    def _format_fields(self, number: int) -> Fields:
        if number == 0 and self.capabilities.word_times:
            return {**_FORMATS[0], "timestamp_granularities[]": ["segment", "word"]}
        return _FORMATS[number]

    def _learn(self, number: int, answer: Answer) -> None:
        """Remember the format: the simpler one that was taken, or a simpler one than one that told nothing more."""
        if number == 0 and answer.segments and not answer.scored and not self.capabilities.word_times:
            number = 1  # timestamps cost such a server (vLLM) time and tell us nothing
        if number > self._format:
            self.counters["simpler_format"] += 1
            self._format = number

    async def _find_model(self, patience: Patience) -> None:
        listed = await self._server.models(patience)
        if self.model is None:
            names = [str(m["id"]) for m in listed]
            self.model = next((n for n in names if any(a in n.lower() for a in _ASR_NAMES)), names[0])
            self.name = self.model


def _prepare(audio: Pcm16) -> _Utterance | str:
    """What to send, or why there is no speech in it."""
    loudness = levels.block_levels(audio)
    if (reason := levels.why_no_speech(audio, loudness)) is not None:
        return reason
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(ASR_RATE_HZ)
        wav.writeframes(np.ascontiguousarray(audio, "<i2").tobytes())
    return _Utterance(file.getvalue(), len(audio) / ASR_RATE_HZ, loudness)


def _fields(language: str | None, **others: str) -> Fields:
    """Fields of the form; what is empty is left out."""
    return {name: value for name, value in {"language": language or "", **others}.items() if value}


def _overload(response: httpx.Response, refusal: EngineFailed) -> Overloaded | None:
    """The refusal as one for want of capacity, if it is that."""
    if response.status_code == 429:
        return Overloaded(str(refusal), retry_after_s(response.headers))
    if response.status_code == 503 and (wait_s := retry_after_s(response.headers)) is not None:
        return Overloaded(str(refusal), wait_s)
    return None


def _pause_s(error: EngineFailed | Overloaded, scope: Scope) -> float | None:
    """How long to wait before asking again; ``None``: don't."""
    if scope.cancelled or scope.priority is Priority.PARTIAL:
        return None
    if isinstance(error, Overloaded):
        left_s, wait_s = scope.remaining(), error.retry_after_s
        longest_s = LONGEST_PAUSE_S if left_s is None else min(LONGEST_PAUSE_S, left_s)
        return wait_s if wait_s is not None and wait_s < longest_s else None
    return 0.0 if error.retryable else None
