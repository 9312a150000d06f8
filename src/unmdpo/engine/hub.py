"""Which commit a name on the Hub stands for: asked once when a run begins, and the cached one without a network."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from huggingface_hub import HfApi, is_offline_mode, snapshot_download

TIMEOUT_SECONDS = 10.0
COMMIT = re.compile(r"[0-9a-f]{40}")


class Commit(NamedTuple):
    sha: str
    cached: bool = False  # the Hub did not answer, and this is what the machine has


@lru_cache(maxsize=64)
def commit_of(name: str, repo_type: Literal["model", "dataset"], revision: str | None) -> Commit | None:
    """None if neither the Hub nor the cache knows the name; what is wrong with it is said when it is loaded."""
    if revision is not None and COMMIT.fullmatch(revision):
        return Commit(revision)
    if not is_offline_mode():
        try:
            sha = HfApi().repo_info(name, revision=revision, repo_type=repo_type, timeout=TIMEOUT_SECONDS).sha
        except Exception:  # no network, no such name, no permission: loading it explains which
            sha = None
        if sha is not None:
            return Commit(sha)
    try:
        folder = snapshot_download(name, revision=revision, repo_type=repo_type, local_files_only=True)
    except Exception:  # not in the cache
        return None
    return Commit(Path(folder).name, cached=True)
