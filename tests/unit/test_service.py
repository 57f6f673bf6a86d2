"""The served model as its tokenizer makes it."""

from tests.support.sessions_rig import TOKENIZER, Rig


def test_the_longest_token_bounds_how_few_tokens_a_text_can_have() -> None:
    model = Rig().model
    texts = [TOKENIZER.token_bytes(token) for token in range(TOKENIZER.vocab_size)]
    assert model.longest_token_bytes == max(map(len, texts)) > 1


def test_a_model_answers_to_its_name_and_its_aliases() -> None:
    assert Rig().model.aliases == {"default", "m"}
