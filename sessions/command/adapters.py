"""LoRA adapters as far as a server looks at them before its engine does: their names, that their
files are there, and what tells two sets of them apart.

No torch here; what is in the files is checked where they are loaded.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from runtime.config import AdapterSource
from runtime.model.hub_models import is_hub_name
from sessions.command.finding import Finding
from sessions.command.settings import OptionError

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""Files of an adapter's folder: both."""
_DIGEST_BYTES = 6


def fault_of_adapters(adapters: Iterable[AdapterSource], names: Collection[str]) -> str | None:
    """Why these cannot be served, as far as is seen at once; None if nothing is.

    Args:
        adapters: as they were given.
        names: of the model.
    """
    for each in adapters:
        if each.name in names:
            return (
                f"--adapter {each.name}={each.folder}: {each.name} is a name of the model itself: "
                "give the adapter another one"
            )
        fault = fault_of_folder(each.folder)
        if fault is not None:
            return f"--adapter {each.name}={each.folder}: {fault}"
    return None


def fault_of_folder(folder: str) -> str | None:
    """Why an adapter cannot be loaded from there, as far as is seen at once; None if nothing is."""
    if is_hub_name(folder):
        return "adapters are not fetched by a hub's name: download it, and give its folder"
    try:
        path = Path(folder)
        if not path.is_dir():
            return "there is no such folder" if not path.exists() else "it is a file, not a folder"
        missing = [name for name in ADAPTER_FILES if not (path / name).is_file()]
    except OSError as error:
        return str(error.strerror)
    if not missing:
        return None
    pickled = any(path.glob("adapter_model.bin"))
    advice = "; pickled weights are not read: save it with safe_serialization" * pickled
    return f"no adapter in PEFT's layout: {' and '.join(missing)} not there{advice}"


def findings(adapters: Iterable[AdapterSource], names: Collection[str]) -> Iterator[Finding]:
    """Of each adapter whether its files are there and what its configuration says of it.

    Args:
        adapters: as they were given.
        names: of the model.
    """
    for each in adapters:
        what = f"adapter {each.name}"
        fault = fault_of_adapters([each], names)
        if fault is None:
            yield Finding(what=what, verdict="ok", found=f"{each.folder}: {_described(each)}")
            continue
        advice = "docs/models.md says what an adapter's folder holds"
        yield Finding(what=what, verdict="fault", found=fault, advice=advice)


def _described(adapter: AdapterSource) -> str:
    """Rank, changed modules and size, as far as its files say so without being checked."""
    config, weights = (Path(adapter.folder) / name for name in ADAPTER_FILES)
    size = f"{weights.stat().st_size / (1 << 20):.3g} MiB of weights"
    try:
        fields = json.loads(config.read_bytes())
        targets = fields["target_modules"]
        named = targets if isinstance(targets, str) else ", ".join(sorted(map(str, targets)))
        return f"rank {fields['r']} on {named}, {size}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return size


def told_apart(adapters: Iterable[AdapterSource]) -> str:
    """Names and digests of the contents of adapters, in the order of their names: equal for
    servers that answer alike. Reads all of their files.

    Raises:
        OptionError: one cannot be read.
    """
    return ", ".join(
        f"{each.name} ({_digest(each)})" for each in sorted(adapters, key=lambda each: each.name)
    )


def _digest(adapter: AdapterSource) -> str:
    """12 hexadecimal digits of both files."""
    whole = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name in ADAPTER_FILES:
        try:
            with (Path(adapter.folder) / name).open("rb") as file:
                whole.update(hashlib.file_digest(file, "blake2b").digest())
        except OSError as error:
            raise OptionError(
                f"--adapter {adapter.name}={adapter.folder}: {name}: {error.strerror}"
            ) from error
    return whole.hexdigest()
