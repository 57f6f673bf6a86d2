"""Lists of modules, read as those who write them mean them."""

import pytest

from runtime.model.module_names import ModuleNames
from runtime.model.name_patterns import UnknownSyntax

GATE = "model.layers.11.mlp.gate"


@pytest.mark.parametrize(
    ("way", "names", "fits", "fits_not"),
    [
        ("ends", ["gate"], [GATE], [f"{GATE}_proj"]),
        ("ends", ["model.layers.1"], ["model.layers.1.mlp.gate"], [GATE]),
        ("ends", ["model.layers.*.mlp"], [GATE], ["model.layers.0.self_attn.q_proj"]),
        ("ends", ["model.layers.*.mlp.router"], [], [GATE]),
        ("wildcards", ["model.layers.11*"], [GATE], ["model.layers.1.mlp.gate"]),
        ("wildcards", ["gate"], ["gate.x"], [GATE]),
        ("parts", ["mlp.ga"], [GATE, f"{GATE}_proj"], ["model.layers.0.self_attn"]),
        ("targets", [GATE], [GATE], [f"{GATE}.x"]),
        ("targets", ["re:.*mlp[.]gate$"], [GATE], [f"{GATE}_proj"]),
        ("targets", ["mlp.gate"], [], [GATE]),
        ("all", [], [GATE, ""], []),
        ("ends", [""], [], [GATE]),
        ("parts", [""], [], [GATE]),
    ],
)
def test_a_list_has_what_its_writer_means(way, names, fits, fits_not) -> None:
    listed = ModuleNames(way, tuple(names))
    assert all(listed.fits(module) for module in fits)
    assert not any(listed.fits(module) for module in fits_not)
    assert listed == ModuleNames(way, tuple(names))


def test_an_expression_that_cannot_be_read_is_named() -> None:
    with pytest.raises(UnknownSyntax, match=r"re:\(a\+\)\+"):
        ModuleNames("targets", ("re:(a+)+",))
