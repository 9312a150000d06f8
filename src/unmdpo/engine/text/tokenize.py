"""Many texts to token ids, as fast as the tokenizer can."""

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

Tokenize = Callable[[Sequence[str]], list[list[int]]]
SAMPLES = ("", " a b", "One, two:\n\n1 + 2 = 3\n", "Größe 大きさ 👍🏽", "<s>x</s>", " \t\n x")


def batch_tokenizer(tokenizer: PreTrainedTokenizerBase) -> Tokenize:
    """Asks the tokenizer behind Transformers' own, where that gives the same: Transformers spends as much time on
    masks and checks that nobody wants here as a tokenizer takes on sixteen cores."""

    def usual(texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
        return ids

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return usual
    marks = [str(token) for token in tokenizer.all_special_tokens]
    samples = [*SAMPLES, *(f"a {mark}b{mark} c" for mark in marks[:8])]
    expected = usual(samples)  # which also turns off padding and truncation that the tokenizer's file may ask for
    direct = tokenizer.backend_tokenizer

    def fast(texts: Sequence[str]) -> list[list[int]]:
        direct.no_padding()  # others may have asked for it since
        direct.no_truncation()
        return [made.ids for made in direct.encode_batch_fast(list(texts), add_special_tokens=False)]

    return fast if fast(samples) == expected else usual
