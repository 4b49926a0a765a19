"""The words of audio that was handed in whole: they enter the history where its entry is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from voice.chat import UserEntry
from voice.errors import VoiceError, kind_of
from voice.events import Problem, UserSaid
from voice.interfaces import ASR_RATE_HZ, Pcm16
from voice.scope import Scope

if TYPE_CHECKING:
    from voice.controls import Controls
    from voice.listening import Listening


async def transcribe_entry(
    session: Controls, listening: Listening, entry: UserEntry, audio: Pcm16, scope: Scope
) -> None:
    """Recognise ``audio`` under a scope of its own below ``scope``. Who waits for the entry goes on in any case."""
    text, stage = "", scope.child("stage")
    audio_s = audio.size / ASR_RATE_HZ
    try:
        text, _ = await listening.words(audio, audio_s, stage, session.hints)
    except VoiceError as error:
        message = f"the user's words were lost: {error}"
        session.emit(Problem(message, kind_of(error), entry.item_id))
    finally:
        stage.close()
        if entry.recognised is not None:
            entry.recognised.set()
    entry.text = f"{entry.text} {text}".strip()
    session.emit(UserSaid(entry.item_id, text, audio_s))
