"""Rows of other shapes, read by functions: `data: {source: sources:pandalm, path: …}` in a recipe beside this file.

Each function gets a row as a dictionary and returns a pair with `prompt`, `chosen` and `rejected`, a list of pairs, or
None where a row holds none. What else the source `preference` reads may be there too: `strength`, `votes`, `domain`.
"""

from typing import Any

PANDALM_VOTES = {0: 0, 1: -1, 2: 1}  # same, the first, the second; positive for the second response
MAX_STRENGTH = 3


def pandalm(row: dict[str, Any]) -> dict[str, Any]:
    """PandaLM's test set: three annotators each choose one of two responses; the strength is their net number."""
    votes = [PANDALM_VOTES[row[f"annotator{number}"]] for number in (1, 2, 3)]
    net = sum(votes)
    first, second = row["response1"], row["response2"]
    prompt = "\n\n".join(part for part in (row["instruction"], row.get("input")) if part)
    return {
        "prompt": prompt,
        "chosen": second if net > 0 else first,
        "rejected": first if net > 0 else second,
        "strength": min(abs(net), MAX_STRENGTH),
        "votes": [vote if net > 0 else -vote for vote in votes],
    }


def webgpt(row: dict[str, Any]) -> dict[str, Any]:
    """WebGPT's comparisons: `score_0`, from -1 to 1, says how much better the first answer is."""
    score = float(row["score_0"])
    answers = [row["answer_0"], row["answer_1"]]
    chosen, rejected = answers if score >= 0 else reversed(answers)
    question = row["question"]
    return {
        "prompt": question["full_text"],
        "chosen": chosen,
        "rejected": rejected,
        "margin": abs(score),
        "domain": question.get("dataset", ""),
    }
