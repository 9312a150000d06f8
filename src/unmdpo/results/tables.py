"""What a summary's numbers mean, in words."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from unmdpo.core.extras import needed
from unmdpo.recipe.evaluation import PrimaryRecipe
from unmdpo.stats.power import Noise

if TYPE_CHECKING:
    from pandas import DataFrame

UNTRUSTED = "a judge that is no better than length"
FEW_PAIRS = 50  # on which an accuracy is known to some 14 points
CUT_OFF = 0.1  # of the answers, from which on a limit hides what length does
SIGNIFICANT = 0.05  # the largest p-value of a result that counts
EVEN = 50.0  # the win rate of equals, in percent
MIN_PROMPTS = 20  # below which there is no verdict
ENOUGH_SEEDS = 3  # to compare methods with


def remarks(report: Mapping[str, Any], methods: Mapping[str, str]) -> Iterator[str]:
    """What a reader of a panel's tables should know about them and their judges. `methods` are the policies'
    objectives."""
    for judge, tables in report["judges"].items():
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


def doubts(report: Mapping[str, Any], unfinished: int, answers: int) -> Iterator[str]:
    """What makes a panel's numbers hard to believe, of all its answers and those that were cut off."""
    if unfinished > CUT_OFF * answers:
        yield f"{unfinished:,} of {answers:,} answers are cut off: raise evaluation.max_new_tokens"
    for judge, tables in report["judges"].items():
        by = f" by {judge}" if judge else ""
        for opponent, outcomes in tables["against"].items():
            tied = [policy for policy, outcome in outcomes.items() if _tied(outcome)]
            if tied:
                yield f"tied with {opponent} on every prompt{by}: {', '.join(tied)}; train longer to see a difference"


def _tied(outcome: Mapping[str, Any]) -> bool:
    return bool(outcome["wins"] == outcome["losses"] == 0)


def judge_accuracy(name: str, notes: Mapping[str, Any]) -> str:
    """The accuracy of a judge that was trained or measured here, from its stage's notes."""
    found = notes["held_out"]
    trained = f"trained on {notes['trained_on']:,} pairs, " if "trained_on" in notes else ""
    said = (
        f"{name}: {trained}{100 * found['judge']:.1f} % accuracy on {found['pairs']:,} "
        f"{'held-out' if trained else 'labelled'} pairs; preferring the longer response gets "
        f"{100 * found['length']:.1f} %"
    )
    left_out = ", ".join(f"{count:,} {why}" for why, count in notes.get("left_out", {}).items() if count)
    said += f" (left out: {left_out})" if left_out else ""
    mark = judge_mark(notes)
    return f"{said}: {'do not judge by it' if mark == UNTRUSTED else 'too few to rely on'}" if mark else said


def judge_mark(notes: Mapping[str, Any]) -> str:
    """What a reader should know about a judge if its accuracy does not speak for it: it should be better than chance,
    and than preferring the longer response."""
    found = notes["held_out"]
    if found["judge"] <= max(found["length"], 0.5):
        return UNTRUSTED
    return f"a judge measured on only {found['pairs']} pairs" if found["pairs"] < FEW_PAIRS else ""


def answer(
    summary: Mapping[str, Any], asked: PrimaryRecipe, trainings: Mapping[str, int | None], mark: str = ""
) -> str | None:
    """The answer to the primary question: better, worse, or no difference shown, at equal length too.

    There is no verdict by a judge whose `mark` says that it cannot tell, from too few prompts, or on methods of which
    one was trained once: seeds differ by some points, which intervals over prompts do not know. `trainings` counts
    those of each candidate; None for what is not trained here, such as answers made elsewhere.
    """
    if not summary or asked.policy is None:
        return None
    assert asked.panel is not None
    report = summary[asked.panel]
    prompts: int = report["prompts"]
    outcome = report["judges"][asked.judge]["against"][asked.against][asked.policy]
    by = judged_by(asked.judge or "", mark)
    by = f", by {by}" if by else ""
    where = f"on the {prompts} prompts of {asked.panel}"
    if prompts < MIN_PROMPTS:
        counted = f"{asked.policy} won {outcome['wins']} and lost {outcome['losses']} against {asked.against}"
        return f"No verdict: {counted} {where}{by}, and fewer than {MIN_PROMPTS} prompts decide nothing."
    p = chance(outcome["p_win_rate"])
    rate = f"{_interval(outcome['win_rate'])} (p {p if p.startswith('<') else f'= {p}'})"
    counts = [count for count in (trainings[asked.policy], trainings[asked.against or ""]) if count is not None]
    if min(counts, default=2) == 1:
        ours, theirs = (_checkpoint(name, trainings[name]) for name in (asked.policy, asked.against or ""))
        said = f"No verdict on methods, with one seed: {ours} won {rate} against {theirs} {where}{by}. "
        said += f"Another seed may say otherwise: compare methods with {ENOUGH_SEEDS} seeds or more."
    else:
        seeds = len(outcome["seeds"])
        said = f"{_verdict(outcome, mark)}: {asked.policy} won {rate} against {asked.against} {where}{by}"
        said += f", with {seeds} seeds." if seeds else "."
        if not _is_significant(outcome) and not _tied(outcome):
            least = Noise(**outcome["noise"]).detectable(prompts, max(1, seeds))
            said += f" A run like this shows a difference of {least:.0f} points in 80 % of cases."
    if _tied(outcome):
        said += " Every prompt is a tie."
    return said + _at_equal_length(outcome)


def _checkpoint(name: str, trainings: int | None) -> str:
    if trainings is None:
        return name
    return f"{name}'s checkpoint" if trainings == 1 else f"{name}'s {trainings} checkpoints"


def _is_significant(outcome: Mapping[str, Any]) -> bool:
    return bool(outcome["p_win_rate"] < SIGNIFICANT)


def _verdict(outcome: Mapping[str, Any], mark: str) -> str:
    if mark == UNTRUSTED:
        return "No verdict"
    if not _is_significant(outcome):
        return "No difference shown"
    return "Better" if outcome["win_rate"]["value"] > EVEN else "Worse"


def _at_equal_length(outcome: Mapping[str, Any]) -> str:
    adjusted = outcome["length_adjusted"]
    if adjusted is None:
        return ""
    alone = _is_significant(outcome) and adjusted["low"] <= EVEN <= adjusted["high"]
    return f" At equal length, {_interval(adjusted)}{', so it may be length alone' if alone else ''}."


def judged_by(judge: str, mark: str) -> str:
    """A judge's name, and what a reader should know about it; one of them may be empty."""
    return f"{judge} ({mark})" if judge and mark else judge or mark


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
            for judge, tables in report["judges"].items():
                for opponent, outcomes in tables["against"].items():
                    for policy, outcome in outcomes.items():
                        start = {"panel": panel, "judge": judge, "against": opponent, "policy": policy}
                        for seed, one in {None: outcome, **outcome["seeds"]}.items():
                            rows.append(start | {"seed": seed} | _numbers(one))
        return rows

    def pandas(self) -> "DataFrame":
        with needed("a data frame", "pandas"):
            from pandas import DataFrame  # noqa: PLC0415 - an extra

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
