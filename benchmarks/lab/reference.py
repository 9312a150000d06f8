"""The lab's reference policy: a very small Llama trained on imperfect demonstrations.

It ships with the package; `unmdpo lab build` rebuilds it, with the same result on the same machine.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from unmdpo.data import Message
from unmdpo.engine.pairs.padding import padded
from unmdpo.engine.text.encode import Encoder
from unmdpo.lab.world import Knobs, Prompt, World

PAD, END, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
WORLD = Knobs(prompts=8000)
UPDATES, BATCH, PEAK_RATE, WARM_UP = 3000, 64, 2e-3, 100


def build(folder: Path, updates: int = UPDATES, report: Callable[[str], None] = print) -> None:
    """Trains the tokenizer and the model, and saves both."""
    world = World(WORLD)
    tokenizer = make_tokenizer(world)
    torch.manual_seed(0)
    model = make_model(tokenizer)
    encoder = Encoder(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    demonstrations = world.demonstrations()
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * min(1, (update + 1) / WARM_UP) * (1 - update / updates)
        loss = demonstration_loss(model, encoder, islice(demonstrations, BATCH))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (update + 1) % 100 == 0:
            report(f"update {update + 1}/{updates}, loss {loss.item():.3f}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_tokenizer(world: World) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer, which can encode any text, with a token for each word of the world."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=[PAD, END, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (text for prompt, answer in islice(world.demonstrations(), 8000) for text in (prompt.text, answer))
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]


def demonstration_loss(
    model: LlamaForCausalLM, encoder: Encoder, demonstrations: Iterator[tuple[Prompt, str]]
) -> torch.Tensor:
    """Mean negative log-probability of the responses' tokens."""
    answered = [((Message("user", prompt.text),), response) for prompt, response in demonstrations]
    starts = encoder.tokenize([encoder.prompt_text(prompt) for prompt, _ in answered])
    wholes = encoder.tokenize([encoder.answered_text(prompt, response) for prompt, response in answered])
    tokens, mask = padded(wholes, 0, "right")  # (b, t)
    places = torch.arange(tokens.shape[1])
    scored = mask.bool() & (places >= torch.tensor([len(start) for start in starts])[:, None])
    logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits  # (b, t, v)
    return cross_entropy(logits[:, :-1][scored[:, 1:]], tokens[:, 1:][scored[:, 1:]])
