"""How a Realtime client says whose turn it is, and what the turn taker makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from realtime_settings import config, hearing, refused, refused_response
from talk import make_agent

from voice.options import TurnOptions


def test_server_vad_ends_a_turn_after_the_silence_that_the_client_set() -> None:
    base = TurnOptions(max_turn_s=60.0)
    detection = {"type": "server_vad", "threshold": 0.8, "prefix_padding_ms": 100, "silence_duration_ms": 90}
    options = config(**hearing(turn_detection=detection)).turn_options(base)
    assert (options.mode, options.speech_threshold, options.pre_roll_s) == ("automatic", 0.8, 0.1)
    assert options.min_delay_s == options.max_delay_s == 0.09
    assert options.pause_s <= options.min_delay_s
    assert options.max_turn_s == 60.0


def test_values_beyond_what_the_turn_taker_can_do_are_moved_to_the_nearest_and_echoed() -> None:
    detection = {"threshold": 0, "prefix_padding_ms": 5000, "silence_duration_ms": 0}
    done = config(**hearing(turn_detection=detection))
    wire: Any = done.wire()["audio"]["input"]["turn_detection"]  # type: ignore[index]
    assert (wire["threshold"], wire["prefix_padding_ms"], wire["silence_duration_ms"]) == (0.05, 1000, 50)
    done.turn_options(TurnOptions())


def test_an_idle_timeout_is_there_only_for_clients_that_ask() -> None:
    asked = config(**hearing(turn_detection={"type": "server_vad", "idle_timeout_ms": 6000}))
    assert asked.turn_options(TurnOptions()).idle_s == 6.0
    again = asked.updated({"type": "realtime", **hearing(turn_detection={"idle_timeout_ms": None})})
    assert again.turn_options(TurnOptions()).idle_s is None


@pytest.mark.parametrize(
    ("eagerness", "min_delay_s", "max_delay_s"),
    [("low", 0.4, 8.0), ("medium", 0.4, 4.0), ("high", 0.3, 2.0), ("auto", 0.4, 4.0)],
)
def test_semantic_vad_waits_longer_for_words_that_look_unfinished(
    eagerness: str, min_delay_s: float, max_delay_s: float
) -> None:
    done = config(**hearing(turn_detection={"type": "semantic_vad", "eagerness": eagerness}))
    options = done.turn_options(TurnOptions())
    assert (options.min_delay_s, options.max_delay_s) == (min_delay_s, max_delay_s)
    assert done.wire()["audio"]["input"]["turn_detection"] == {  # type: ignore[index]
        "type": "semantic_vad",
        "eagerness": eagerness,
        "create_response": True,
        "interrupt_response": True,
    }


@pytest.mark.parametrize("eagerness", ["low", "medium", "high", "auto"])
def test_semantic_vad_fits_an_agent_of_any_patience(eagerness: str) -> None:
    done = config(**hearing(turn_detection={"type": "semantic_vad", "eagerness": eagerness}))
    for base in (
        TurnOptions(min_delay_s=20.0, max_delay_s=30.0),
        TurnOptions(pause_s=0.05, min_delay_s=0.05, max_delay_s=0.05),
        TurnOptions(pause_s=5.0, min_delay_s=5.0, max_delay_s=5.0),
    ):
        done.turn_options(base)


def test_another_type_of_turn_detection_starts_from_its_defaults() -> None:
    done = config(
        **hearing(turn_detection={"type": "server_vad", "threshold": 0.9, "create_response": False})
    )
    done = done.updated({"type": "realtime", **hearing(turn_detection={"type": "semantic_vad"})})
    done = done.updated({"type": "realtime", **hearing(turn_detection={"type": "server_vad"})})
    assert done.turn_detection == config().turn_detection


def test_turn_detection_that_was_off_needs_a_type_to_come_back() -> None:
    off = config(**hearing(turn_detection=None))
    patch = {"type": "realtime", **hearing(turn_detection={"threshold": 0.5})}
    assert refused(patch, on=off).code == "missing_required_parameter"


def test_a_client_that_answers_or_interrupts_by_itself_says_so() -> None:
    detection = {"create_response": False, "interrupt_response": False}
    options = config(**hearing(turn_detection=detection)).turn_options(TurnOptions())
    assert (options.respond, options.interrupt) == (False, False)


def test_a_transcription_session_only_listens() -> None:
    agent = make_agent()
    done = config(agent).updated(
        {
            "type": "transcription",
            **hearing(
                transcription={"model": "gpt-4o-transcribe", "language": "en"},
                turn_detection={"threshold": 0.4},
            ),
        },
        first=True,
    )
    assert done.turn_options(TurnOptions()).respond is False
    wire = done.wire()
    assert set(wire) == {"type", "object", "id", "expires_at", "audio", "include"}
    assert wire["object"] == "realtime.transcription_session"
    assert done.updated(wire) == done
    assert refused({"type": "transcription", "instructions": "x"}, on=done).code == "unknown_parameter"
    assert refused_response(None, on=done)
    patch = {"type": "transcription", **hearing(transcription=None)}
    assert refused(patch, on=done).param == "session.audio.input.transcription"
