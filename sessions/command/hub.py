"""Models of a hub, for commands: fetched by name, and served at the commit that was fetched.

huggingface_hub is an extra, so it is loaded when a model has to be fetched and not before.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from runtime.model.config import LoadError
from runtime.model.hub_models import FetchedModel, HubName, HubRecords, is_hub_name
from sessions.command.options import ServeOptions
from sessions.command.settings import OptionError


def fetch(name: str, only: Sequence[str], tell: Callable[[str], None]) -> FetchedModel:
    """Fetch a model by name.

    Args:
        only: files of weights in GGUF, where there are several.
        tell: takes lines for whoever waits.

    Raises:
        OptionError: there is no such model, or it cannot be fetched.
    """
    try:
        asked = HubName.parse(name)
        from runtime.model import hub_download

        return hub_download.fetch(asked, only=only, tell=tell)
    except LoadError as error:
        raise OptionError(str(error)) from error
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{name}: fetching needs more (no {error.name}): pip install 'keepwarm[hub]'"
        ) from error


def with_model_here(options: ServeOptions, tell: Callable[[str], None]) -> ServeOptions:
    """The options, their model fetched if it is one of a hub that is not here yet, and named by its
    commit, so that every process loads the same.

    Raises:
        OptionError: it cannot be fetched.
    """
    model = options.engine.model
    if not is_hub_name(model):
        return options
    try:
        found = HubRecords().find(HubName.parse(model))
    except LoadError as error:
        raise OptionError(f"--model {error}") from error
    found = found or fetch(model, (), tell)
    return replace(options, engine=replace(options.engine, model=str(found.name)))
