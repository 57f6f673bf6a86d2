"""The peer's wheels arrive as they were sent, or it is said which part of them did not."""

import hashlib
import importlib.metadata
import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import peer_wheels
from tools.peer_imports import load, megabytes, normal
from tools.peer_wheels import (
    LIST,
    MANIFEST,
    MOST_PARTS,
    Unusable,
    check_torch,
    install,
    join,
    left_out,
    main,
    missing,
    split,
    trial,
)


def wheel(folder: Path, name: str, *needs: str, **files: bytes) -> Path:
    """A wheel of pure Python."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        about = "".join(f"Requires-Dist: {need}\n" for need in needs)
        info = f"{name}-1.0.dist-info"
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        archive.writestr(f"{info}/METADATA", head + about)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        for file, content in files.items():
            archive.writestr(file.replace("__slash__", "/").replace("__dot__", "."), content)
    return path


def random_wheels(folder: Path, source: random.Random) -> None:
    folder.mkdir()
    for number in range(source.randint(1, 6)):
        size = source.choice([1, 2, 99, 100, 101, source.randint(1, 300)])
        (folder / f"w{number}.whl").write_bytes(source.randbytes(size))


@pytest.mark.parametrize("seed", range(20))
def test_wheels_of_any_sizes_come_out_of_their_parts_and_no_byte_may_differ(
    seed: int, tmp_path: Path
) -> None:
    source = random.Random(seed)
    wheels, parts, joined = tmp_path / "wheels", tmp_path / "parts", tmp_path / "joined"
    random_wheels(wheels, source)
    whole = sum(file.stat().st_size for file in wheels.iterdir())
    most = source.randint(-(-whole // MOST_PARTS), whole)
    manifest = split(wheels, parts, part_bytes=most)
    assert all(part.size <= most for part in manifest.parts)
    assert join(parts, joined) == manifest
    for file in wheels.iterdir():
        assert (joined / file.name).read_bytes() == file.read_bytes()
    harmed = parts / source.choice(manifest.parts).name
    content = bytearray(harmed.read_bytes())
    content[source.randrange(len(content))] ^= 1 << source.randrange(8)
    harmed.write_bytes(content)
    with pytest.raises(Unusable, match=f"{harmed.name} is damaged"):
        join(parts, tmp_path / "again")
    harmed.write_bytes(content[:-1])
    with pytest.raises(Unusable, match=rf"{harmed.name} has \d+ bytes, not"):
        join(parts, tmp_path / "again")
    harmed.unlink()
    with pytest.raises(Unusable, match=f"{harmed.name} is missing"):
        join(parts, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("{", "property name"),
        ('{"parts": []}', "wheels"),
        ('{"parts": [{"name": "a"}], "wheels": []}', "size"),
        ('{"parts": [], "wheels": [{"name": "../a", "size": 1, "sha256": ""}]}', "no plain name"),
    ],
)
def test_a_manifest_that_is_none_is_refused(text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(Unusable, match=said):
        join(tmp_path, tmp_path / "wheels")


def test_a_wheel_that_differs_behind_whole_parts_is_found(tmp_path: Path) -> None:
    random_wheels(tmp_path / "wheels", random.Random(0))
    split(tmp_path / "wheels", tmp_path / "parts")
    manifest = json.loads((tmp_path / "parts" / MANIFEST).read_text())
    manifest["wheels"][0]["sha256"] = hashlib.sha256(b"another").hexdigest()
    (tmp_path / "parts" / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(Unusable, match=r"w0\.whl is damaged"):
        join(tmp_path / "parts", tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


def test_more_parts_than_can_travel_and_folders_in_use_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Unusable, match="0 wheels"):
        split(tmp_path / "none", tmp_path / "parts")
    wheel(tmp_path / "wheels", "vllm")
    with pytest.raises(Unusable, match="parts, at most 8"):
        split(tmp_path / "wheels", tmp_path / "parts", part_bytes=10)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "mine").write_text("kept")
    assert main(["split", str(tmp_path / "wheels"), str(tmp_path / "parts")]) == 2
    assert "not empty" in capsys.readouterr().err
    assert (tmp_path / "parts" / "mine").read_text() == "kept"


def test_one_library_can_be_tried_before_the_parts_travel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    native = f"vllm__slash__{peer_wheels.TRIED.replace('.', '__dot__')}"
    wheel(tmp_path / "wheels", "other")
    with pytest.raises(Unusable, match="no wheel"):
        trial(tmp_path / "wheels", tmp_path / "trial.zip")
    wheel(tmp_path / "wheels", "vllm", **{native: b"\x7fELF of nothing"})
    assert main(["trial", str(tmp_path / "wheels"), str(tmp_path / "trial.zip")]) == 0
    assert "bytes" in capsys.readouterr().out
    pytest.importorskip("torch")
    assert main(["load", str(tmp_path / "trial.zip")]) == 2
    assert f"{peer_wheels.TRIED} beside torch" in capsys.readouterr().err


def test_a_peer_for_another_torch_is_refused() -> None:
    needs = [Requirement("torch==2.11.0"), Requirement("numpy")]
    check_torch(needs, lambda name: "2.11.0+cu130")
    with pytest.raises(Unusable, match=r"needs torch==2\.11\.0, this is torch 2\.13\.0"):
        check_torch(needs, lambda name: "2.13.0+cpu")

    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    with pytest.raises(Unusable, match="there is no torch"):
        check_torch(needs, none)


@pytest.mark.tail
def test_an_environment_has_the_wheels_and_all_that_is_beneath(tmp_path: Path) -> None:
    torch = importlib.metadata.version("torch").partition("+")[0]
    wheels = tmp_path / "wheels"
    needs = [f"torch=={torch}", "numpy<1", "nvtx", "no-such-thing", 'colour; extra == "more"']
    wheel(wheels, "vllm", *needs, vllm__slash____init____dot__py=b"import numpy\nname = 'peer'\n")
    said = install(wheels, tmp_path / "env")
    numpy = importlib.metadata.version("numpy")
    assert said == (
        f"missing: no-such-thing; of another version: numpy {numpy} for <1; left out by name: nvtx"
    )
    ran = subprocess.run(
        [tmp_path / "env" / "bin" / "python", "-c", "import vllm; print(vllm.name)"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert ran.stdout == "peer\n"


def test_what_cannot_be_installed_leaves_no_environment(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheel(wheels, "other")
    with pytest.raises(Unusable, match="no wheel of vllm"):
        install(wheels, tmp_path / "env")
    for name, said in [("vllm-1.0-cp27-none-any.whl", "not a supported wheel"), (None, "no wheel")]:
        if name is None:
            (wheels / "vllm-1.0-py3-none-any.whl").write_bytes(b"half")
        else:
            wheel(wheels, "vllm").rename(wheels / name)
        with pytest.raises(Unusable, match=said):
            install(wheels, tmp_path / "env")
        assert not (tmp_path / "env").exists()


def test_every_pin_is_one_and_what_is_left_out_says_why() -> None:
    lines = [line for line in LIST.read_text().splitlines() if not line.startswith("#")]
    names = [normal(line.partition("==")[0]) for line in lines]
    assert all("==" in line for line in lines)
    assert len(set(names)) == len(names)
    assert not set(names) & set(left_out())
    assert len(left_out()) == sum(
        line.startswith("# without ") for line in LIST.read_text().splitlines()
    )
    assert missing({}, [], {}).startswith("missing: none")


def test_imports_that_fail_are_named_and_stood_in_for_where_asked() -> None:
    assert load(["json"], stand_in=False) == {}
    assert load(["no_such_peer"], stand_in=True) == {
        "no_such_peer": "ModuleNotFoundError: No module named 'no_such_peer'"
    }
    assert load(["no_such_peer"], stand_in=False) == {}
    del sys.modules["no_such_peer"]
    assert megabytes(importlib.metadata.distribution("pytest")) > 0.1
