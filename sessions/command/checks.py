"""Faults that could keep a server from starting or from being fast, each with what to do about it.

Every check looks and changes nothing. What needs torch is asked of a child process.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import resource
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runtime.config import EngineConfig
from runtime.machine_files import cache_folder
from runtime.model.config import LoadError
from sessions.command import adapters
from sessions.command.beforehand import all_names_of
from sessions.command.compaction_key import seal_for
from sessions.command.finding import Finding
from sessions.command.journal_options import (
    JournalOptions,
    fingerprint,
    journal_path,
    look_at_journal,
)
from sessions.command.model_checks import read_model, speech, spoken_to
from sessions.command.options import ServeOptions
from sessions.command.preflight import known_source
from sessions.command.settings import OptionError
from sessions.journal.errors import JournalDamaged, JournalError, JournalInUse, JournalOtherVersion
from sessions.journal.inspection import LOOK_S
from sessions.journal.places import MEMORY, in_postgres
from sessions.wire.descriptors import KEPT, OWN
from tools_api.limits import DEFAULT_LIMITS
from tools_api.version import __version__

DEVICE_TIMEOUT_S = 180.0
"""Loading torch, and compiling the CPU kernels for the first time."""
_LEAST_FREE_MIB = 256
_MIB = 1024 * 1024
_PACKAGES = (
    *("torch", "numpy", "xxhash", "tokenizers", "safetensors", "llguidance", "h11", "jinja2"),
    *("websockets", "orjson", "pydantic", "prometheus-client", "uvloop", "click"),
)


def findings(options: ServeOptions, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about everything that is looked at, what takes long last."""
    yield versions()
    yield foreign_kernels()
    yield from spoken_to(options)
    yield from adapters.findings(options.engine.adapters, all_names_of(options))
    yield port(options.host, options.port)
    yield open_files()
    yield folder("cache", cache_folder(environment), _LEAST_FREE_MIB)
    if options.engine.disk_kv_folder:
        wanted = options.engine.disk_kv_bytes // _MIB
        yield folder("KV on disk", Path(options.engine.disk_kv_folder), wanted)
    yield from journal(options)
    yield from key_of_items(options.journal)
    yield from device(options.engine)


def versions() -> Finding:
    """Versions of what is needed, as far as they are installed."""
    found, missing = [f"keepwarm {__version__}", f"python {platform.python_version()}"], []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        advice = f"missing: {', '.join(missing)}; pip install 'keepwarm[server]'"
        return Finding(what="versions", verdict="fault", found=", ".join(found), advice=advice)
    return Finding(what="versions", verdict="ok", found=", ".join(found))


def foreign_kernels() -> Finding:
    """Whether another distribution has the name of one of our packages."""
    try:
        version = importlib.metadata.version("kernels")
    except importlib.metadata.PackageNotFoundError:
        return Finding(what="packages", verdict="ok", found="no foreign package named kernels")
    return Finding(
        what="packages",
        verdict="fault",
        found=f"the distribution kernels {version} has the name of a package of ours",
        advice="use an environment without it: pip uninstall kernels, then install keepwarm again",
    )


def port(host: str, number: int) -> Finding:
    """Whether a server could listen there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        return Finding(
            what="port",
            verdict="fault",
            found=f"cannot listen on {host}, port {number}: {error.strerror}",
            advice="if it is a keepwarm that runs there, use it; else --port 0 takes a free one",
        )
    return Finding(what="port", verdict="ok", found=f"{host}, port {number} is free")


def open_files() -> Finding:
    """Whether as many connections may be open as the server lets in: it raises its soft limit as
    far as the hard one, and lets in fewer where that is less."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DEFAULT_LIMITS.max_open_connections + DEFAULT_LIMITS.max_unread_connections
    wanted = most + OWN + KEPT
    found = f"{_limit(soft)} open files (hard limit {_limit(hard)})"
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        return Finding(what="limits", verdict="ok", found=found)
    advice = f"{DEFAULT_LIMITS.max_open_connections} connections need {wanted}: ulimit -n {wanted}"
    return Finding(what="limits", verdict="note", found=found, advice=advice)


def journal(options: ServeOptions) -> Iterator[Finding]:
    """Whether the server's sessions would be kept, and what is wrong with those that are."""
    place = options.journal.place
    if place == MEMORY:
        yield Finding(what="journal", verdict="ok", found="none: sessions end with the server")
        return
    if place is None:
        found = folder("journal", options.journal.state_folder, _LEAST_FREE_MIB)
        yield found
        if found.verdict == "fault":
            return
    try:
        source = known_source(options.engine.model)
    except LoadError:  # which is told of the model
        source = None
    if source is None:
        return
    try:
        description = speech(options, source).description
    except OptionError:  # which is told of the chat format
        return
    try:
        made_of = fingerprint(source, description)
    except OptionError as error:
        advice = "the tokenizer's files say which journal is a model's"
        yield Finding(what="tokenizer", verdict="fault", found=str(error), advice=advice)
        return
    yield _journal_of(options.journal, made_of)


def _journal_of(options: JournalOptions, of: bytes) -> Finding:
    shown = "PostgreSQL" if in_postgres(options.place or "") else str(journal_path(options, of))
    try:
        seen = look_at_journal(options, of)
    except JournalError as error:
        return Finding(
            what="journal",
            verdict="fault",
            found=str(error),
            advice=_way_out(error, shlex.quote(shown)),
        )
    if seen is None:
        return Finding(what="journal", verdict="ok", found=f"{shown}: a server makes it")
    found = f"{shown}: {seen.sessions} sessions"
    if seen.whole:
        return Finding(what="journal", verdict="ok", found=found)
    advice = f"{seen.num_bytes // _MIB} MiB take longer to look through; a server does, if need be"
    return Finding(
        what="journal", verdict="note", found=f"{found}, looked at for {LOOK_S:g} s", advice=advice
    )


def _way_out(error: JournalError, path: str) -> str:
    if isinstance(error, JournalDamaged):
        return f"keepwarm sessions recover {path} {path}.saved, then serve --journal {path}.saved"
    if isinstance(error, JournalInUse):
        return "a second server needs another --journal, or both of them --journal-shared"
    if isinstance(error, JournalOtherVersion):
        return "serve it with the keepwarm that made it, or keep sessions elsewhere: --journal FILE"
    return f"--journal FILE keeps sessions elsewhere, --journal {MEMORY} nowhere"


def key_of_items(options: JournalOptions) -> Iterator[Finding]:
    """Whether the file that signs compaction items is a key, if one is named. A pipe is left for
    the server to read."""
    if options.compaction_key is None or Path(options.compaction_key).is_fifo():
        return
    what = "compaction key"
    try:
        seal_for(options, b"", "")
    except OptionError as error:
        advice = "head -c 32 /dev/urandom makes a key; without the option the server makes one"
        yield Finding(what=what, verdict="fault", found=str(error), advice=advice)
    else:
        yield Finding(what=what, verdict="ok", found=options.compaction_key)


def _limit(number: int) -> str:
    return "no limit of" if number == resource.RLIM_INFINITY else str(number)


def folder(what: str, path: Path, wanted_mib: int) -> Finding:
    """Whether there is room in a folder that may yet have to be made, and leave to write."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    free_mib = shutil.disk_usage(there).free // _MIB
    found = f"{path}: {free_mib} MiB free"
    name = f"disk, {what}"
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(
            what=name, verdict="fault", found=found, advice=f"{there}: no leave to write"
        )
    if free_mib < wanted_mib:
        advice = f"{wanted_mib} MiB are wanted there"
        return Finding(what=name, verdict="fault", found=found, advice=advice)
    return Finding(what=name, verdict="ok", found=found)


# What torch says


def device(engine: EngineConfig) -> list[Finding]:
    """The device that a model would run on and the memory it would take, asked of a child
    process."""
    config = json.dumps(asdict(engine))
    command = [sys.executable, "-m", "runtime.process.device_report", config]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=DEVICE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return [_no_torch(f"no answer within {DEVICE_TIMEOUT_S:g} s")]
    with contextlib.suppress(ValueError):
        report = json.loads(asked.stdout)
        return [*read_device(report), *read_model(report["model"])]
    lines = asked.stderr.strip().splitlines()
    return [_no_torch(lines[-1] if lines else f"exit status {asked.returncode}")]


def _no_torch(reason: str) -> Finding:
    advice = "torch does not load here: install it again, for your machine's CPU or CUDA"
    return Finding(what="device", verdict="fault", found=reason, advice=advice)


def read_device(report: Mapping[str, Any]) -> list[Finding]:
    """Findings from a ``DeviceReport``."""
    gpus, threads = report["gpus"], report["threads"]
    build = f"torch {report['torch']}"
    if not gpus:
        found = f"CPU, {threads} threads, {build}"
        advice = "" if report["cuda"] is None else "torch is built for CUDA and sees no GPU"
        where = Finding(
            what="device", verdict="note" if advice else "ok", found=found, advice=advice
        )
        return [where, _cpu_kernels(report)]
    found = f"{'; '.join(gpus)}, {build}"
    where = Finding(what="device", verdict="ok", found=found)
    if report["triton"] is None:
        advice = "pip install 'keepwarm[gpu]', or KEEPWARM_KERNELS=torch to do without them"
        return [
            where,
            Finding(what="kernels", verdict="fault", found="no Triton", advice=advice),
        ]
    return [where, Finding(what="kernels", verdict="ok", found=f"Triton {report['triton']}")]


def _cpu_kernels(report: Mapping[str, Any]) -> Finding:
    name = report["cpu_kernels"]
    if name == "none":
        return Finding(
            what="kernels",
            verdict="note",
            found="the CPU kernels are not compiled; torch does their work, slower",
            advice="install a C++ compiler (Debian: g++), or set CXX; unset KEEPWARM_NATIVE",
        )
    return Finding(what="kernels", verdict="ok", found=f"CPU kernels compiled ({name})")
