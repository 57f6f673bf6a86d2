"""Settings as options of the command line library.

Values stay the text that was typed; ``sessions.command.settings`` says what they mean, the same
for a line of a file. Here is what the library does: spelling, help, completion.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

from sessions.command.settings import Setting

MAX_HELP_WIDTH = 100
HELP_OPTIONS = ["-h", "--help"]
"""Said to each command by itself: the library keeps those that a command was first used with."""


class Word(click.ParamType[str]):
    """Text as it was typed; completes what is known of it."""

    name = "text"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The choices, or files where a path is wanted."""
        if self._setting.kind == "path" or self._setting.name.endswith("folder"):
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(each) for each in self._setting.choices if incomplete in each]


class SettingOption(click.Option):
    """An option that knows under which heading its help stands."""

    def __init__(self, setting: Setting) -> None:
        kind: dict[str, Any] = {"type": Word(setting), "metavar": _metavar(setting)}
        if setting.kind == "switch":
            kind = {"is_flag": True, "flag_value": "true"}
        super().__init__(
            [setting.flag, setting.name],
            multiple=setting.kind == "list",
            help=_help(setting),
            default=None,
            hidden=setting.tuning,
            **kind,
        )
        self.group = setting.group


class SettingsCommand(click.Command):
    """A command whose help has its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group, in the order in which groups first appear."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(param, "group", ""), []).append(record)
        for name, records in groups.items():
            with formatter.section(f"{name} options".strip().capitalize()):
                formatter.write_dl(records)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The options and arguments of a command line."""

    typed: Mapping[str, Any]
    """Values that were typed, by the setting's name."""
    config: str | None
    arguments: Mapping[str, Any]
    """The words that are no setting."""


def settings_command(
    name: str,
    settings: Iterable[Setting],
    run: Callable[[Given], int],
    *,
    help: str,
    more: Iterable[click.Parameter] = (),
) -> click.Command:
    """A command with an option for each setting and ``--config``. ``more``: what it takes beside
    them, handed over as ``Given.arguments``."""
    known = tuple(settings)
    names = {setting.name for setting in known}

    def callback(config: str | None, **values: Any) -> int:
        typed = {key: value for key, value in values.items() if key in names and _is_typed(value)}
        rest = {key: value for key, value in values.items() if key not in names}
        return run(Given(typed=typed, config=config, arguments=rest))

    file = click.Option(
        ["--config"], metavar="FILE", help="configuration file, see 'keepwarm config --help'"
    )
    return SettingsCommand(
        name,
        callback=callback,
        params=[*more, *map(SettingOption, known), file],
        help=help,
        context_settings={
            "max_content_width": MAX_HELP_WIDTH,
            "help_option_names": HELP_OPTIONS,
        },
    )


def _is_typed(value: Any) -> bool:
    return value is not None and value != ()


def _metavar(setting: Setting) -> str:
    if setting.choices:
        return f"[{'|'.join(setting.choices)}]"
    return setting.metavar or {"whole": "N", "number": "N"}.get(setting.kind, "TEXT")


def _help(setting: Setting) -> str:
    default = setting.default
    if default in (None, (), ""):
        return setting.help
    return f"{setting.help.removesuffix('.')}. Default: {default}."
