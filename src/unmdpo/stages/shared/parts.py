"""What an unfinished stage has computed so far, in files of its own: a stop or a kill loses little."""

from pathlib import Path

from unmdpo.core.files import remove, sha256, temporary
from unmdpo.engine.pairs.score import Part
from unmdpo.engine.ranks import Ranks
from unmdpo.stages.shared.files import PART

NAMES = "part-"


def keep(part: Part, state: Path) -> None:
    """Under the name of its checksum, so that what is damaged later is not taken for it."""
    state.mkdir(exist_ok=True)
    aside = temporary(state / NAMES, Ranks.current().rank)
    PART.write(aside, part)
    aside.replace(state / f"{NAMES}{sha256(aside)}")


def parts_of(state: Path) -> list[Part]:
    """What earlier attempts computed, except for what was damaged since."""
    whole = []
    for path in sorted(state.glob(f"{NAMES}*")):
        if path.is_file() and path.name == f"{NAMES}{sha256(path)}":
            whole.append(PART.read(path))
        else:
            remove(path)
    return whole
