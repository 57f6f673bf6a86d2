"""Which scheme a module has."""

from runtime.model.module_names import ModuleNames
from runtime.model.schemes import Quantisation, Scheme

WHOLE, OWN = Scheme(layout="packed", bits=4, group=32), Scheme(layout="fp8")


def test_the_first_rule_that_fits_counts_and_then_the_whole() -> None:
    quantisation = Quantisation(
        method="test",
        excluded_field="ignore",
        scheme=WHOLE,
        own=(
            (ModuleNames("targets", ("model.layers.0.mlp.up_proj",)), None),
            (ModuleNames("targets", ("re:model.layers.0.*",)), OWN),
        ),
    )
    assert quantisation.scheme_of("model.layers.0.mlp.up_proj") is None
    assert quantisation.scheme_of("model.layers.0.mlp.down_proj") == OWN
    assert quantisation.scheme_of("model.layers.1.mlp.up_proj") == WHOLE


def test_a_list_may_name_the_text_part_as_if_it_stood_alone() -> None:
    listed = ModuleNames("targets", ("model.layers.0.mlp.up_proj", "lm_head"))
    quantisation = Quantisation(
        method="test", excluded_field="ignore", scheme=WHOLE, own=((listed, None),)
    )
    for prefix in ("model.language_model.", "language_model.model."):
        assert quantisation.scheme_of(f"{prefix}layers.0.mlp.up_proj") is None
    assert quantisation.scheme_of("language_model.lm_head") is None
