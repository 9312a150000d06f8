"""What a summary's numbers mean, in words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def tables_of(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """A panel's tables by judge; a single judge has no name."""
    return dict(report["judges"]) or {"": report}


def remarks(report: Mapping[str, Any], methods: Mapping[str, str]) -> Iterator[str]:
    """What a reader of a panel's tables should know about them and their judges. `methods` are the policies'
    objectives."""
    for judge, tables in tables_of(report).items():
        best = best_settings(tables["against"][report["baseline"]], methods)
        if best:
            by = f", by {judge}" if judge else ""
            yield f"the best setting of each method by ΔR{by}: {', '.join(best.values())}"
        liked, chosen = tables["longer_preferred"], report["longer_chosen"]
        if liked is not None and chosen is not None and liked["low"] > chosen["high"]:
            yield (
                f"{f'judge {judge}' if judge else 'the judge'} prefers the longer of two answers in {_percent(liked)} "
                f"of pairs, and in the training data it is chosen in {_percent(chosen)}: look at the win rates at "
                "equal length"
            )
    for pair in report["agreement"]:
        correlation = pair["rank_correlation"]
        close = "" if correlation is None else f", rank correlation {correlation:.2f}"
        names, same = " and ".join(pair["judges"]), pair["same_verdict"]
        yield f"judges {names} say the same about {same:.0f} % of answers{close}"


def best_settings(outcomes: Mapping[str, Any], methods: Mapping[str, str]) -> dict[str, str]:
    """Method → the policy with the largest ΔR, of methods that several policies train ("500-prompt hyperparameter
    tuning")."""
    tried: dict[str, list[str]] = {}
    for policy in outcomes:
        tried.setdefault(methods[policy], []).append(policy)
    return {
        method: max(policies, key=lambda name: outcomes[name]["reward_difference"]["value"])
        for method, policies in tried.items()
        if len(policies) > 1
    }


def chance(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def _percent(estimate: Mapping[str, float]) -> str:
    return f"{estimate['value']:.0f} [{estimate['low']:.0f}, {estimate['high']:.0f}] %"


def table_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A short plain table: one line per panel, judge, opponent and policy, over all seeds."""
    lines = []
    for row in rows:
        if row["seed"] is None:
            where = f"{row['panel']}{', by ' + row['judge'] if row['judge'] else ''}"
            interval = f"[{row['win_rate_low']:.1f}, {row['win_rate_high']:.1f}]"
            rate = f"{row['win_rate']:.1f} % {interval}"
            lines.append(
                f"  {where}: {row['policy']} against {row['against']}: {rate}, L/L_D {row['length_ratio']:.2f}"
            )
    return lines
