from __future__ import annotations

from agent.inspect.wrap import counted


def test_one_is_not_several() -> None:
    """The word for one stands with 1 alone; thousands are set apart."""
    assert [counted(n, "rule") for n in (0, 1, 2, 1240)] == [
        "0 rules",
        "1 rule",
        "2 rules",
        "1,240 rules",
    ]
    assert [counted(n, "lottery", "lotteries") for n in (1, 21)] == ["1 lottery", "21 lotteries"]
