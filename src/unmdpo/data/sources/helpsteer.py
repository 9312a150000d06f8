"""HelpSteer and HelpSteer2 with their ratings: a row per response, five attributes from 0 to 4."""

from typing import ClassVar

from unmdpo.data.rows import Row
from unmdpo.data.sources.helpsteer2 import marked_turns
from unmdpo.data.sources.scored import Answer, Scored, mean

ATTRIBUTES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")


class HelpSteerRatings(Scored):
    """Responses to one prompt, compared by helpfulness: its authors' way to preferences. Where each annotator's rating
    is given, the mean counts."""

    shapes: ClassVar = (frozenset({"prompt", "response", *ATTRIBUTES}),)
    thresholds: ClassVar = (2.0, 3.0)
    strength: ClassVar = "the difference in `helpfulness`: below 2, below 3, from 3"
    also: ClassVar = ("nvidia/HelpSteer",)

    def answers(self, row: Row) -> list[Answer]:
        prompt = row.check_prompt("prompt", marked_turns(row, row.text("prompt")))
        rating = row.value("helpfulness")
        several = rating if isinstance(rating, list) else [rating]
        return [Answer(prompt, row.text("response"), mean(row, "helpfulness", several), row.origin)]
