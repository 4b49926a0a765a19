"""What a Realtime client may set in its session, what it is told, and what the session makes of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from realtime_json import nested
from realtime_settings import FULL, TOOL, config, hearing, refused
from talk import make_agent

from voice.audio import AudioFormat
from voice.interfaces import ModelOptions, RecogniserCapabilities
from voice.options import TurnOptions
from voice.testing import ScriptedRecogniser, ToneSynthesiser

# ---------------------------------------------------------------- defaults and echo


def test_a_fresh_session_shows_what_the_agent_brings() -> None:
    turns = TurnOptions(speech_threshold=0.6, pre_roll_s=0.25, min_delay_s=0.7)
    agent = make_agent(turns=turns, voice="ann", language="en", model_options=ModelOptions(max_tokens=200))
    wire = config(agent).wire()
    assert wire == {
        "type": "realtime",
        "object": "realtime.session",
        "id": "sess_1",
        "model": "gpt-realtime",
        "expires_at": 1_900_000_000,
        "output_modalities": ["audio"],
        "instructions": "be brief",
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": 200,
        "truncation": "auto",
        "tracing": None,
        "prompt": None,
        "include": None,
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24_000},
                "transcription": {"model": "scripted-recogniser", "language": "en"},
                "noise_reduction": None,
                "turn_detection": {
                    "type": "server_vad",
                    "threshold": 0.6,
                    "prefix_padding_ms": 250,
                    "silence_duration_ms": 700,
                    "idle_timeout_ms": None,
                    "create_response": True,
                    "interrupt_response": True,
                },
            },
            "output": {"format": {"type": "audio/pcm", "rate": 24_000}, "voice": "ann", "speed": 1.0},
        },
    }


def test_an_untouched_session_runs_as_the_agent_says_except_that_it_never_speaks_unasked() -> None:
    turns = TurnOptions(speech_threshold=0.6, min_delay_s=0.3, max_delay_s=2.0, interrupt=False)
    fresh = config(make_agent(turns=turns))
    assert fresh.turn_options(turns) == replace(turns, idle_s=None)
    answers = fresh.answer_options()
    assert (answers.instructions, answers.voice, answers.max_tokens, answers.tool_choice) == (None,) * 4
    assert answers.speak and answers.tools == ()
    assert fresh.input_format == fresh.output_format == AudioFormat("pcm16", 24_000)
    assert fresh.language == "en"


def test_an_agent_with_manual_turns_has_no_turn_detection() -> None:
    fresh = config(make_agent(turns=TurnOptions(mode="manual")))
    assert fresh.wire()["audio"]["input"]["turn_detection"] is None  # type: ignore[index]


def test_the_instructions_can_be_hidden_from_the_echo() -> None:
    assert "instructions" not in config(instructions="secret").wire(hide_instructions=True)


# ---------------------------------------------------------------- session.update


def test_everything_the_protocol_has_can_be_set_at_once_and_the_echo_tells_what_is_in_force() -> None:
    done = config(**FULL)
    wire: Any = done.wire()
    assert wire["instructions"] == "Talk like a pirate."
    assert wire["output_modalities"] == ["text"]
    assert wire["audio"]["input"]["format"] == {"type": "audio/pcmu"}
    assert wire["audio"]["input"]["turn_detection"] == FULL["audio"]["input"]["turn_detection"]
    assert wire["audio"]["output"] == {"format": {"type": "audio/pcma"}, "voice": "bob", "speed": 1.0}
    assert wire["audio"]["input"]["noise_reduction"] is None
    assert wire["audio"]["input"]["transcription"]["model"] == "scripted-recogniser"
    assert wire["tools"] == [TOOL]
    assert wire["tool_choice"] == {"type": "function", "name": "book"}
    assert wire["max_output_tokens"] == 300
    assert (wire["truncation"], wire["tracing"], wire["include"]) == ("auto", None, None)
    answers = done.answer_options()
    assert answers.instructions == "Talk like a pirate."
    assert (answers.tool_choice, answers.max_tokens, answers.voice, answers.speak) == (
        "book",
        300,
        "bob",
        False,
    )
    assert [tool.name for tool in answers.tools] == ["book"]
    assert done.input_format == AudioFormat("pcmu", 8_000)
    assert done.output_format == AudioFormat("pcma", 8_000)


def test_only_what_is_present_changes_and_nested_objects_merge() -> None:
    first = config(**FULL)
    second = first.updated({"type": "realtime", **hearing(turn_detection={"threshold": 0.3})})
    now, before = second.turn_detection, first.turn_detection
    assert now and before and now == replace(before, threshold=0.3)
    assert replace(second, turn_detection=before) == first
    tools_only = first.updated({"type": "realtime", "tools": []})
    assert tools_only.tools == () and tools_only.instructions == first.instructions


def test_null_switches_off_turn_detection_and_transcription() -> None:
    off = config(**hearing(turn_detection=None, transcription=None, noise_reduction=None))
    wire: Any = off.wire()
    assert wire["audio"]["input"]["turn_detection"] is None
    assert wire["audio"]["input"]["transcription"] is None
    options = off.turn_options(TurnOptions(idle_s=5.0))
    assert (options.mode, options.idle_s, options.respond) == ("manual", None, False)


def test_null_puts_other_settings_back_to_the_default() -> None:
    back = config(**FULL).updated(
        {
            "type": "realtime",
            "instructions": None,
            "output_modalities": None,
            "tools": None,
            "tool_choice": None,
            "max_output_tokens": None,
            "audio": {
                "input": {"format": None, "turn_detection": {"threshold": None, "silence_duration_ms": None}},
                "output": {"format": None, "voice": None, "speed": None},
            },
        }
    )
    wire, fresh = back.wire(), config().wire()
    for key in ("instructions", "output_modalities", "tools", "tool_choice", "max_output_tokens"):
        assert wire[key] == fresh[key]
    assert wire["audio"]["output"] == fresh["audio"]["output"]  # type: ignore[index]
    assert back.turn_detection and back.turn_detection.threshold is None


@pytest.mark.parametrize(
    "patch", [{}, FULL, hearing(turn_detection={"type": "semantic_vad", "eagerness": "high"})]
)
def test_what_was_echoed_can_be_sent_back_and_changes_nothing(patch: dict[str, Any]) -> None:
    before = config(**patch)
    assert before.updated(before.wire()) == before
    own = {
        key: value
        for key, value in before.wire().items()
        if key not in ("id", "object", "expires_at", "model")
    }
    assert before.updated(own) == before


def test_an_echo_sent_back_keeps_a_longest_wait_that_the_protocol_can_not_express() -> None:
    turns = TurnOptions(min_delay_s=0.3, max_delay_s=2.0)
    fresh = config(make_agent(turns=turns))
    assert fresh.updated(fresh.wire()).turn_options(turns).max_delay_s == 2.0


def test_a_client_must_say_the_type_of_session_in_every_update() -> None:
    error = refused({"instructions": "x"})
    assert (error.code, error.param) == ("missing_required_parameter", "session.type")
    assert refused({"type": "translation"}).param == "session.type"


def test_the_type_can_be_chosen_once() -> None:
    assert config().updated({"type": "transcription"}, first=True).type == "transcription"
    assert refused({"type": "transcription"}).param == "session.type"
    assert config().updated({"type": "realtime"}).type == "realtime"


def test_the_model_can_be_named_in_the_first_update_and_then_stays() -> None:
    named = config(model="gpt-other")
    assert named.wire()["model"] == "gpt-other"
    assert named.updated({"type": "realtime", "model": "gpt-other"}) == named
    assert refused({"type": "realtime", "model": "another"}, on=named).param == "session.model"


def test_the_voice_can_not_change_once_it_was_heard() -> None:
    bob = config(audio={"output": {"voice": "bob"}})
    assert bob.updated({"type": "realtime", "audio": {"output": {"voice": "eve"}}}).voice == "eve"
    error = refused({"type": "realtime", "audio": {"output": {"voice": "eve"}}}, on=bob, audio_made=True)
    assert (error.code, error.param) == ("cannot_update_voice", "session.audio.output.voice")
    same = {"type": "realtime", "instructions": "x", "audio": {"output": {"voice": "bob"}}}
    assert bob.updated(same, audio_made=True).instructions == "x"


def test_the_vendors_voices_stand_for_the_agents_voice() -> None:
    for voice in ("marin", "alloy", {"id": "cedar"}):
        done = config(make_agent(voice="ann"), audio={"output": {"voice": voice}})
        assert done.answer_options().voice is None
        assert done.wire()["audio"]["output"]["voice"] == "ann"  # type: ignore[index]
        done.updated({"type": "realtime", "audio": {"output": {"voice": "verse"}}}, audio_made=True)


def test_a_voice_that_the_synthesiser_does_not_have_is_refused_when_it_tells_its_voices() -> None:
    synthesiser = ToneSynthesiser()
    synthesiser.voices = ("ann", "alloy")  # type: ignore[attr-defined]
    agent = make_agent(synthesiser=synthesiser, voice="ann")
    assert config(agent, audio={"output": {"voice": "alloy"}}).voice == "alloy"
    error = refused({"type": "realtime", "audio": {"output": {"voice": "bob"}}}, on=config(agent))
    assert error.param == "session.audio.output.voice" and "'ann'" in error.message


def test_a_language_is_taken_if_the_recogniser_hears_it() -> None:
    recogniser = ScriptedRecogniser(["Hallo."])
    recogniser.capabilities = RecogniserCapabilities(languages=("en", "de"))
    agent = make_agent(recogniser=recogniser)
    assert config(agent).language == "en"
    assert config(agent, **hearing(transcription={"language": "de-AT"})).language == "de"
    patch = {"type": "realtime", **hearing(transcription={"model": "x", "language": "fr"})}
    error = refused(patch, on=config(agent))
    assert error.param == "session.audio.input.transcription.language" and "'de'" in error.message


def test_hints_are_kept_only_for_a_recogniser_that_takes_them() -> None:
    hints = {"prompt": "a call about boats", "keywords": ["keel", "Zoë"]}
    assert config(**hearing(transcription=hints)).wire()["audio"]["input"]["transcription"] == {  # type: ignore[index]
        "model": "scripted-recogniser",
        "language": "en",
    }
    recogniser = ScriptedRecogniser(["Hello."])
    recogniser.capabilities = RecogniserCapabilities(hints=True)
    done = config(make_agent(recogniser=recogniser), **hearing(transcription=hints))
    assert done.transcription and done.transcription.keywords == ("keel", "Zoë")
    assert done.wire()["audio"]["input"]["transcription"]["prompt"] == hints["prompt"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("patch", "param", "says"),
    [
        ({"modalities": ["audio"]}, "session.modalities", "output_modalities"),
        ({"voice": "alloy"}, "session.voice", "audio.output.voice"),
        ({"turn_detection": None}, "session.turn_detection", "audio.input.turn_detection"),
        ({"input_audio_format": "pcm16"}, "session.input_audio_format", "audio.input.format"),
        ({"output_audio_format": "pcm16"}, "session.output_audio_format", "audio.output.format"),
        ({"input_audio_transcription": {}}, "session.input_audio_transcription", "audio.input.transcription"),
        ({"max_response_output_tokens": 5}, "session.max_response_output_tokens", "max_output_tokens"),
        ({"temperature": 0.8}, "session.temperature", "removed"),
        ({"colour": "red"}, "session.colour", "Unknown"),
        ({"audio": {"sound": {}}}, "session.audio.sound", "Unknown"),
        (
            hearing(turn_detection={"type": "server_vad", "hue": 1}),
            "session.audio.input.turn_detection.hue",
            "Unknown",
        ),
    ],
)
def test_a_name_that_is_not_of_this_protocol_is_refused_with_the_right_one(
    patch: dict[str, Any], param: str, says: str
) -> None:
    error = refused({"type": "realtime", **patch})
    assert (error.code, error.param) == ("unknown_parameter", param)
    assert says in error.message


PCM16K = {"type": "audio/pcm", "rate": 16_000}
IN = "session.audio.input"


@pytest.mark.parametrize(
    ("patch", "code", "param"),
    [
        (hearing(format=PCM16K), "invalid_value", f"{IN}.format.rate"),
        (hearing(format="pcm16"), "invalid_type", f"{IN}.format"),
        (hearing(format={"rate": 24000}), "missing_required_parameter", f"{IN}.format.type"),
        (hearing(turn_detection={"threshold": 1.5}), "invalid_value", f"{IN}.turn_detection.threshold"),
        (hearing(turn_detection={"threshold": math.nan}), "invalid_value", f"{IN}.turn_detection.threshold"),
        (hearing(turn_detection={"threshold": True}), "invalid_type", f"{IN}.turn_detection.threshold"),
        (hearing(turn_detection={"type": "vad"}), "invalid_value", f"{IN}.turn_detection.type"),
        (hearing(turn_detection={"prefix_padding_ms": -1}), "invalid_value", f"{IN}.turn_detection.prefix_padding_ms"),
        (hearing(turn_detection={"idle_timeout_ms": 0.5}), "invalid_type", f"{IN}.turn_detection.idle_timeout_ms"),
        (hearing(turn_detection={"create_response": 1}), "invalid_type", f"{IN}.turn_detection.create_response"),
        (hearing(noise_reduction={"type": "loud"}), "invalid_value", f"{IN}.noise_reduction.type"),
        ({"output_modalities": ["audio", "text"]}, "invalid_value", "session.output_modalities"),
        ({"output_modalities": "audio"}, "invalid_type", "session.output_modalities"),
        ({"instructions": 5}, "invalid_type", "session.instructions"),
        ({"instructions": "x" * 100_001}, "string_above_max_length", "session.instructions"),
        ({"instructions": "\ud800"}, "invalid_value", "session.instructions"),
        ({"max_output_tokens": 0}, "invalid_value", "session.max_output_tokens"),
        ({"max_output_tokens": 4097}, "invalid_value", "session.max_output_tokens"),
        ({"max_output_tokens": "lots"}, "invalid_value", "session.max_output_tokens"),
        ({"audio": {"output": {"speed": 3}}}, "invalid_value", "session.audio.output.speed"),
        ({"audio": {"output": {"voice": 7}}}, "invalid_type", "session.audio.output.voice"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "invalid_value", "session.tools[0].type"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "session.tools[0].name"),
        ({"tools": [{"type": "function", "function": {}}]}, "unknown_parameter", "session.tools[0].function"),
        ({"tools": [{**TOOL, "name": "no spaces"}]}, "invalid_value", "session.tools[0].name"),
        ({"tools": [TOOL, TOOL]}, "invalid_value", "session.tools[1].name"),
        ({"tools": [TOOL] * 129}, "invalid_value", "session.tools"),
        ({"tools": [{**TOOL, "parameters": []}]}, "invalid_type", "session.tools[0].parameters"),
        ({"tools": [{**TOOL, "parameters": {"x": nested(100)}}]}, "invalid_value", "session.tools[0].parameters"),
        ({"tools": [{**TOOL, "parameters": {"x": "y" * 70_000}}]}, "invalid_value", "session.tools[0].parameters"),
        ({"tools": [{**TOOL, "parameters": {"x": math.inf}}]}, "invalid_value", "session.tools[0].parameters"),
        ({"tool_choice": "maybe"}, "invalid_value", "session.tool_choice"),
        ({"tool_choice": {"type": "function", "name": "book"}}, "invalid_value", "session.tool_choice.name"),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "invalid_value", "session.tool_choice.type"),
        ({"truncation": "some"}, "invalid_value", "session.truncation"),
        ({"tracing": 5}, "invalid_type", "session.tracing"),
        ({"prompt": {"id": "pmpt_1"}}, "invalid_value", "session.prompt"),
        ({"id": "sess_other"}, "invalid_value", "session.id"),
        ({"audio": 5}, "invalid_type", "session.audio"),
    ],
)  # fmt: skip
def test_an_impossible_setting_is_refused_with_its_path(patch: dict[str, Any], code: str, param: str) -> None:
    error = refused({"type": "realtime", **patch})
    assert (error.code, error.param) == (code, param)


def test_a_refused_update_changes_nothing() -> None:
    before = config()
    refused({"type": "realtime", "instructions": "new", "max_output_tokens": -1}, on=before)
    assert before == config()


def test_tools_in_all_are_bounded_so_that_the_echo_fits_one_message_of_every_client() -> None:
    big = {"type": "object", "properties": {"x": {"type": "string", "description": "d" * 60_000}}}
    tools = [{**TOOL, "name": f"tool{n}", "parameters": big} for n in range(5)]
    assert refused({"type": "realtime", "tools": tools}).param == "session.tools"
    full = config(instructions="\x00" * 100_000, tools=tools[:4])
    assert len(msgspec.json.encode(full.wire())) < 2**20


def test_a_client_can_not_replace_the_agents_own_tools_but_can_force_one() -> None:
    def book(people: int) -> str:
        """Book a table."""
        return "done"

    agent = make_agent(tools=[book])
    assert refused({"type": "realtime", "tools": [TOOL]}, on=config(agent)).param == "session.tools[0].name"
    assert (
        refused({"type": "realtime", "tools": [TOOL]}, agent_tools={"book"}).param == "session.tools[0].name"
    )
    forced = config(agent, tool_choice={"type": "function", "name": "book"})
    assert forced.answer_options().tool_choice == "book"
    assert forced.wire()["tools"] == []


def test_a_forced_tool_that_is_taken_away_is_forced_no_more() -> None:
    forced = config(tools=[TOOL], tool_choice={"type": "function", "name": "book"})
    assert forced.updated({"type": "realtime", "tools": []}).wire()["tool_choice"] == "auto"
