"""Budgets: how many tokens per KV head a variant keeps, as a count or as a share of the context."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvbench.errors import UsageError


@dataclass(frozen=True)
class Budget:
    """A budget as it was asked for.

    Attributes:
        label: As written: "256" or "25%".
        tokens: Tokens per KV head, if it is a count.
        share: Share of the context, if it is a share, above 0 and at most 1.
    """

    label: str
    tokens: int | None = None
    share: Fraction | None = None

    def resolve(self, n: int) -> int:
        """Return the tokens per KV head to keep of a context of `n` tokens, from 1 to `n`.

        A share is rounded to the nearest token, halves up, by exact arithmetic.
        """
        wanted = self.tokens if self.tokens is not None else int((self.share or 0) * n + Fraction(1, 2))
        return min(max(wanted, 1), n)


def parse_budgets(text: str) -> list[Budget]:
    """Parse a comma-separated list of budgets such as `256,1024,25%`; repetitions are dropped.

    Raises:
        UsageError: The list is empty, or an entry is neither a whole number from 1 nor a share above 0 % and up
            to 100 %.
    """
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        raise UsageError("no budgets given: name some, e.g. 256,1024,25%")
    return list({budget.label: budget for budget in map(_parse, entries)}.values())


def _parse(entry: str) -> Budget:
    number = entry.removesuffix("%")
    try:
        if number == entry:
            tokens = int(entry)
            if tokens >= 1:
                return Budget(str(tokens), tokens=tokens)
        else:
            share = Fraction(number) / 100
            if 0 < share <= 1:
                return Budget(f"{float(share * 100):g}%", share=share)
    except (ValueError, ZeroDivisionError):
        pass
    raise UsageError(
        f"budget '{entry}' is not allowed: give tokens per KV head from 1 up (256), "
        "or a share of the context above 0% and up to 100% (25%)"
    )
