"""One Whisper model in memory: prompts in, hypotheses out, for a batch of utterances of one window width.

CTranslate2 runs the network; everything here is synchronous and belongs on an executor's thread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ctranslate2
import numpy as np
import tokenizers

from stages.asr.guards import Hypothesis
from stages.asr.mel import Features, fit
from voice.errors import BadRequest, EngineFailed, ModelMissing

TOKENS_PER_S = 8
SPARE_TOKENS = 16
"""A pass makes at most 8 tokens a second of audio + 16: fast English speech has about 5."""

MOST_HINT_TOKENS = 96
"""Hints take decoder positions; Whisper's own limit is 223."""


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One pass over one utterance.

    Attributes:
        features: Log-mel features of the audio, without padding.
        silence: The value of a frame of silence.
        audio_s: Length of the audio.
        window: Encoder window, mel frames.
        beam: 1 is greedy.
        temperature: 0, or sampling at this temperature.
        language: Code like ``"en"``; ``None``: detect.
        hints: Words to expect, as tokens.
    """

    features: Features
    silence: float
    audio_s: float
    window: int
    beam: int = 1
    temperature: float = 0.0
    language: str | None = None
    hints: tuple[int, ...] = ()

    @property
    def bucket(self) -> tuple[int, int, float, int]:
        """What all passes of a batch share."""
        return (self.window, self.beam, self.temperature, len(self.hints))

    @property
    def most_tokens(self) -> int:
        """Where decoding stops."""
        return SPARE_TOKENS + math.ceil(TOKENS_PER_S * self.audio_s)


class WhisperModel:
    """A CTranslate2 Whisper model with its tokenizer.

    Args:
        folder: Holds ``model.bin``, ``config.json``, ``tokenizer.json`` and a vocabulary.
        device: ``"cpu"`` or ``"cuda"``.
        compute_type: As CTranslate2 names it; ``"int8"`` is fastest on CPUs.
        threads: CPU threads of a call.

    Raises:
        ModelMissing: Files are absent.
        EngineFailed: CTranslate2 can't load them.
    """

    def __init__(self, folder: Path, *, device: str, compute_type: str, threads: int) -> None:
        if missing := [
            n for n in ("model.bin", "config.json", "tokenizer.json") if not (folder / n).is_file()
        ]:
            raise ModelMissing(f"the Whisper model in {folder} lacks {', '.join(missing)}")
        try:
            self._model = ctranslate2.models.Whisper(
                str(folder),
                device=device,
                compute_type=compute_type,
                intra_threads=threads,
                inter_threads=1,
            )
            self._tokens = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:
            raise EngineFailed(f"Whisper can't be loaded from {folder}: {error}", retryable=False) from error
        self.mels = int(self._model.n_mels)
        self.multilingual = bool(self._model.is_multilingual)
        self._start = self._id("<|startoftranscript|>")
        self._previous = self._id("<|startofprev|>")
        self._transcribe = self._id("<|transcribe|>")
        self._no_timestamps = self._id("<|notimestamps|>")
        self._end = self._id("<|endoftext|>")
        self.languages = self._find_languages(folder) if self.multilingual else ("en",)

    def _id(self, token: str) -> int:
        number = self._tokens.token_to_id(token)
        if number is None:
            raise EngineFailed(f"this Whisper model's tokenizer lacks {token}", retryable=False)
        return int(number)

    def _find_languages(self, folder: Path) -> tuple[str, ...]:
        ids = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("lang_ids", [])
        names = [self._tokens.id_to_token(number) for number in ids]
        return tuple(sorted(name[2:-2] for name in names if name))

    def hint_tokens(self, hints: Sequence[str]) -> tuple[int, ...]:
        """Hints as what was supposedly said before; the first ones, up to :data:`MOST_HINT_TOKENS`."""
        if not hints:
            return ()
        ids = self._tokens.encode(" " + ", ".join(hints), add_special_tokens=False).ids
        return (self._previous, *ids[:MOST_HINT_TOKENS])

    def run(self, passes: Sequence[Pass]) -> list[Hypothesis]:
        """Recognise a batch; all passes are of one bucket.

        Raises:
            EngineFailed: CTranslate2 failed.
        """
        first = passes[0]
        features = np.empty((len(passes), self.mels, first.window), dtype=np.float32)
        for row, one in zip(features, passes, strict=True):
            fit(one.features, one.silence, first.window, row)
        try:
            encoded = self._model.encode(ctranslate2.StorageView.from_array(features))
            languages = self._languages(encoded, passes)
            prompts = [self._prompt(one, language) for one, language in zip(passes, languages, strict=True)]
            sampling = first.temperature > 0
            results = self._model.generate(
                encoded,
                prompts,
                beam_size=first.beam,
                length_penalty=1.0,
                max_length=len(prompts[0]) + max(one.most_tokens for one in passes),
                return_scores=True,
                return_no_speech_prob=True,
                suppress_blank=True,
                suppress_tokens=[-1],  # the model's own list of non-speech tokens
                sampling_topk=0 if sampling else 1,
                sampling_temperature=first.temperature if sampling else 1.0,
            )
        except (RuntimeError, ValueError) as error:
            raise EngineFailed(f"Whisper failed on a batch of {len(passes)}: {error}") from error
        return [
            self._hypothesis(result, one, language)
            for result, one, language in zip(results, passes, languages, strict=True)
        ]

    def _languages(self, encoded: ctranslate2.StorageView, passes: Sequence[Pass]) -> list[str]:
        if not self.multilingual:
            return ["en"] * len(passes)
        if all(one.language is not None for one in passes):
            return [one.language or "" for one in passes]
        found = self._model.detect_language(encoded)
        return [one.language or str(best[0][0])[2:-2] for one, best in zip(passes, found, strict=True)]

    def _prompt(self, one: Pass, language: str) -> list[int]:
        task = [self._id(f"<|{language}|>"), self._transcribe] if self.multilingual else []
        return [*one.hints, self._start, *task, self._no_timestamps]

    def _hypothesis(
        self, result: ctranslate2.models.WhisperGenerationResult, one: Pass, language: str
    ) -> Hypothesis:
        ids = result.sequences_ids[0]
        # Scores are means over the tokens made; the reference counts the end token too.
        logprob = result.scores[0] * len(ids) / (len(ids) + 1)
        text = self._tokens.decode([i for i in ids if i < self._end]).strip()
        return Hypothesis(
            text,
            len(ids),
            float(logprob),
            float(result.no_speech_prob),
            len(ids) >= one.most_tokens,
            language,
        )

    def check_language(self, language: str | None) -> str | None:
        """``"en-US"`` → ``"en"``.

        Raises:
            BadRequest: The model doesn't know the language.
        """
        if language is None:
            return None
        code = language.lower().replace("_", "-").split("-")[0]
        if code not in self.languages:
            raise BadRequest(f"this Whisper model does not know the language {language!r}")
        return code
