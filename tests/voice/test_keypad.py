import random

import pytest

from voice.errors import BadRequest
from voice.keypad import KEYS, Keypad


def test_the_hash_key_ends_an_input_and_is_not_part_of_it() -> None:
    pad = Keypad()
    assert [pad.press(key, 0.3 * i) for i, key in enumerate("123#")] == [None, None, None, "123"]
    assert pad.due is None


def test_a_pause_ends_an_input() -> None:
    pad = Keypad(finish_s=2.0)
    pad.press("5", 10.0)
    assert pad.due == 12.0
    assert pad.expire(11.9) is None
    assert pad.expire(12.0) == "5"
    assert pad.due is None and pad.expire(99.0) is None


def test_each_key_gives_the_caller_the_whole_pause_again() -> None:
    pad = Keypad(finish_s=2.0)
    pad.press("5", 10.0)
    pad.press("6", 11.5)
    assert pad.expire(12.0) is None
    assert pad.expire(13.5) == "56"


def test_a_hash_key_alone_is_an_input_of_its_own() -> None:
    pad = Keypad()
    assert pad.press("#", 0.0) == "#"
    assert [pad.press(key, 0.0) for key in "1#"] == [None, "1"]


def test_a_star_and_the_letters_are_keys_like_others() -> None:
    pad = Keypad()
    assert [pad.press(key, 0.0) for key in "*A9D#"][-1] == "*A9D"


def test_the_longest_input_is_complete_by_itself_and_no_key_is_lost() -> None:
    pad = Keypad(max_keys=3)
    assert [pad.press(key, 0.0) for key in "1234567"] == [None, None, "123", None, None, "456", None]
    assert pad.keys == "7"


def test_without_a_terminator_the_hash_key_is_like_others() -> None:
    pad = Keypad(terminator=None)
    assert pad.press("1", 0.0) is None and pad.press("#", 0.0) is None
    assert pad.expire(2.0) == "1#"


@pytest.mark.parametrize("key", ["", "12", "e", "a", " ", "٣", None, 5])
def test_what_is_no_key_is_refused_and_the_rest_stays(key: object) -> None:
    pad = Keypad()
    pad.press("1", 0.0)
    with pytest.raises(BadRequest, match="not a key"):
        pad.press(key, 0.1)  # type: ignore[arg-type]
    assert pad.press("#", 0.2) == "1"


def test_impossible_settings_are_refused() -> None:
    for wrong in ({"finish_s": 0.0}, {"max_keys": 0}, {"terminator": "x"}):
        with pytest.raises(BadRequest):
            Keypad(**wrong)  # type: ignore[arg-type]


def test_what_was_collected_can_be_forgotten() -> None:
    pad = Keypad()
    pad.press("1", 0.0)
    pad.clear()
    assert pad.due is None and pad.keys == ""


def test_whatever_is_pressed_and_whenever_every_key_arrives_once_and_in_order() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        pad, now, pressed, arrived = Keypad(max_keys=4), 0.0, "", ""
        for _ in range(40):
            now += rng.choice([0.1, 1.0, 1.9, 2.5])
            arrived += pad.expire(now) or ""
            key = rng.choice(sorted(KEYS - {"#"}))
            pressed += key
            arrived += pad.press(key, now) or ""
        arrived += pad.expire(now + 2.0) or ""
        assert arrived == pressed, f"seed {seed}"
