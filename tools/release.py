"""A release, prepared from one commit and not published: wheel, source, SBOM, notes, checksums.

    python -m tools.release [FOLDER]        # make release does lint and types before

Everything is made from what the commit has (``git archive``), with the commit's time in the place
of every other, so that two runs make the same bytes. The SBOM (CycloneDX 1.6) names what the wheel
and its extras pull in, by the pins of ``constraints.txt``. What is left to a person stands in
``PUBLISH.txt``: the tag, and where the files go. Nothing here asks a network.

A refusal is one line on standard error, with exit status 1, and leaves nothing behind.
"""

import argparse
import datetime
import gzip
import hashlib
import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools.line_ledger import ROOT

BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""
_NOT_PULLED_IN = frozenset({"dev"})
_MODEL = "runtime/assets/default_model"
_SERIAL = uuid.UUID("5e4c8f0e-3b0f-4f6b-9d57-2f0a8a2f7c11")
"""The name space of serial numbers of our SBOMs."""


class NotReady(Exception):
    """No release can be made of this commit; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The commit that is released."""

    id: str
    time: int
    """Seconds since the epoch."""

    @property
    def moment(self) -> str:
        """The time as ISO 8601 has it."""
        return datetime.datetime.fromtimestamp(self.time, datetime.UTC).isoformat()


def prepare(root: Path, folder: Path) -> list[Path]:
    """Make a release's files.

    Args:
        root: a checkout.
        folder: takes a folder of the version's name, which must not exist.

    Raises:
        NotReady: the checkout, its version or its change log is not one of a release.
    """
    commit = _commit(root)
    with tempfile.TemporaryDirectory() as work:
        source = Path(work) / "source"
        _unpack(root, commit, source)
        version, notes = _version(source), _notes(source)
        _refuse_tag(root, f"v{version}", commit)
        target = folder / version
        if target.exists():
            raise NotReady(f"{target} exists: remove it, or name another folder")
        made = Path(work) / "made"
        made.mkdir()
        wheel = _built("build_wheel", source, made, commit)
        sdist = _repacked(_built("build_sdist", source, made, commit), commit)
        _look_at(wheel, version)
        sbom = _sbom(source, version, commit, (wheel, sdist))
        name = f"keepwarm-{version}"
        (made / f"{name}.cdx.json").write_text(json.dumps(sbom, indent=1, sort_keys=True) + "\n")
        (made / "NOTES.md").write_text(notes)
        (made / "SHA256SUMS").write_text(_checksums(made))
        (made / "PUBLISH.txt").write_text(_left_to_do(version, commit))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir()
        for path in sorted(made.iterdir()):
            (target / path.name).write_bytes(path.read_bytes())
    return sorted(target.iterdir())


# What is released


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NotReady(f"git {words[0]}: {(done.stderr.strip() or 'failed').splitlines()[0]}")
    return done.stdout.strip()


def _commit(root: Path) -> Commit:
    changed = _git(root, "status", "--porcelain", "--untracked-files=no").splitlines()
    if changed:
        raise NotReady(f"{len(changed)} files differ from the commit, {changed[0].split()[-1]}")
    id_, time = _git(root, "log", "-1", "--format=%H %ct").split()
    return Commit(id=id_, time=int(time))


def _unpack(root: Path, commit: Commit, target: Path) -> None:
    archive = subprocess.run(
        ["git", "-C", str(root), "archive", commit.id], capture_output=True, check=True
    )
    target.mkdir()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        # Pythons before 3.11.4 know no filter, and it is our own archive.
        files.extraction_filter = getattr(tarfile, "data_filter", None)
        files.extractall(target)


def _version(source: Path) -> str:
    text = str(tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"])
    version = Version(text)
    if str(version) != text or version.local is not None:
        raise NotReady(f"version {text!r} is not written as PEP 440 has it")
    if version.major == 0 and not 1 <= version.minor <= 8:
        raise NotReady(f"version {text}: another distribution named kernels has 0.9 to 0.19")
    return text


def _notes(source: Path) -> str:
    """The newest section of the change log, which has to be this version's."""
    version = _version(source)
    _, *sections = re.split(r"^## ", (source / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    heading, _, text = (sections[0] if sections else "").partition("\n")
    if version not in re.findall(r"\d+\.\d+\.\d+\w*", heading):
        raise NotReady(f"CHANGELOG.md: the newest section is {heading!r}, not of {version}")
    if not text.strip():
        raise NotReady(f"CHANGELOG.md says nothing of {version}")
    return f"# Keepwarm {version}\n\n{text.strip()}\n"


def _refuse_tag(root: Path, tag: str, commit: Commit) -> None:
    if _git(root, "tag", "--list", tag):
        tagged = _git(root, "rev-list", "-n", "1", tag)
        if tagged != commit.id:
            raise NotReady(f"{tag} is another commit's ({tagged[:12]}): raise the version")


# What is built


def _built(kind: str, source: Path, folder: Path, commit: Commit) -> Path:
    """Have setuptools build one file."""
    before = set(folder.iterdir())
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD, kind, str(folder)],
        cwd=source,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(commit.time), "PYTHONHASHSEED": "0"},
        umask=0o022,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NotReady(f"{kind}: {(done.stderr.strip() or 'failed').splitlines()[-1]}")
    (made,) = set(folder.iterdir()) - before
    return made


def _repacked(sdist: Path, commit: Commit) -> Path:
    """The source distribution with nothing of this machine in it: order, times, owners, modes."""
    packed = io.BytesIO()
    with (
        tarfile.open(sdist) as old,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid = commit.time, 0, 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    sdist.write_bytes(gzip.compress(packed.getvalue(), mtime=commit.time))
    return sdist


def _look_at(wheel: Path, version: str) -> None:
    """Raise NotReady where what was built is not that version's, or cannot be imported."""
    program = "import keepwarm; print(keepwarm.__version__, keepwarm.__file__)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(wheel)!r}); {program}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.stdout.split()[:1] != [version] or str(wheel) not in done.stdout:
        raise NotReady(f"{wheel.name}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")


# What is in it


def _sbom(source: Path, version: str, commit: Commit, files: Sequence[Path]) -> dict[str, Any]:
    root = f"pkg:pypi/keepwarm@{version}"
    parts, needs = _components(source)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_SERIAL, commit.id)}",
        "version": 1,
        "metadata": {
            "timestamp": commit.moment,
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "keepwarm",
                "version": version,
                "purl": root,
                "licenses": [{"expression": "Apache-2.0"}],
                "components": [
                    {"type": "file", "name": file.name, "hashes": [_hash(file.read_bytes())]}
                    for file in files
                ],
            },
        },
        "components": [*parts, *_models(source)],
        "dependencies": [{"ref": root, "dependsOn": sorted(each["bom-ref"] for each in parts)}]
        + [{"ref": name, "dependsOn": sorted(others)} for name, others in sorted(needs.items())],
    }


def _components(source: Path) -> tuple[list[dict[str, Any]], dict[str, set[str]]]:
    """What the base and each extra pull in, and what each of those needs in turn."""
    pins = _pins(source)
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].items()
    wanted = {"": project["dependencies"]}
    wanted |= {name: lines for name, lines in extras if name not in _NOT_PULLED_IN}
    used: dict[str, set[str]] = {}
    needs: dict[str, set[str]] = {}
    for extra, lines in wanted.items():
        open_ = {str(canonicalize_name(Requirement(line).name)) for line in lines}
        open_.discard(str(canonicalize_name(project["name"])))  # its extras are told themselves
        seen = set[str]()
        while open_:
            name = open_.pop()
            seen.add(name)
            used.setdefault(name, set()).add(extra or "base")
            others = _needed_by(name, pins)
            needs[_purl(name, pins)] = {_purl(other, pins) for other in others}
            open_ |= others - seen
    return [_component(name, pins, used[name]) for name in sorted(used)], needs


def _pins(source: Path) -> dict[str, str]:
    lines = (source / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {str(canonicalize_name(name)): version for name, version in pairs}


def _purl(name: str, pins: dict[str, str]) -> str:
    if name not in pins:
        raise NotReady(f"constraints.txt does not pin {name}")
    return f"pkg:pypi/{name}@{pins[name]}"


def _needed_by(name: str, pins: dict[str, str]) -> set[str]:
    """Names of what a package needs, as the one that is installed here says; nothing of one that
    is not (of another platform)."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return set()
    if Version(found.version).public != pins.get(name):
        raise NotReady(f"{name} {found.version} is installed, constraints.txt has {pins.get(name)}")
    lines = map(Requirement, found.requires or ())
    needed = (each for each in lines if not each.marker or each.marker.evaluate({"extra": ""}))
    return {str(canonicalize_name(each.name)) for each in needed} & pins.keys()


def _component(name: str, pins: dict[str, str], extras: Iterable[str]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "type": "library",
        "bom-ref": _purl(name, pins),
        "name": name,
        "version": pins[name],
        "purl": _purl(name, pins),
        "properties": [{"name": "keepwarm:extra", "value": each} for each in sorted(extras)],
    }
    try:
        said = importlib.metadata.metadata(name).get_all("License-Expression")
    except importlib.metadata.PackageNotFoundError:
        said = None
    return told | ({"licenses": [{"expression": said[0]}]} if said else {})


def _models(source: Path) -> list[dict[str, Any]]:
    """The weights that are in the wheel."""
    weights = sorted((source / _MODEL).glob("*.safetensors"))
    return [
        {
            "type": "machine-learning-model",
            "bom-ref": f"file:{_MODEL}/{path.name}",
            "name": f"{_MODEL}/{path.name}",
            "hashes": [_hash(path.read_bytes())],
            "licenses": [{"expression": "Apache-2.0"}],
        }
        for path in weights
    ]


def _hash(data: bytes) -> dict[str, str]:
    return {"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}


def _checksums(folder: Path) -> str:
    lines = [f"{_hash(each.read_bytes())['content']}  {each.name}\n" for each in folder.iterdir()]
    return "".join(sorted(lines, key=lambda line: line.split()[-1]))


def _left_to_do(version: str, commit: Commit) -> str:
    return f"""\
Keepwarm {version}, prepared from {commit.id} ({commit.moment}). Nothing has been published.

1. CI has passed on this commit, with the long forms of the tests that the change log speaks of.
2. The change log's heading has this version and its date.
3. Both images are built from a base with a digest: --build-arg BASE=debian:12-slim@sha256:...
4. git tag --sign v{version} {commit.id} --file NOTES.md
5. sha256sum --check SHA256SUMS, and the same files on a second machine: make release there.
6. The tag, the wheel, the source distribution and the SBOM go where they are to be had.
"""


def main(words: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description="Prepare a release; nothing is published.")
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout than this one")
    arguments = parser.parse_args(words)
    try:
        made = prepare(arguments.root, arguments.folder)
    except NotReady as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for path in made:
        print(path)
    print(f"prepared, not published: {made[0].parent / 'PUBLISH.txt'} says what is left to do")
    return 0


if __name__ == "__main__":
    sys.exit(main())
