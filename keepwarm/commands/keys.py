"""``keepwarm keys``: keys, and the rows that stand for them in a tenants file.

A key is shown once, when it is made; a file holds its digest alone.
"""

import contextlib
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from sessions.tenants import ApiKey, KeyFileError, Role
from sessions.tenants_file import TenantsFile, key_row, read_tenants_file

if sys.platform != "win32":
    import fcntl

KEY_BYTES = 32
"""Random bytes of a key: too many to be guessed, so that a plain digest hides it."""

_NAME = click.Option(["--name"], required=True, help="the key's name in logs; each has its own")
_TENANT = click.Option(["--tenant"], required=True, help="the tenant it belongs to")
_ROLE = click.Option(
    ["--role"],
    type=click.Choice([role.value for role in Role]),
    default=Role.TENANT.value,
    show_default=True,
    help="what it is good for",
)
_FILE = click.Argument(["file"], type=click.Path(path_type=Path))


def new(name: str, tenant: str, role: str, append: Path | None) -> int:
    """Make a key; returns the exit status."""
    key = "kw-" + secrets.token_urlsafe(KEY_BYTES)
    row = _row(key, name, tenant, role)
    if append is None:
        click.echo(f"# the key, shown this once: {key}\n{row}", nl=False)
        return 0
    _append(append, row)
    click.echo(f"the key, shown this once; its row is in {append}:", err=True)
    click.echo(key)
    return 0


def digest(name: str, tenant: str, role: str) -> int:
    """Print the row of a key that exists, read from standard input; returns the exit status."""
    if sys.stdin.isatty():
        key = click.prompt("key", hide_input=True, err=True)
    else:
        key = sys.stdin.readline()
    click.echo(_row(key.strip(), name, tenant, role), nl=False)
    return 0


def check(file: Path) -> int:
    """Say what a file holds, or what is wrong with it; returns the exit status."""
    read = _read(file)
    for key in read.keys:
        who = key.principal
        click.echo(f"{who.key_name}: tenant {who.tenant}, {who.role}, sha256 {key.sha256.hex()}")
    return 0


def _row(key: str, name: str, tenant: str, role: str) -> str:
    if not name:
        raise click.UsageError("--name is empty: each key has a name of its own")
    try:
        return key_row(ApiKey.of(key, tenant=tenant, role=Role(role), name=name))
    except KeyFileError as error:
        raise click.UsageError(str(error)) from error


def _read(file: Path) -> TenantsFile:
    try:
        return read_tenants_file(file)
    except KeyFileError as error:
        raise click.ClickException(str(error)) from error


def _append(file: Path, row: str) -> None:
    """Put a row behind what is in the file, if the file is good with it. Who may read it stays."""
    try:
        place = Path(os.path.realpath(file))  # a link stays one
        with _alone_in(place.parent):
            _append_to(place, row)
    except KeyFileError as error:
        raise click.ClickException(f"{file}: {error}") from error
    except OSError as error:
        raise click.ClickException(f"{file}: cannot be changed: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file}: cannot read it: not UTF-8") from error


def _append_to(place: Path, row: str) -> None:
    draft = place.with_name(place.name + ".new")
    if place.exists() and not place.is_file():
        raise KeyFileError("not a regular file")
    try:
        before = place.read_text(encoding="utf-8") if place.exists() else ""
        draft.write_text(f"{before}\n{row}" if before else row, encoding="utf-8")
        try:
            read_tenants_file(draft)
        except KeyFileError as error:
            raise KeyFileError(str(error).removeprefix(f"{draft}: ")) from None
        if place.exists():
            _keep_readers(place.stat(), draft)
        draft.replace(place)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _keep_readers(found: os.stat_result, draft: Path) -> None:
    """Give the draft the owner, group and mode of the file that it is to replace."""
    own = draft.stat()
    if (own.st_uid, own.st_gid) != (found.st_uid, found.st_gid):
        os.chown(draft, found.st_uid, found.st_gid)
    draft.chmod(stat.S_IMODE(found.st_mode))


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Only one command at a time changes files of the folder: none takes out another's row."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


COMMAND = click.Group(
    "keys",
    help="Make keys, and the rows that stand for them in a tenants file (serve --tenants-file).",
    commands=[
        click.Command(
            "new",
            callback=new,
            params=[
                _NAME,
                _TENANT,
                _ROLE,
                click.Option(
                    ["--append"],
                    metavar="FILE",
                    type=click.Path(path_type=Path),
                    help="put the row into this file, and print the key alone",
                ),
            ],
            help="Make a key. It is printed once, with its row.",
        ),
        click.Command(
            "hash",
            callback=digest,
            params=[_NAME, _TENANT, _ROLE],
            help="Print the row of a key that exists, read from standard input.",
        ),
        click.Command("check", callback=check, params=[_FILE], help="Say what a file holds."),
    ],
)
