"""A tenants file that is read again while the server runs.

Always true: a file that cannot be used changes nothing, and the log says why; no pipe is waited
for.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from sessions.command.settings import OptionError
from sessions.tenants import KeyFileError, Principal, TenantPolicy, Tenants
from sessions.tenants_file import read_tenants_file

log = logging.getLogger(__name__)


def reload_tenants(
    path: Path,
    tenants: Tenants,
    revoke: Callable[[Collection[Principal]], int],
    check: Callable[[Mapping[str, TenantPolicy]], None] = lambda _: None,
) -> bool:
    """Read the file again and let its keys hold from now on; what the holders of keys that are
    gone have open ends. Returns whether it was taken: all of it or nothing.

    Args:
        check: raises OptionError for what cannot hold at this server.
    """
    try:
        read = read_tenants_file(path, wait=False)  # in the event loop
        check(read.policies)
    except (KeyFileError, OptionError) as error:
        log.error("tenants file is not taken, what held before holds reason=%s", error)
        return False
    ended = revoke(tenants.replace(read.keys, read.policies))
    log.info("tenants file taken file=%s keys=%d ended=%d", path, len(read.keys), ended)
    return True
