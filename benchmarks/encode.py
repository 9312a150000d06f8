"""How fast messages become tokens at HelpSteer3's size: 36,000 pairs, with a byte-level BPE tokenizer trained here on
words of a Zipf vocabulary.

    python -m benchmarks.encode [--pairs 36000]
"""

import argparse
import itertools
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from unmdpo.data.comparison import Comparison, Origin
from unmdpo.data.identity import Message
from unmdpo.engine.shapes import pair_lengths
from unmdpo.engine.text.encode import Encoder
from unmdpo.engine.text.encoded import EncodedPairs

TEMPLATE = (
    "<|bos|>{% for m in messages %}<|start|>{{ m.role }}<|sep|>\n\n{{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|sep|>\n\n{% endif %}"
)
SPECIAL = ["<|bos|>", "<|start|>", "<|sep|>", "<|end|>"]


class Words:
    """Text of a given number of words, drawn with Zipf frequencies."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.pool = ["".join(self.rng.choices("etaoinshrdlucmfwyp", k=2 + i % 9)) for i in range(20_000)]
        self.weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(len(self.pool))))

    def text(self, words: int) -> str:
        return " ".join(self.rng.choices(self.pool, cum_weights=self.weights, k=words))


def make_tokenizer(words: Words) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=16_000, special_tokens=SPECIAL, show_progress=False)
    bpe.train_from_iterator((words.text(500) for _ in range(2000)), trainer)
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe, bos_token="<|bos|>", eos_token="<|end|>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def comparisons(count: int, words: Words) -> Iterator[Comparison]:
    for number, (prompt, chosen, rejected) in enumerate(pair_lengths(count, 4096)):
        yield Comparison(
            (Message("user", words.text(prompt)),),
            words.text(chosen),
            words.text(rejected),
            strength=1,
            source=Origin("synthetic", number),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=36_000)
    words = Words()
    encoder = Encoder(make_tokenizer(words), max_length=4096)
    rows = list(comparisons(parser.parse_args().pairs, words))
    wall, cpu = time.perf_counter(), time.process_time()
    encoded = EncodedPairs.of(encoder.encode(rows))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{len(encoded):,} pairs, {encoded.lengths.sum():,} tokens: {wall:.1f} s, {cpu / wall:.2f} cores busy")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.safetensors"
        started = time.perf_counter()
        encoded.save(file)
        saved = time.perf_counter()
        EncodedPairs.load(file)
        print(f"saved in {saved - started:.2f} s, read back in {time.perf_counter() - saved:.2f} s")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
