"""Arena-Hard-Auto's style control, from its judgments and answers."""

from collections.abc import Mapping, Sequence

import numpy as np

from unmdpo.core.errors import UserError
from unmdpo.data.arena import Games, Setting, Style
from unmdpo.stats.arena import WinRate, style_controlled, style_difference


def controlled_for_style(
    games: Mapping[Setting, Games], styles: Mapping[str, Mapping[str, Style]]
) -> dict[Setting, WinRate]:
    """All models that one judge compared with one baseline, in one category, are fitted together."""
    found = dict[Setting, WinRate]()
    together = dict[tuple[str, str, str], list[Setting]]()
    for setting, played in games.items():
        if len(played.scores):
            together.setdefault(setting[:3], []).append(setting)
    for group in together.values():
        scores = {setting.model: games[setting].scores for setting in group}
        features = {setting.model: _features(games[setting].prompts, setting, styles) for setting in group}
        rates = style_controlled(scores, features)
        found |= {setting: rates[setting.model] for setting in group}
    return found


def _features(
    prompts: Sequence[str], setting: Setting, styles: Mapping[str, Mapping[str, Style]]
) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    sides = []
    for model in (setting.model, setting.baseline):
        missing = set(prompts) - styles.get(model, {}).keys()
        if missing:
            raise UserError(
                f"style control needs the answers of '{model}' to all prompts: {len(missing)} are missing, "
                f"such as {min(missing)}"
            )
        sides.append(np.array([styles[model][name] for name in prompts], dtype=np.float64))
    return style_difference(*sides)
