"""Drafts for tests: any tokens, some of them forced."""

from collections.abc import Iterable

import numpy as np

from runtime.scheduling.draft import Draft, DraftSource


def draft_of(tokens: Iterable[int], forced: Iterable[int] = ()) -> Draft:
    """A draft of ``tokens``; those at the indices ``forced`` are the grammar's."""
    array = np.array(list(tokens), dtype=np.int32)
    marked = set(forced)
    return Draft(
        tokens=array,
        sources=tuple(
            DraftSource.FORCED if index in marked else DraftSource.SESSION
            for index in range(len(array))
        ),
        survival=(1.0,) * len(array),
    )
