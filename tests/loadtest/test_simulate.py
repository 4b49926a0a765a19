"""The simulation: latencies that add up, queues that show, and knees that follow from what a turn takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.profile import Engine, Profile, Service, Spread
from loadtest.simulate import Load, Worker, plan_for, run, simulate
from loadtest.simulated_callers import Habits
from loadtest.validate import knee_of
from voice.errors import BadRequest

PLAIN = Habits(hesitates=0.0, barges_in=0.0, nods=0.0)
SHORT = replace(PLAIN, speech_s=(0.8, 1.2), think_s=(0.2, 0.6))
PROFILE = Profile(
    "constant",
    {"ears": Engine(64), "model": Engine(64), "voice": Engine(64)},
    {"recogniser": "ears", "model": "model", "synthesiser": "voice"},
    recognition=Service(0.05),
    first_token=Service(0.1),
    token=Service(0.02),
    first_audio=Service(0.06),
    audio_second=Service(0.1),
    pause_delay_s=Spread.always(0.14),
    turn_cpu_s=0.0,
    frame_cpu_s=0.0,
)
ONE_EAR = replace(
    PROFILE,
    engines={**PROFILE.engines, "ears": Engine(1)},
    recognition=Service(0.6),
)


def load(sessions: int, **options: object) -> Load:
    return Load(sessions, seconds=25.0, warm_up_s=6.0, habits=SHORT, answer_words=(4, 6), **options)  # type: ignore[arg-type]


def test_a_turn_takes_the_sum_of_its_stages() -> None:
    outcome = simulate(PROFILE, load(3))
    # pause 0.14, words 0.05, first token 0.1 and the rest of the sentence (3 to 5 tokens), sound 0.06
    assert outcome.percentile_s(5) >= 0.40 and outcome.percentile_s(95) <= 0.46
    assert outcome.turns > 10 and outcome.unanswered == outcome.problems == 0


def test_an_engine_with_one_place_makes_callers_wait_and_is_named_as_the_limit() -> None:
    few, many = simulate(ONE_EAR, load(2)), simulate(ONE_EAR, load(10))
    assert many.percentile_s(95) > few.percentile_s(95) + 0.5
    assert many.used["ears"] > 0.95 and many.waited_s["ears"] > 0.5
    for outcome, sessions in ((few, 2), (many, 10)):
        knees = plan_for(ONE_EAR, load(sessions), outcome, sessions).knees
        assert min(knees, key=lambda name: knees[name]) == "ears"
        # a turn takes 0.6 s of it, and a caller has one about every 4.6 s
        assert 5 <= knees["ears"] <= 9


def test_more_replicas_carry_more_sessions() -> None:
    one, two = simulate(ONE_EAR, load(9)), simulate(ONE_EAR, load(9, replicas={"ears": 2}))
    assert two.percentile_s(95) < one.percentile_s(95) - 0.3
    plan = plan_for(ONE_EAR, load(9, replicas={"ears": 2}), two, 100)
    assert 16 <= plan.replicas["ears"] <= 24 and plan.replicas["voice"] == 1


def test_a_worker_whose_frame_path_takes_most_of_its_processor_answers_late() -> None:
    busy = replace(PROFILE, frame_cpu_s=0.09, turn_cpu_s=0.05)
    free, late = simulate(busy, load(10, workers=5)), simulate(busy, load(10, workers=1))
    assert late.percentile_s(50) > free.percentile_s(50) + 0.05
    assert late.worker_load > 0.9 > free.worker_load


def test_a_workers_callbacks_are_served_one_after_another() -> None:
    worker = Worker(10, replace(PROFILE, frame_cpu_s=0.05, turn_cpu_s=0.12))  # half is gone, 10 ms a callback
    assert worker.delay(1.0) == pytest.approx(0.02)
    assert worker.delay(1.0) == pytest.approx(0.04)
    assert worker.delay(2.0) == pytest.approx(0.02)


def test_the_same_seed_gives_the_same_simulation() -> None:
    one, again, other = (simulate(ONE_EAR, load(6, seed=seed)) for seed in (3, 3, 4))
    assert one.latencies_s == again.latencies_s
    assert one.latencies_s != other.latencies_s


def test_barge_ins_nods_and_hesitations_leave_every_turn_answered() -> None:
    habits = Habits(hesitates=0.4, barges_in=0.4, nods=0.4, speech_s=(0.8, 2.0), think_s=(0.2, 0.6))
    outcome = simulate(PROFILE, replace(load(5), habits=habits, answer_words=(15, 25)))
    assert outcome.turns > 10 and outcome.unanswered == 0


def test_a_load_is_divided_over_processes_without_loss() -> None:
    whole = load(11, workers=5, replicas={"ears": 7})
    parts = [whole.part(number, 3) for number in range(3)]
    assert sum(part.sessions for part in parts) == 11
    assert sum(part.workers for part in parts) == 5
    assert sum(part.replicas["ears"] for part in parts) == 7
    assert len({part.seed for part in parts}) == 3
    with pytest.raises(BadRequest, match="replicas"):
        load(11, workers=5, replicas={"ears": 2}).part(0, 3)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_profile_is_simulated_from_its_file(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    PROFILE.write(path)
    assert run(path, load(2), 1, 50, as_json)
    told = capsys.readouterr().out
    assert '"p95_ms"' in told if as_json else "needed for 50 sessions" in told
    with pytest.raises(BadRequest, match="ears, model, voice"):
        run(path, load(2, replicas={"nose": 2}), 1, None, as_json)


def test_the_knee_lies_where_the_line_crosses_the_limit() -> None:
    assert knee_of([(10, 1.0), (20, 2.0), (30, 4.0)], 3.0) == pytest.approx(25.0)
    assert knee_of([(10, 1.0), (20, 2.0)], 3.0) is None
