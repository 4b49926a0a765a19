"""One Whisper model in memory: prompts in, hypotheses out, for a batch of utterances of one window width.

CTranslate2 runs the network; everything here is synchronous and belongs on an executor's thread.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ctranslate2
import numpy as np
import numpy.typing as npt
import tokenizers

from stages.asr.guards import Hypothesis, seems_to_repeat
from stages.asr.mel import fit
from stages.asr.whisper_pass import Align, Pass
from stages.asr.words import (
    TokenTimes,
    join_texts,
    may_have_skipped,
    paced,
    skipped_s,
    without_unsaid_end,
    words_of,
)
from voice.errors import BadRequest, EngineFailed, ModelMissing

MOST_HINT_TOKENS = 96
"""Hints take decoder positions; Whisper's own limit is 223."""

Rows = npt.NDArray[np.float32]
"""Encoder output of a batch, shape (n, window / 2, width)."""


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
        """Hints as what was supposedly said before; the first ones, up to :data:`MOST_HINT_TOKENS`.

        Raises:
            BadRequest: They are no texts.
        """
        if isinstance(hints, str) or not all(isinstance(hint, str) for hint in hints):
            raise BadRequest("hints are a list of texts")
        if not hints:
            return ()
        # a token has some 4 characters; "<|" begins those that are no text
        text = ", ".join(hints[:MOST_HINT_TOKENS])[: 12 * MOST_HINT_TOKENS].replace("<|", "< |")
        text = text.encode("utf-8", "replace").decode()
        ids = self._tokens.encode(" " + text, add_special_tokens=False).ids
        return (self._previous, *ids[:MOST_HINT_TOKENS])

    def run(self, passes: Sequence[Pass]) -> list[Hypothesis]:
        """Recognise a batch; all passes are of one bucket.

        Raises:
            EngineFailed: CTranslate2 failed.
        """
        first = passes[0]
        sampling = first.temperature > 0
        try:
            encoded = self._encode(passes)
            languages = self._detect(encoded, passes)
            prompts = [self._prompt(one, found[0][0]) for one, found in zip(passes, languages, strict=True)]
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
            found = [
                self._hypothesis(result, one, ranked)
                for result, one, ranked in zip(results, passes, languages, strict=True)
            ]
            texts = [[i for i in result.sequences_ids[0] if i < self._end] for result in results]
            return self._aligned(encoded, passes, found, texts)
        except (RuntimeError, ValueError) as error:
            raise EngineFailed(f"Whisper failed on a batch of {len(passes)}: {error}") from error

    def _encode(self, passes: Sequence[Pass]) -> ctranslate2.StorageView:
        """The encoder's output, made now or by an earlier pass over the same audio in the same window."""
        window = passes[0].window
        known = [one.encoding.get(window) for one in passes]
        if all(row is not None for row in known):
            return ctranslate2.StorageView.from_array(np.stack([row for row in known if row is not None]))
        features = np.empty((len(passes), self.mels, window), dtype=np.float32)
        for row, one in zip(features, passes, strict=True):
            fit(one.features, one.silence, window, row)
        encoded = self._model.encode(ctranslate2.StorageView.from_array(features))
        for one, output in zip(passes, _rows(encoded), strict=True):
            one.encoding.keep(window, output)
        return encoded

    def _detect(
        self, encoded: ctranslate2.StorageView, passes: Sequence[Pass]
    ) -> list[list[tuple[str, float | None]]]:
        """For each pass its language, or the detected ones, most probable first."""
        if not self.multilingual:
            return [[("en", None)] for _ in passes]
        given: list[list[tuple[str, float | None]]] = [[(one.language or "", None)] for one in passes]
        if all(one.language is not None for one in passes):
            return given
        found = self._model.detect_language(encoded)
        return [
            known if one.language is not None else [(str(token)[2:-2], float(p)) for token, p in ranked[:2]]
            for one, known, ranked in zip(passes, given, found, strict=True)
        ]

    def _prompt(self, one: Pass, language: str) -> list[int]:
        timeless = [] if one.timestamps else [self._no_timestamps]
        return [*one.hints, *self._sequence(language), *timeless]

    def _sequence(self, language: str) -> list[int]:
        task = [self._id(f"<|{language}|>"), self._transcribe] if self.multilingual else []
        return [self._start, *task]

    def _hypothesis(
        self,
        result: ctranslate2.models.WhisperGenerationResult,
        one: Pass,
        languages: Sequence[tuple[str, float | None]],
    ) -> Hypothesis:
        ids = result.sequences_ids[0]
        # Scores are means over the tokens made; the reference counts the end token too.
        logprob = result.scores[0] * len(ids) / (len(ids) + 1)
        language, probability = languages[0]
        return Hypothesis(
            self._decode([i for i in ids if i < self._end]).strip(),
            len(ids),
            float(logprob),
            float(result.no_speech_prob),
            len(ids) >= one.most_tokens,
            language,
            probability,
            languages[1][0] if len(languages) > 1 else None,
        )

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokens.decode(ids))

    def _aligned(
        self,
        encoded: ctranslate2.StorageView,
        passes: Sequence[Pass],
        found: list[Hypothesis],
        texts: Sequence[list[int]],
    ) -> list[Hypothesis]:
        """The hypotheses, those that need it with the times of their words."""
        wanted = [
            at
            for at, (one, h) in enumerate(zip(passes, found, strict=True))
            if texts[at] and _needs_times(one, h.text)
        ]
        for language in sorted({found[at].language or "" for at in wanted}):
            rows = [at for at in wanted if found[at].language == language]
            output = encoded
            if len(rows) < len(passes):
                output = ctranslate2.StorageView.from_array(np.ascontiguousarray(_rows(encoded)[rows]))
            aligned = self._model.align(
                output,
                self._sequence(language),
                [texts[at] for at in rows],
                [min(passes[at].features.shape[1], passes[at].window) for at in rows],
            )
            for at, one in zip(rows, aligned, strict=True):
                found[at] = self._timed(found[at], texts[at], one, passes[at])
        return found

    def _timed(
        self,
        hypothesis: Hypothesis,
        ids: list[int],
        aligned: ctranslate2.models.WhisperAlignmentResult,
        one: Pass,
    ) -> Hypothesis:
        times = TokenTimes.of(aligned.alignments, aligned.text_token_probs, len(ids), one.audio_s)
        language = hypothesis.language
        words = words_of(ids, times, self._decode, language=language, sounding=one.sounding)
        said = without_unsaid_end(words)
        return replace(
            hypothesis,
            text=hypothesis.text if len(said) == len(words) else join_texts([w.text for w in said], language),
            words=said,
            skipped_s=skipped_s(said, one.sounding),
            paced=paced(said),
            unsaid=len(words) - len(said),
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


def _needs_times(one: Pass, text: str) -> bool:
    doubtful = one.align is Align.IN_DOUBT and may_have_skipped(text, one.sounding)
    return doubtful or one.align is Align.ALWAYS or seems_to_repeat(text)


def _rows(encoded: ctranslate2.StorageView) -> Rows:
    """Encoder output in the host's memory; a view where it is there already."""
    if encoded.device != "cpu":
        encoded = encoded.to(ctranslate2.DataType.float32).to_device(ctranslate2.Device.cpu)
    rows: Rows = np.asarray(encoded)
    return rows
