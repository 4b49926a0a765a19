"""What is measured of an engine: duration by batch size, trust that fades, and a breaker with one probe."""

from __future__ import annotations

import pytest

from voice.engine_health import MAX_SHAPES, TRUST_S, Breaker, ServiceRates


def test_the_duration_of_other_batch_sizes_follows_from_two_measured_ones() -> None:
    rates = ServiceRates()
    for _ in range(5):
        rates.add("a", 1, 0.11, 0.0)
        rates.add("a", 4, 0.14, 0.0)
    assert rates.seconds("a", 8, 0.0) == pytest.approx(0.18)
    assert rates.seconds("b", 8, 0.0) == 0.0  # another shape: unknown


def test_one_measured_size_says_nothing_about_others() -> None:
    rates = ServiceRates()
    rates.add("a", 4, 0.2, 0.0)
    rates.add("a", 4, 0.2, 0.0)
    assert rates.seconds("a", 1, 0.0) == rates.seconds("a", 16, 0.0) == pytest.approx(0.2)


def test_estimates_are_never_negative_and_never_fall_with_the_batch() -> None:
    rates = ServiceRates()
    for items, seconds in ((1, 0.5), (8, 0.1), (2, 0.01), (16, 0.9), (3, 0.0)):
        rates.add("a", items, seconds, 0.0)
        durations = [rates.seconds("a", n, 0.0) for n in range(1, 33)]
        assert durations[0] >= 0.0 and durations == sorted(durations)


def test_a_change_of_speed_is_learnt_within_a_few_dozen_calls() -> None:
    rates = ServiceRates()
    for _ in range(100):
        rates.add("a", 1, 1.0, 0.0)
    for _ in range(30):
        rates.add("a", 1, 0.1, 0.0)
    assert rates.seconds("a", 1, 0.0) < 0.15


def test_old_measurements_and_those_of_another_clock_refuse_nobody() -> None:
    rates = ServiceRates()
    rates.add("a", 1, 1.0, 10.0)
    assert rates.seconds("a", 1, 10.0 + TRUST_S) == pytest.approx(1.0)
    assert rates.seconds("a", 1, 10.1 + TRUST_S) == 0.0
    rates.distrust()
    assert rates.seconds("a", 1, 10.0) == 0.0 and rates.mean_s == pytest.approx(1.0)


def test_only_so_many_shapes_are_remembered() -> None:
    rates = ServiceRates()
    for shape in range(2 * MAX_SHAPES):
        rates.add(shape, 1, 1.0, 0.0)
        rates.add("often", 1, 1.0, 0.0)
    assert len(rates._fits) == MAX_SHAPES and rates.seconds("often", 1, 0.0) > 0.0


def test_an_open_breaker_lets_one_probe_through_after_the_cool_down() -> None:
    breaker = Breaker(1.0)
    assert breaker.lets_through(0.0)
    breaker.failed(5.0)
    assert not breaker.lets_through(5.9) and breaker.lets_through(6.0)
    breaker.start_probe("one")
    assert not breaker.lets_through(6.0)
    breaker.drop_probe("another")
    assert not breaker.lets_through(6.0)
    breaker.drop_probe("one")
    assert breaker.lets_through(6.0)
    breaker.succeeded()
    assert breaker.lets_through(0.0) and not breaker.is_open
