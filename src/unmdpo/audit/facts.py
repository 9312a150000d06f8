"""What was seen in preference data, in lines that people read."""

from unmdpo.audit.describe import Description
from unmdpo.audit.figures import levels, percent, shares

MOST_FILES = 5


def facts(seen: Description) -> list[tuple[str, str]]:
    """What was seen, a line for each subject."""
    return [*_what(seen), *_texts(seen), *_doubts(seen), ("strength", seen.strength_means)]


def _what(seen: Description) -> list[tuple[str, str]]:
    columns = ", ".join(seen.columns)
    split = f", split '{seen.split}'" if seen.split else ", all splits"
    files = sorted(seen.files)
    more = f" and {len(files) - MOST_FILES:,} others" if len(files) > MOST_FILES else ""
    rows = [f"{seen.read:,} read", f"{seen.bad:,} bad", f"{sum(seen.left_out.values()):,} without a comparison"]
    lines = [
        ("data", f"{seen.path}{split}" + (f": {', '.join(files[:MOST_FILES])}{more}" if len(files) > 1 else "")),
        ("source", f"{seen.source}, by its columns {columns}; strength from {seen.strength_from}"),
        ("others", f"further columns: {', '.join(seen.others) or 'none'}"),
        ("rows", " · ".join([*rows, f"{seen.ties:,} ties", f"{seen.comparisons:,} comparisons"])),
    ]
    lines += [("", f"{count:,}: {why}") for why, count in seen.left_out.items()]
    if seen.both_bad:
        lines.append(("", f"{seen.both_bad:,} of the ties say that both are bad"))
    several = f"{seen.several_pairs:,} with several pairs, up to {seen.pairs_per_prompt.most:,}"
    lines.append(("prompts", f"{seen.prompts:,}, {several if seen.several_pairs else 'each with one pair'}"))
    if seen.strengths:
        lines.append(("strengths", levels(seen.strengths)))
    if seen.voted:
        lines.append(("votes", f"{seen.voted:,} comparisons have votes of several annotators"))
    if set(seen.domains) != {""}:
        lines.append(("domains", shares(seen.domains)))
    return lines


def _texts(seen: Description) -> list[tuple[str, str]]:
    lengths = [
        f"{what} {spread.median:,} ({spread.high:,}, {spread.most:,})"
        for what, spread in (
            ("prompt", seen.prompt_length), ("chosen", seen.chosen_length), ("rejected", seen.rejected_length),
        )
    ]  # fmt: skip
    system = f"; {seen.system_messages:,} with a system message" if seen.system_messages else ""
    lines = [
        ("languages", shares(seen.languages)),
        ("turns", shares(seen.turns) + system),
        ("characters", f"{', '.join(lengths)}: median (95th percentile, most)"),
        ("", f"the chosen answer is longer in {percent(seen.chosen_longer)}"),
    ]
    if seen.tokens is not None:
        tokens = seen.tokens
        over = ", ".join(f"{percent(tokens.over(most))} over {most:,}" for most in (512, 1024, 2048, 4096))
        spreads = (("prompt", tokens.prompt), ("response", tokens.response))
        sizes = ", ".join(f"{what} {spread.median:,} ({spread.most:,})" for what, spread in spreads)
        lines.append(("tokens", f"of {tokens.sampled:,} sampled: {sizes}; {over}"))
        lines += [("", remark) for remark in tokens.remarks]
    return lines


def _doubts(seen: Description) -> list[tuple[str, str]]:
    doubts = (
        (seen.repeated, "repeated pair", "repeated pairs"),
        (seen.contradicted, "pair with conflicting labels", "pairs with conflicting labels"),
        (seen.same_answer, "pair with identical responses", "pairs with identical responses"),
        (seen.empty_answers, "empty answer", "empty answers"),
        (seen.repeats_prompt, "answer that begins with its prompt", "answers that begin with their prompt"),
        (seen.markup, "prompt with a chat template's own marks", "prompts with a chat template's own marks"),
    )
    found = [f"{count:,} {one if count == 1 else several}" for count, one, several in doubts if count]
    if seen.cut_off:
        found.append(f"{percent(seen.cut_off / seen.answers)} of the answers may be cut off")
    found += [f"the text in '{name}' is not read" for name in seen.unread]
    lines = [("doubts", " · ".join(found) or "none")]
    for place, count in seen.leaked.items():
        lines.append(("leaks", f"{count:,} prompts of {place} are here too" if count else f"none from {place}"))
    return lines
