"""Is a scale worth its pilots? What policies won with such scales in the lab, where the truth is known."""


def expectation(better: bool) -> str:
    """What a policy may win with a scale that is, or is not, better than q ≡ 1 on unseen prompts: the mean, and 95 %
    prediction intervals (`python -m benchmarks.lab expect --seeds 4`; docs/method/when-q-helps.md)."""
    if better:
        worlds, scales, won, range_ = 17, "whose scale was better than q ≡ 1", 51.0, "48 to 54"
    else:
        worlds, scales, won, range_ = 55, "whose scale was not shown to be better", 50.5, "48 to 53"
    return (
        f"Worth it? In {worlds} simulated worlds {scales}, policies trained with it won {won} % against those with "
        f"q ≡ 1; in such a world expect {range_} %"
    )
