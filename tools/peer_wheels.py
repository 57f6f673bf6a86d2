"""The peer's wheels for a GPU machine that no registry reaches, carried there in parts.

    python -m tools.peer_wheels fetch WHEELS            here: what gpu-peer-wheels.txt names
    python -m tools.peer_wheels split WHEELS PARTS      here: parts of at most 56 MB, a manifest
    python -m tools.peer_wheels trial WHEELS FILE       here: one native library of the peer, a part
    python -m tools.peer_wheels load FILE               there: whether this torch loads it
    python -m tools.peer_wheels join PARTS WHEELS       there: checked and put together
    python -m tools.peer_wheels install WHEELS FOLDER   there: an environment on top of this one

Wheels stay as they were published. ``install`` makes a virtual environment in FOLDER that sees all
that the interpreter has which runs it, installs without an index and without dependencies, and says
in one line what is missing. ``tools.peer_imports``, in that environment, counts what is imported.
Exit code 2: what was given cannot be used; nothing half-made is left behind.
"""

import argparse
import contextlib
import ctypes
import hashlib
import importlib.metadata
import json
import re
import shutil
import site
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement

from tools.peer_imports import normal

LIST = Path(__file__).parents[1] / "gpu-peer-wheels.txt"
PART_BYTES = 56_000_000
MOST_PARTS = 8
MANIFEST = "manifest.json"
TRIED = "_vllm_fa3_C.abi3.so"
"""The library that is tried first: of those that need a GPU's libraries the smallest."""
_PLATFORMS = ("2_31", "2_28", "2_27", "2_26", "2_24", "2_17", "2_5")
_CHUNK = 1 << 20
_WITHOUT = re.compile(r"^# without (\S+): (.+)$", re.MULTILINE)


class Unusable(Exception):
    """What was given cannot be used; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digested:
    """A file of so many bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Parts in their order, and the wheels that they are one behind the other."""

    parts: tuple[Digested, ...]
    wheels: tuple[Digested, ...]

    @classmethod
    def read(cls, parts: Path) -> "Manifest":
        """That of the folder ``parts``.

        Raises:
            Unusable: it is missing or is none.
        """
        try:
            raw = json.loads((parts / MANIFEST).read_bytes())
            kinds = {kind: tuple(Digested(**file) for file in raw[kind]) for kind in raw}
            manifest = cls(**kinds)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise Unusable(f"{parts / MANIFEST}: {error}") from error
        for file in (*manifest.parts, *manifest.wheels):
            if Path(file.name).name != file.name:
                raise Unusable(f"{parts / MANIFEST}: {file.name!r} is no plain name")
        return manifest


def left_out(listed: Path = LIST) -> dict[str, str]:
    """What the peer names and is not brought, with the reasons."""
    return {normal(name): why for name, why in _WITHOUT.findall(listed.read_text())}


def fetch(wheels: Path, listed: Path = LIST) -> None:
    """Fetch what the list names for CPython 3.12 on x86-64, without what that needs."""
    tags = [f"manylinux_{version}_x86_64" for version in _PLATFORMS]
    tags += ["manylinux2014_x86_64", "manylinux1_x86_64"]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    abis = [word for abi in ("cp312", "abi3", "none") for word in ("--abi", abi)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--python-version", "3.12"]
    command += ["--implementation", "cp", *abis, *platforms, "--dest", str(wheels)]
    if subprocess.run([*command, "-r", str(listed)], check=False).returncode:
        raise Unusable("not all could be fetched; see above")


def split(wheels: Path, parts: Path, *, part_bytes: int = PART_BYTES) -> Manifest:
    """Write the wheels of a folder as parts of at most ``part_bytes``.

    Raises:
        Unusable: there are none, or they take more than ``MOST_PARTS`` parts.
    """
    files = sorted(wheels.glob("*.whl"))
    whole = sum(file.stat().st_size for file in files)
    count = -(-whole // part_bytes)
    if not 0 < count <= MOST_PARTS:
        raise Unusable(f"{len(files)} wheels in {wheels}: {count} parts, at most {MOST_PARTS}")
    with _made_whole(parts) as made:
        stream = _Stream(files)
        written = []
        for number in range(1, count + 1):
            part = made / f"part-{number}-of-{count}"
            stream.write(part, part_bytes)
            written.append(_digested(part))
        manifest = Manifest(parts=tuple(written), wheels=tuple(map(_digested, files)))
        (made / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n")
    return manifest


def join(parts: Path, wheels: Path) -> Manifest:
    """Check the parts and write the wheels that they are into a new folder.

    Raises:
        Unusable: a part is missing or damaged; the message names every such one.
    """
    manifest = Manifest.read(parts)
    wrong = [fault for part in manifest.parts if (fault := _fault(parts / part.name, part))]
    if wrong:
        raise Unusable("; ".join(wrong))
    with _made_whole(wheels) as made:
        stream = _Stream([parts / part.name for part in manifest.parts])
        for wheel in manifest.wheels:
            stream.write(made / wheel.name, wheel.size)
            if fault := _fault(made / wheel.name, wheel):
                raise Unusable(fault)
    return manifest


def trial(wheels: Path, packed: Path, library: str = TRIED) -> Path:
    """Pack one native library of the peer's wheel, so that whether it loads is known before the
    parts travel.

    Raises:
        Unusable: no wheel has it, or it is larger than a part.
    """
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith("/" + library)]
            if not names:
                continue
            with (
                zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as small,
                archive.open(names[0]) as source,
                small.open(library, "w") as target,
            ):
                shutil.copyfileobj(source, target, _CHUNK)
        if packed.stat().st_size > PART_BYTES:
            packed.unlink()
            raise Unusable(f"{library} is larger than a part")
        return packed
    raise Unusable(f"no wheel in {wheels} has {library}")


def load(packed: Path) -> str:
    """Load the library that ``trial`` packed beside this interpreter's torch; what torch that is.

    Raises:
        Unusable: it does not load; the message is the loader's.
    """
    import torch

    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(packed) as archive:
        for name in archive.namelist():
            try:
                ctypes.CDLL(archive.extract(name, folder))
            except OSError as error:
                raise Unusable(f"{name} beside torch {torch.__version__}: {error}") from error
    return str(torch.__version__)


def install(wheels: Path, folder: Path) -> str:
    """Make an environment of the wheels on top of this interpreter's; what is missing, in a line.

    Raises:
        Unusable: there is no peer among them, it is for another torch, or pip refuses a wheel.
    """
    files = sorted(wheels.glob("*.whl"))
    needs = {normal(name): found for name, found in map(requirements, files)}
    if "vllm" not in needs:
        raise Unusable(f"{wheels} has no wheel of vllm")
    check_torch(needs["vllm"])
    with _made_whole(folder) as made:
        venv.create(made, with_pip=False, symlinks=True)
        python = made / "bin" / "python"
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index"]
        command += ["--no-deps", "--no-compile", "--quiet", "--disable-pip-version-check"]
        command += ["--root-user-action=ignore"]
        ran = subprocess.run(
            [*command, *map(str, files)], check=False, capture_output=True, text=True
        )
        if ran.returncode:
            raise Unusable(ran.stderr.strip().splitlines()[-1])
        (own,) = made.glob("lib/python*/site-packages")
        beneath = [path for path in (*site.getsitepackages(), *sys.path) if "-packages" in path]
        (own / "beneath.pth").write_text("\n".join(dict.fromkeys(beneath)) + "\n")
        return missing(needs, [str(own), *beneath], left_out())


def requirements(wheel: Path) -> tuple[str, list[Requirement]]:
    """A wheel's name and what it needs on this machine, extras apart.

    Raises:
        Unusable: it is no wheel.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [
                n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)
            ]
            fields = Parser().parsestr(archive.read(name).decode(), headersonly=True)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise Unusable(f"{wheel.name} is no wheel: {error}") from error
    every = map(Requirement, fields.get_all("Requires-Dist") or ())
    wanted = [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]
    return str(fields["Name"]), wanted


def check_torch(
    needs: Sequence[Requirement],
    version: Callable[[str], str] = importlib.metadata.version,
) -> None:
    """Raises Unusable: the peer is for another torch than this interpreter's, or there is none."""
    for need in needs:
        if normal(need.name) == "torch":
            try:
                found = version("torch")
            except importlib.metadata.PackageNotFoundError:
                raise Unusable(f"the peer needs {need}, there is no torch") from None
            if not need.specifier.contains(found.partition("+")[0]):
                raise Unusable(f"the peer needs {need}, this is torch {found}")


def missing(
    needs: dict[str, list[Requirement]], paths: Sequence[str], without: dict[str, str]
) -> str:
    """A line: what is needed and not there, what is there in another version, and what was left
    out by name."""
    found: dict[str, str] = {}
    for one in importlib.metadata.distributions(path=list(paths)):
        found.setdefault(normal(one.metadata["Name"]), one.version)
    lacking, other, named = set(), set(), set()
    for need in (need for several in needs.values() for need in several):
        name = normal(need.name)
        if name in without and name not in found:
            named.add(name)
        elif name not in found:
            lacking.add(name)
        elif not need.specifier.contains(found[name].partition("+")[0], prereleases=True):
            other.add(f"{name} {found[name]} for {need.specifier}")
    said = [("missing", lacking), ("of another version", other), ("left out by name", named)]
    return "; ".join(f"{what}: {', '.join(sorted(names)) or 'none'}" for what, names in said)


@contextlib.contextmanager
def _made_whole(folder: Path) -> Iterator[Path]:
    """A folder that is new, and gone again when something fails.

    Raises:
        Unusable: it is there already, and not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise Unusable(f"{folder} is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder)
        raise


def _pieces(files: Sequence[Path]) -> Iterator[bytes]:
    """All files one behind the other."""
    for path in files:
        with path.open("rb") as file:
            while piece := file.read(_CHUNK):
                yield piece


class _Stream:
    """Files one behind the other, cut up anew."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._pieces = _pieces(files)
        self._rest = b""

    def write(self, path: Path, most: int) -> None:
        """Write the next ``most`` bytes, or what is left, to a file."""
        with path.open("wb") as file:
            while most and (piece := self._rest or next(self._pieces, b"")):
                file.write(piece[:most])
                self._rest = piece[most:]
                most -= min(most, len(piece))


def _digested(path: Path) -> Digested:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Digested(name=path.name, size=path.stat().st_size, sha256=digest)


def _fault(path: Path, said: Digested) -> str | None:
    """What is wrong with a file that should be as was ``said``."""
    if not path.is_file():
        return f"{path.name} is missing"
    size = path.stat().st_size
    if size != said.size:
        return f"{path.name} has {size} bytes, not {said.size}"
    return None if _digested(path) == said else f"{path.name} is damaged"


def main(words: Sequence[str] | None = None) -> int:
    """Do one step."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    steps = options.add_subparsers(dest="step", required=True)
    for step, names in (
        ("fetch", ("wheels",)),
        ("split", ("wheels", "parts")),
        ("trial", ("wheels", "file")),
        ("load", ("file",)),
        ("join", ("parts", "wheels")),
        ("install", ("wheels", "folder")),
    ):
        of_step = steps.add_parser(step)
        for name in names:
            of_step.add_argument(name, type=Path)
    given = options.parse_args(words)
    try:
        print(_done(given))
    except Unusable as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _done(given: argparse.Namespace) -> str:
    """Do the step that was asked for; what is said of it."""
    if given.step == "fetch":
        fetch(given.wheels)
        return f"fetched into {given.wheels}"
    if given.step == "trial":
        return f"{trial(given.wheels, given.file).stat().st_size} bytes"
    if given.step == "load":
        return f"{given.file} loads beside torch {load(given.file)}"
    if given.step == "install":
        return install(given.wheels, given.folder)
    act = split if given.step == "split" else join
    manifest = act(*((given.wheels, given.parts) if act is split else (given.parts, given.wheels)))
    size = sum(part.size for part in manifest.parts)
    return f"{len(manifest.wheels)} wheels, {len(manifest.parts)} parts, {size} bytes"


if __name__ == "__main__":
    sys.exit(main())
