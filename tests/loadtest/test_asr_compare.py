"""The quality gate's judgement: paired, by slice, against stated limits; and what it keeps of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from loadtest.asr_compare import ALL, Limits, Row, compare_in, compare_with, interval
from loadtest.asr_engines import Heard
from loadtest.asr_report import page
from loadtest.asr_results import Accuracy, Sample, failures, read, total, write
from loadtest.asr_tails import words_after, words_changed
from voice.errors import BadRequest

SAID = "one thing after the other and so on until ten"  # ten words
LIMITS = Limits(points=1.0, words=2, cpu_share=1.2)


def heard(wrong: int, cpu_s: float = 1.0) -> Heard:
    words = SAID.split()
    return Heard(" ".join(["wrong"] * wrong + words[wrong:]), cpu_s, cpu_s / 2)


def result(*wrong: dict[str, int], slices: tuple[str, ...] = ("clean",), cpu_s: float = 1.0) -> Accuracy:
    samples = [
        Sample(kind, f"number {n}", SAID, 2.0, {engine: heard(count, cpu_s) for engine, count in one.items()})
        for kind in slices
        for n, one in enumerate(wrong)
    ]
    return Accuracy("0", "made", 1, "idle", "int8", tuple(wrong[0]), tuple(samples))


def broken(rows: list[Row]) -> list[str]:
    return [row.slice for row in rows if row.broken]


def test_a_slice_passes_with_as_many_errors_as_the_limits_allow_and_fails_with_one_more() -> None:
    good = result({"ours": 2, "theirs": 1}, {"ours": 1, "theirs": 0})
    bad = result({"ours": 2, "theirs": 0}, {"ours": 1, "theirs": 0})

    assert broken(compare_in(good, "ours", "theirs", LIMITS)) == []
    assert broken(compare_in(bad, "ours", "theirs", LIMITS)) == ["clean"]
    assert broken(compare_in(bad, "ours", "theirs", replace(LIMITS, points=15.0))) == []


def test_each_slice_is_judged_by_itself() -> None:
    both = result({"ours": 3, "theirs": 0}, slices=("clean", "long"))
    samples = [
        one if one.slice == "long" else replace(one, heard={"ours": heard(0), "theirs": heard(0)})
        for one in both.samples
    ]

    rows = compare_in(replace(both, samples=tuple(samples)), "ours", "theirs", LIMITS)

    assert [row.slice for row in rows] == ["clean", "long", ALL] and broken(rows) == ["long"]


def test_processor_time_is_limited_in_each_slice_or_over_all() -> None:
    slow = result({"ours": 0, "theirs": 0}, slices=("clean", "long"), cpu_s=1.0)
    samples = [
        replace(one, heard={"ours": heard(0, 2.0 if one.slice == "long" else 0.1), "theirs": heard(0)})
        for one in slow.samples
    ]
    slow = replace(slow, samples=tuple(samples))

    assert broken(compare_in(slow, "ours", "theirs", LIMITS)) == ["long"]
    assert broken(compare_in(slow, "ours", "theirs", replace(LIMITS, cpu_per_slice=False))) == []
    assert broken(compare_in(slow, "ours", "theirs", Limits(1.0, 2, 1.0, cpu_per_slice=False))) == [ALL]


def test_a_candidate_is_paired_with_a_baseline_in_any_order() -> None:
    baseline = result({"ours": 1}, {"ours": 0}, {"ours": 0})
    candidate = replace(
        baseline, samples=tuple(reversed(result({"ours": 1}, {"ours": 4}, {"ours": 0}).samples))
    )

    (row, _) = compare_with(candidate, baseline, "ours", LIMITS)

    assert (row.candidate.total, row.other.total, len(row.broken)) == (5, 1, 1)
    assert row.difference[0] == 0 and row.difference[1] > 4


def test_another_engine_is_compared_with_the_baseline_s_first() -> None:
    (row, _) = compare_with(result({"new": 0}), result({"ours": 3, "theirs": 0}), "new", LIMITS)
    assert (row.candidate.total, row.other.total) == (0, 3)


def test_a_baseline_of_other_speech_is_refused() -> None:
    mine = result({"ours": 0}, {"ours": 0})

    with pytest.raises(BadRequest, match="other speech"):
        compare_with(mine, replace(mine, samples=mine.samples[:1]), "ours", LIMITS)
    longer = tuple(replace(one, seconds=3.0) for one in mine.samples)
    with pytest.raises(BadRequest, match="other audio"):
        compare_with(mine, replace(mine, samples=longer), "ours", LIMITS)


def test_the_difference_is_surer_the_more_utterances_agree() -> None:
    assert interval([]) == (0.0, 0.0) and interval([1] * 50) == (50.0, 50.0)
    low, high = interval([5, -5] * 20)
    assert low < -30 and high > 30


def test_what_is_kept_can_be_read_again(tmp_path: Path) -> None:
    made = result({"ours": 2, "theirs": 0}, {"ours": 0, "theirs": 0}, slices=("clean", "noise5"))
    assert total(made.of(None), "ours").errors.total == 4  # computed figures are not kept
    write(made, tmp_path / "base.json")

    again = read(tmp_path / "base.json")

    assert again == made and "errors" not in (tmp_path / "base.json").read_text()
    assert [one.name for one in failures(again, "ours")] == ["number 0", "number 0"]
    assert total(again.of("clean"), "ours").rtf == pytest.approx(0.5)


@pytest.mark.parametrize("text", ["", "{}", "[]", "\xff", '{"voice": 1}'])
def test_another_file_is_no_baseline(tmp_path: Path, text: str) -> None:
    (tmp_path / "base.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(BadRequest, match="is not what"):
        read(tmp_path / "base.json")


def test_a_damaged_baseline_is_refused(tmp_path: Path) -> None:
    path, good = tmp_path / "base.json", msgspec.json.decode(msgspec.json.encode(result({"ours": 0})))
    with pytest.raises(BadRequest, match="can't be read"):
        read(path)
    changes: list[dict[str, object]] = [
        {"format": 99},
        {"samples": []},
        {"engines": ["ours", "theirs"]},
        {"samples": [{**good["samples"][0], "seconds": -1.0}]},
    ]
    for change in changes:
        path.write_bytes(msgspec.json.encode({**good, **change}))
        with pytest.raises(BadRequest):
            read(path)


def test_the_page_holds_every_failure_and_no_markup_of_what_was_heard() -> None:
    made = result({"ours": 1, "theirs": 0})
    heard_badly = {
        "ours": Heard("<script>alert(1)</script>", 1.0, 1.0),
        "theirs": Heard("", 1.0, 1.0, "no_speech"),
    }
    made = replace(made, samples=(replace(made.samples[0], heard=heard_badly),))

    text = page(made, [("ours against theirs", compare_in(made, "ours", "theirs", LIMITS))])

    assert "&lt;script&gt;alert(1)" in text and "<script>" not in text
    assert SAID in text and "rejected: no_speech" in text and "http" not in text


# ---------------------------------------------------------------- words after words


@pytest.mark.parametrize(
    ("said", "found", "words"),
    [
        ("hello there", "Hello there.", 0),
        ("hello there", "Hello there. Thank you.", 2),
        ("the conference", "the conferences", 0),
        ("the weather in Madrid", "the weather and mid-grid", 0),
        ("hello there", "", 0),
        ("hello there", "hello", 0),
        ("", "thank you", 2),
    ],
)
def test_words_after_the_speech_are_counted(said: str, found: str, words: int) -> None:
    assert words_after(said, found) == words


@pytest.mark.parametrize(
    ("settled", "final", "counts"),
    [
        ("the cat", "The cat sat.", (2, 0)),
        ("the cat", "a cat sat", (2, 1)),
        ("the cat", "", (2, 2)),
        ("", "the cat", (0, 0)),
        ("the the cat", "the cat sat", (3, 1)),
    ],
)
def test_settled_words_that_the_final_text_changes_are_counted(
    settled: str, final: str, counts: tuple[int, int]
) -> None:
    assert words_changed(settled, final) == counts
