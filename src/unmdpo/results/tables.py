"""What a summary's numbers mean, in words."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from unmdpo.core.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame

SURE, EVEN = 0.05, 50.0  # largest chance of a result that counts, and the win rate of equals, in percent


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


def judge_accuracy(name: str, notes: Mapping[str, Any]) -> str:
    """The accuracy of a judge that was trained here, from its stage's notes."""
    found = notes["held_out"]
    said = (
        f"{name}: trained on {notes['trained_on']:,} pairs, {100 * found['judge']:.1f} % accuracy on "
        f"{found['pairs']:,} held-out pairs; preferring the longer response gets {100 * found['length']:.1f} %"
    )
    left_out = ", ".join(f"{count:,} {why}" for why, count in notes["left_out"].items() if count)
    said += f" (left out: {left_out})" if left_out else ""
    return said if found["judge"] > found["length"] else f"{said}: do not judge by it"


def headline(summary: Mapping[str, Any]) -> str | None:
    """The main result in a sentence or two: on the last panel, by the judge that selects, the policy with the largest
    win rate against the baseline; significant after Holm's correction or not."""
    if not summary:
        return None
    panel, report = [*summary.items()][-1]
    judge, tables = next(iter(tables_of(report).items()))
    outcomes, baseline = tables["against"][report["baseline"]], report["baseline"]
    if not outcomes:
        return None
    where = f"on the {report['prompts']} prompts of {panel}{f', by {judge}' if judge else ''}"
    ranked = sorted(outcomes, key=lambda name: -outcomes[name]["win_rate"]["value"])
    sure = [name for name in ranked if _chance_of(outcomes[name]) < SURE]
    winners = [name for name in sure if outcomes[name]["win_rate"]["value"] > EVEN]
    losers = [name for name in sure if name not in winners]
    if winners:
        return _won(winners[0], outcomes, f"against {baseline} {where}")
    best = f"the best, {ranked[0]}, won {_interval(outcomes[ranked[0]]['win_rate'])}"
    if losers:
        return f"No policy won against {baseline} {where}, and {', '.join(losers)} lost: {best}."
    return f"No policy differs significantly from {baseline} {where}: {best}."


def _won(best: str, outcomes: Mapping[str, Any], against: str) -> str:
    rate, adjusted = outcomes[best]["win_rate"], outcomes[best]["length_adjusted"]
    length = "" if adjusted is None else f"; at equal length, {adjusted['value']:.1f} %"
    others = [name for name in outcomes if name != best and outcomes[name]["win_rate"]["high"] >= rate["low"]]
    close = f" Its interval overlaps with those of {', '.join(others)}." if others else ""
    return f"{best} won {against}: {_interval(rate)}{length}.{close}"


def _chance_of(outcome: Mapping[str, Any]) -> float:
    return float(outcome.get("holm_win_rate", outcome["p_win_rate"]))


def _interval(rate: Mapping[str, float]) -> str:
    return f"{rate['value']:.1f} % [{rate['low']:.1f}, {rate['high']:.1f}]"


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


class Table(list[dict[str, Any]]):
    """Rows of numbers, as a list of dictionaries that also shows itself in a notebook and makes a data frame."""

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> "Table":
        """One row per panel, judge, opponent, policy and seed; None is all seeds together."""
        rows = cls()
        for panel, report in summary.items():
            for judge, tables in tables_of(report).items():
                for opponent, outcomes in tables["against"].items():
                    for policy, outcome in outcomes.items():
                        start = {"panel": panel, "judge": judge, "against": opponent, "policy": policy}
                        for seed, one in {None: outcome, **outcome["seeds"]}.items():
                            rows.append(start | {"seed": seed} | _numbers(one))
        return rows

    def pandas(self) -> "DataFrame":
        try:
            from pandas import DataFrame  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise UserError("data frames need pandas: pip install 'unmdpo[pandas]'") from error

        return DataFrame(self)

    def lines(self) -> list[str]:
        """A short plain table: one line per panel, judge, opponent and policy, over all seeds."""
        lines = []
        for row in self.over_seeds():
            where = f"{row['panel']}{', by ' + row['judge'] if row['judge'] else ''}"
            who = f"{row['policy']} against {row['against']}"
            lines.append(f"  {where}: {who}: {_rate(row)}, L/L_D {row['length_ratio']:.2f}")
        return lines

    def over_seeds(self) -> list[dict[str, Any]]:
        """The rows that put all seeds together."""
        return [row for row in self if row["seed"] is None]

    def _repr_html_(self) -> str:
        """For notebooks: over all seeds."""
        heads = ("panel", "judge", "against", "policy", "win %", "ΔR", "L/L_D")
        rows = [
            [row[name] for name in heads[:4]]
            + [_rate(row), f"{row['reward_difference']:.3f}", f"{row['length_ratio']:.2f}"]
            for row in self.over_seeds()
        ]
        body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
        return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{body}</table>"


def _rate(row: Mapping[str, Any]) -> str:
    return f"{row['win_rate']:.1f} % [{row['win_rate_low']:.1f}, {row['win_rate_high']:.1f}]"


def _numbers(outcome: Mapping[str, Any]) -> dict[str, float]:
    """Values with their ends, side by side."""
    row = dict[str, float]()
    for name in ("win_rate", "reward_difference", "length_ratio"):
        row[name] = outcome[name]["value"]
        row |= {f"{name}_{end}": outcome[name][end] for end in ("low", "high")}
    return row | {name: outcome[name] for name in outcome if name.startswith(("p_", "holm_"))}
