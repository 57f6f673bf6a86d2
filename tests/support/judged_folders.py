"""Model folders with random weights, a token for each byte, and a chat template."""

from collections.abc import Sequence
from pathlib import Path

import transformers

from tests.support.byte_tokenizer import SPECIAL_TOKENS, files
from tests.support.hf_models import make_model, save


def template_folder(
    folder: Path,
    template: str | None,
    *,
    specials: Sequence[str] = SPECIAL_TOKENS,
    ends: Sequence[str] = ("<|im_end|>", "<|endoftext|>"),
    model: transformers.PreTrainedModel | None = None,
) -> Path:
    """A folder of a small model.

    Args:
        folder: where it is written.
        template: its own; None: it has none.
        specials: of its tokenizer.
        ends: those of them that end a turn.
        model: what is in it; None: one of Qwen3's shape.
    """
    save(make_model("qwen3") if model is None else model, folder)
    for name, text in files(specials, ends).items():
        (folder / name).write_text(text, encoding="utf-8")
    path = folder / "chat_template.jinja"
    path.unlink(missing_ok=True)
    if template is not None:
        path.write_text(template, encoding="utf-8")
    return folder
