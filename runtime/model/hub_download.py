"""Models fetched from a hub by name, at one commit, and checked.

huggingface_hub moves the bytes: it knows endpoint, proxies, tokens, its offline mode and its own
cache, goes on behind a connection that was cut, and shows how far it is. Here is what it leaves
open: which files a server needs, whether they fit on the disk, whether each is what the hub says
it is, and what a failure means for whoever asked.

Always true: only weights in safetensors or GGUF, JSON, templates and tokenizers are fetched, no
file that runs code when it is read, and none whose name leads out of its folder; what is written
down as fetched has the size and the digest that the hub names.
"""

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import ModelInfo, RepoSibling

from runtime.model.config import LoadError
from runtime.model.hub_models import COMMIT, FetchedModel, HubName, HubRecords

_TOKENIZER_SUFFIXES = (".json", ".model", ".txt", ".tiktoken")
_UNFIT = re.compile(r"[\\:\x00-\x1f\x7f]")
SPARE_BYTES = 256 << 20
"""Room on the disk that a download leaves."""
"""Left free on the disk beside what is fetched."""
_CHUNK_BYTES = 1 << 20
_MOST_FILES = 4096
_TIMEOUT_S = 30.0
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of a model, as the hub describes it."""

    name: str
    num_bytes: int
    sha256: str | None
    """The digest of a large file; a small one has ``git_sha1``."""
    git_sha1: str | None
    """The digest of the file behind git's header."""


def fetch(
    name: HubName,
    *,
    only: Sequence[str] = (),
    records: HubRecords | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> FetchedModel:
    """Fetch a model whole, or what of it is not here yet.

    Args:
        only: of several files of weights in GGUF those that are wanted; none: the only one.
        records: where it is written down; None: where a server looks.
        tell: takes lines for whoever waits.

    Raises:
        LoadError: it cannot be fetched; the message is one line, and has no secret in it.
    """
    records = records or HubRecords()
    try:
        info = HfApi().model_info(
            name.repository, revision=name.revision, files_metadata=True, timeout=_TIMEOUT_S
        )
        files, pinned = wanted_files(name, info, only), name.at(_commit(name, info))
        total = sum(file.num_bytes for file in files)
        tell(f"{pinned}: {len(files)} files, {total / GIB:.2f} GiB")
        folder = _fetch_all(pinned, files)
        sizes = {file.name: file.num_bytes for file in files}
        return records.keep(name, pinned.revision, folder, sizes)
    except OfflineModeIsEnabled as error:
        found = records.find(name)
        if found is None:
            raise LoadError(f"{name}: {_reason(error)}") from error
        return found
    except (httpx2.HTTPError, OSError, ValueError) as error:
        raise LoadError(_without_secret(f"{name}: {_reason(error)}")) from error


def _commit(name: HubName, info: ModelInfo) -> str:
    if info.sha is None or not COMMIT.fullmatch(info.sha):
        raise LoadError(f"{name}: the hub names no commit")
    return info.sha


def wanted_files(name: HubName, info: ModelInfo, only: Sequence[str]) -> list[HubFile]:
    """The files among all that a server reads.

    Raises:
        LoadError: a name leads elsewhere, there are no weights that are read here, or several files
            of them in GGUF of which nobody said one.
    """
    siblings = info.siblings or []
    if len(siblings) > _MOST_FILES:
        raise LoadError(f"{name}: {len(siblings)} files, and at most {_MOST_FILES} are looked at")
    for each in siblings:
        _check_path(name, each.rfilename)
    here = {each.rfilename: each for each in siblings if "/" not in each.rfilename}
    weights = _weights(name, here, only)
    small = [each for each in here if _is_small_file(each)]
    return [_described(name, here[each]) for each in sorted({*weights, *small})]


def _weights(name: HubName, here: Iterable[str], only: Sequence[str]) -> list[str]:
    tensors = [each for each in here if each.endswith(".safetensors")]
    packed = sorted(each for each in here if each.endswith(".gguf"))
    if only:
        missing = [each for each in only if each not in packed]
        if missing:
            raise LoadError(f"{name}: has no file {missing[0]}; it has {_listed(packed)}")
        return list(only)
    if tensors:
        # A second copy under another name, as some publish it, is not needed.
        return [each for each in tensors if each.startswith("model")] or tensors
    if len(packed) == 1:
        return packed
    if packed:
        raise LoadError(f"{name}: several files of weights, say which by --file: {_listed(packed)}")
    raise LoadError(f"{name}: no weights in safetensors or GGUF, and no others are read")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") if names else "none in GGUF"


def _is_small_file(file: str) -> bool:
    if file.startswith("tokenizer"):
        return file.endswith(_TOKENIZER_SUFFIXES)
    return file.endswith((".json", ".jinja")) or file in ("merges.txt", "vocab.txt")


def _check_path(name: HubName, file: str) -> None:
    """The hub's list of files is somebody's words."""
    parts = file.split("/")
    if any(part in ("", ".", "..") for part in parts) or _UNFIT.search(file):
        raise LoadError(f"{name}: the name of its file {file!r} leads out of the model's folder")


def _described(name: HubName, sibling: RepoSibling) -> HubFile:
    sha256 = None if sibling.lfs is None else sibling.lfs.sha256
    if sibling.size is None or (sha256 is None and sibling.blob_id is None):
        raise LoadError(f"{name}: the hub tells no size and digest of {sibling.rfilename}")
    return HubFile(
        name=sibling.rfilename,
        num_bytes=sibling.size,
        sha256=sha256,
        git_sha1=None if sha256 is not None else sibling.blob_id,
    )


def _fetch_all(pinned: HubName, files: Sequence[HubFile]) -> Path:
    """Fetch and check them; the folder in which they are."""
    cache = Path(constants.HF_HUB_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    missing = sum(file.num_bytes for file in files if not _is_here(pinned, file))
    free = shutil.disk_usage(cache).free
    if missing and missing + SPARE_BYTES > free:
        raise LoadError(
            f"{pinned}: {missing / GIB:.2f} GiB are to be fetched and {free / GIB:.2f} GiB are "
            f"free in {cache}: make room, or have HF_HOME name a folder with more"
        )
    api, folder = HfApi(), cache
    for file in files:
        path = Path(api.hf_hub_download(pinned.repository, file.name, revision=pinned.revision))
        _check(pinned, file, path)
        folder = path.parent
    return folder


def _is_here(pinned: HubName, file: HubFile) -> bool:
    try:
        HfApi().hf_hub_download(
            pinned.repository, file.name, revision=pinned.revision, local_files_only=True
        )
    except LocalEntryNotFoundError:
        return False
    return True


def _check(pinned: HubName, file: HubFile, path: Path) -> None:
    """Whether a file is the one that the hub describes; one that is not is thrown away."""
    size = path.stat().st_size
    if size == file.num_bytes and _digest(file, path) == (file.sha256 or file.git_sha1):
        return
    blob = path.resolve()
    path.unlink(missing_ok=True)
    blob.unlink(missing_ok=True)
    told = f"has {size} bytes of {file.num_bytes}" if size != file.num_bytes else "differs"
    raise LoadError(
        f"{pinned}: {file.name} {told} from what the hub says, and was removed: fetch it again"
    )


def _digest(file: HubFile, path: Path) -> str:
    if file.sha256 is not None:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % file.num_bytes, usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _reason(error: Exception) -> str:
    """The reason for a failure, in one line, and what helps."""
    match error:
        case OfflineModeIsEnabled():
            return "not on this machine, and HF_HUB_OFFLINE is set: fetch it where a hub is reached"
        case GatedRepoError():
            return "its terms have to be accepted on its page first, and HF_TOKEN set"
        case RevisionNotFoundError():
            return "the hub has no such revision of it"
        case RepositoryNotFoundError():
            return "the hub has no such model, or shows it to its owners alone: HF_TOKEN is theirs"
        case HfHubHTTPError():
            return f"the hub answered {error.response.status_code}"
        case LocalEntryNotFoundError() | httpx2.HTTPError():
            return f"the hub cannot be reached: {_line(error)}"
        case OSError() if error.errno == errno.ENOSPC:
            return "the disk is full: make room, or have HF_HOME name a folder with more"
        case OSError() if "Consistency check" in str(error):
            return "cut off on its way: the same command goes on with the files that are missing"
        case _:
            return _line(error)


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _without_secret(message: str) -> str:
    for secret in (get_token(), os.environ.get("HF_TOKEN")):
        if secret:
            message = message.replace(secret, "***")
    return message
