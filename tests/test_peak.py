from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvplan.peak import least_near, peak

SIZES = st.integers(1, 5000)


@given(top=SIZES, least=SIZES, span=st.integers(0, 5000), up=st.floats(0.1, 9))
def test_the_top_of_what_rises_and_falls(top: int, least: int, span: int, up: float) -> None:
    most = least + span
    found = peak(lambda n: (n - top) * up if n < top else top - n, least, most)
    assert found == min(max(top, least), most)


@given(last=SIZES, most=SIZES)
def test_the_last_that_is_possible(last: int, most: int) -> None:
    found = peak(lambda n: float(n) if n <= last else None, 1, most)
    assert found == min(last, most)


@given(top=SIZES, last=SIZES)
def test_a_top_before_or_beyond_what_is_possible(top: int, last: int) -> None:
    found = peak(lambda n: -abs(float(n - top)) if n <= last else None, 1, 10_000)
    assert found == min(top, last)


def test_nothing_is_possible() -> None:
    assert peak(lambda n: None, 1, 100) is None


@given(top=SIZES)
def test_a_plateau_is_left_for_its_smallest_number(top: int) -> None:
    assert least_near(lambda n: float(min(n, top)), 2 * top, 1, 0.0) == top
    assert least_near(lambda n: float(n), 1000, 1, 0.1) == 900
