"""Names of clusters: they go into paths, locks, lines and Ray's own names."""

import re

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def is_name(cluster: str) -> bool:
    """Whether a cluster can be called so."""
    return _NAME.fullmatch(cluster) is not None and cluster.strip(".") != ""
