"""Models by name, ``hub:ORG/NAME[@REVISION]``: which of them are on this machine, and where.

``runtime.model.hub_download`` fetches them and writes a record for each revision; here the records
are read. The files themselves lie in huggingface_hub's cache, where other programs find them too.
Knows files alone: nothing here speaks to a network.

Always true: a name stands for one commit, the one that was fetched, until it is fetched again; a
model with a file that is missing or of another size is not there.
"""

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from runtime.machine_files import cache_folder
from runtime.model.config import LoadError

log = logging.getLogger(__name__)

PREFIX = "hub:"
DEFAULT_REVISION = "main"
_FORMAT = 1
_MOST_RECORD_BYTES = 1 << 20
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_REPOSITORY = re.compile(rf"({_PART})/({_PART})")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
COMMIT = re.compile(r"[0-9a-f]{40}")
"""A revision that never changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """A model of the hub, as it is asked for."""

    repository: str
    """The repository, ``ORG/NAME``."""
    revision: str = DEFAULT_REVISION
    """The branch, tag or commit."""

    @classmethod
    def parse(cls, text: str) -> "HubName":
        """Read ``[hub:]ORG/NAME[@REVISION]``.

        Raises:
            LoadError: it is no such name.
        """
        repository, at, revision = text.removeprefix(PREFIX).partition("@")
        fits = _REPOSITORY.fullmatch(repository) and ".." not in repository
        if not fits or (at and (not _REVISION.fullmatch(revision) or ".." in revision)):
            raise LoadError(
                f"{text!r} is no model of a hub: it has to be of the form ORG/NAME or "
                "ORG/NAME@REVISION, the revision a branch, a tag or a commit"
            )
        return cls(repository=repository, revision=revision or DEFAULT_REVISION)

    def at(self, revision: str) -> "HubName":
        """The same model at another revision."""
        return HubName(repository=self.repository, revision=revision)

    def __str__(self) -> str:
        return f"{PREFIX}{self.repository}@{self.revision}"


def is_hub_name(model: str) -> bool:
    """Whether the name of a model says that it comes from a hub."""
    return model.startswith(PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedModel:
    """A model that is here, whole as far as names and sizes tell."""

    name: HubName
    """The model's name at its commit."""
    folder: Path


class _Commit(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    folder: str
    files: dict[str, int]
    """Bytes of each, by its name in the folder."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")
    format: int = _FORMAT
    repository: str
    revisions: dict[str, str] = {}
    """Commits by the branch or tag under which they were asked for."""
    commits: dict[str, _Commit] = {}


@dataclass(frozen=True, slots=True)
class HubRecords:
    """The models that have been fetched on this machine.

    Args:
        folder: holds a file for each model; made when something is kept.
    """

    folder: Path = field(default_factory=lambda: cache_folder(os.environ) / "hub")

    def find(self, name: HubName) -> FetchedModel | None:
        """The model as it was fetched, None if it was not or is not whole any more."""
        record = self._read(name.repository)
        commit = record.revisions.get(name.revision, name.revision)
        kept = record.commits.get(commit)
        if kept is None:
            return None
        folder = Path(kept.folder)
        for file, size in kept.files.items():
            if _size_of(folder / file) != size:
                log.warning("model not whole name=%s file=%s", name, folder / file)
                return None
        return FetchedModel(name=name.at(commit), folder=folder)

    def keep(
        self, name: HubName, commit: str, folder: Path, files: Mapping[str, int]
    ) -> FetchedModel:
        """Write down that ``name`` is ``commit``, whose ``files`` in ``folder`` were checked.

        Raises:
            OSError: nothing can be written there.
        """
        record = self._read(name.repository)
        record.revisions[name.revision] = commit
        record.commits[commit] = _Commit(folder=str(folder.absolute()), files=dict(files))
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False) as draft:
            draft.write(record.model_dump_json(indent=1))
        os.replace(draft.name, self._path(name.repository))
        return FetchedModel(name=name.at(commit), folder=folder)

    def _read(self, repository: str) -> _Record:
        """Read the record of a model; nothing, where that cannot be read."""
        path = self._path(repository)
        try:
            with path.open("rb") as file:
                read: Any = json.loads(file.read(_MOST_RECORD_BYTES))
            record = _Record.model_validate(read)
        except FileNotFoundError:
            return _Record(repository=repository)
        except (OSError, ValueError, RecursionError, ValidationError) as error:
            log.warning("record not read path=%s reason=%s", path, str(error).splitlines()[0])
            return _Record(repository=repository)
        sound = all(COMMIT.fullmatch(commit) for commit in record.commits)
        if record.format != _FORMAT or record.repository != repository or not sound:
            log.warning("record not read path=%s reason=%s", path, "of another format or model")
            return _Record(repository=repository)
        return record

    def _path(self, repository: str) -> Path:
        digest = hashlib.sha256(repository.encode()).hexdigest()[:16]
        return self.folder / f"{repository.replace('/', '--')}.{digest}.json"


def hub_folder(model: str) -> Path:
    """The folder of a model that has been fetched.

    Raises:
        LoadError: the name is none, or the model is not here.
    """
    name = HubName.parse(model)
    found = HubRecords().find(name)
    if found is None:
        asked = str(name).removeprefix(PREFIX)
        raise LoadError(f"{model}: not on this machine: keepwarm pull {asked} fetches it")
    return found.folder


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
