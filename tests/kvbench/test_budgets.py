"""Budgets: parsing and resolving by exact arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.budgets import parse_budgets
from kvbench.errors import UsageError


def test_counts_and_shares_are_told_apart_and_repetitions_dropped() -> None:
    budgets = parse_budgets("256, 1024,25%,256,25.0%,0.5%")
    assert [budget.label for budget in budgets] == ["256", "1024", "25%", "0.5%"]
    assert [budget.resolve(1000) for budget in budgets] == [256, 1000, 250, 5]


@pytest.mark.parametrize("entry", ["0", "-5", "abc", "300%", "0%", "-1%", "1.5", "1/0%", "%", "nan%", "1e3"])
def test_a_bad_budget_is_named_with_what_is_allowed(entry: str) -> None:
    with pytest.raises(UsageError, match="1 up") as error:
        parse_budgets(f"64,{entry}")
    assert f"'{entry}'" in str(error.value)


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_no_budgets_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no budgets"):
        parse_budgets(text)


@given(st.integers(1, 100), st.integers(1, 10**6))
def test_a_share_is_the_nearest_whole_number_of_tokens_and_never_none(percent: int, n: int) -> None:
    resolved = parse_budgets(f"{percent}%")[0].resolve(n)
    assert 1 <= resolved <= n
    assert abs(100 * resolved - percent * n) <= 50 or resolved == 1


@given(st.integers(1, 10**7), st.integers(1, 10**6))
def test_a_count_is_capped_by_the_context(tokens: int, n: int) -> None:
    assert parse_budgets(str(tokens))[0].resolve(n) == min(tokens, n)
