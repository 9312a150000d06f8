"""Chat templates in the published formats of model families, and tokenizers that behave like theirs."""

# ruff: noqa: E501 - templates read best in few lines

from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

MUST_ALTERNATE = (
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% endfor %}"
)
ALL = "{% set rest = messages %}" + MUST_ALTERNATE
AFTER_SYSTEM = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}" + MUST_ALTERNATE
)
CHATML = "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>{{ '\n' }}{% endfor %}"
CHATML_START = "{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}"

TEMPLATES = {
    "llama-3.2": (
        "<s>{% set day = date_string if date_string is defined else strftime_now('%d %b %Y') %}"
        "<|start_header_id|>system<|end_header_id|>\n\nToday Date: {{ day }}\n\n"
        "{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% set messages = messages[1:] %}{% endif %}"
        "<|eot_id|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{{ m.content | trim }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "qwen2.5": CHATML + CHATML_START,
    "qwen3": (
        "{% set last = namespace(user=0) %}"
        "{% for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}<|im_start|>{{ m.role + '\n' }}"
        "{% if m.role == 'assistant' %}"
        "{% set thought = m.content.split('</think>')[0].split('<think>')[-1] if '</think>' in m.content else '' %}"
        "{% set said = m.content.split('</think>')[-1].lstrip('\n') %}"
        "{% if loop.index0 > last.user %}{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}{% endif %}{{ said }}"
        "{% else %}{{ m.content }}{% endif %}<|im_end|>{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}"
        "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
    ),
    "mistral-v0.3": (
        "<s>" + AFTER_SYSTEM + "{% for m in rest %}{% if m.role == 'user' %}"
        "[INST] {% if loop.last and system %}{{ system + '\n\n' }}{% endif %}{{ m.content }}[/INST]"
        "{% else %} {{ m.content | trim }}</s>{% endif %}{% endfor %}"
    ),
    "gemma-2": (
        "<s>{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + ALL
        + "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
    "gemma-3": (
        "<s>" + AFTER_SYSTEM + "{% for m in rest %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{% if loop.first and system %}{{ system + '\n\n' }}{% endif %}{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
    "phi-3": (
        "{% for m in messages %}<|{{ m.role }}|>{{ '\n' + m.content }}<|end|>{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{{ '\n' }}{% else %}</s>{% endif %}"
    ),
    "r1-distill": (
        "<s>{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
        "<|user|>{{ m.content }}{% else %}<|assistant|>{{ m.content.split('</think>')[-1] }}</s>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|><think>{{ '\n' }}{% endif %}"
    ),
    "gpt-oss": (
        "<|start|>system<|message|>Current date: {{ strftime_now(\"%Y-%m-%d\") }}<|end|>"
        "{% for m in messages %}<|start|>{% if m.role == 'assistant' %}assistant<|channel|>final<|message|>"
        "{{ m.content }}{% if loop.last %}<|return|>{% else %}<|end|>{% endif %}"
        "{% else %}{{ 'developer' if m.role == 'system' else m.role }}<|message|>{{ m.content }}<|end|>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    ),
    "zephyr": (
        "{% for m in messages %}<|{{ m.role }}|>{{ '\n' + m.content }}</s>{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{{ '\n' }}{% endif %}"
    ),
    "generation marks": (
        "{% for m in messages %}<|im_start|>{{ m.role + '\n' }}{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}"
        "{{ '\n' }}{% endfor %}" + CHATML_START
    ),
    "drops system": (
        "{% for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>"
        "{{ '\n' }}{% endif %}{% endfor %}" + CHATML_START
    ),
}  # fmt: skip

HERMES_CALLS = (
    "{% if m.tool_calls %}{% for call in m.tool_calls %}{{ '\n' if m.content or not loop.first }}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}{% endif %}"
)
HERMES_TOOLS = (
    "{% if tools %}<|im_start|>system\n# Tools\n<tools>{% for t in tools %}\n{{ t | tojson }}{% endfor %}\n</tools>"
    "<|im_end|>\n{% endif %}"
)
WITH_TOOLS = {
    "qwen2.5": (
        HERMES_TOOLS + "{% for m in messages %}{% if m.role == 'tool' %}"
        "{% if loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}\n<tool_response>\n{{ m.content }}\n</tool_response>"
        "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}"
        "{% else %}<|im_start|>{{ m.role + '\n' + m.content }}" + HERMES_CALLS + "<|im_end|>\n{% endif %}{% endfor %}"
        + CHATML_START
    ),
    "hermes": (
        HERMES_TOOLS + "{% for m in messages %}<|im_start|>{{ m.role + '\n' }}{% if m.role == 'tool' %}"
        "<tool_response>\n{{ m.content }}\n</tool_response>{% else %}{{ m.content }}" + HERMES_CALLS + "{% endif %}"
        "<|im_end|>\n{% endfor %}" + CHATML_START
    ),
    "llama-3.1": (
        "<s>{% if tools %}<|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n"
        "{% for t in tools %}{{ t | tojson(indent=4) }}\n{% endfor %}<|eot_id|>{% endif %}"
        "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
        "{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
        "<|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"{{ m.tool_calls[0].function.name }}\", "
        "\"parameters\": {{ m.tool_calls[0].function.arguments | tojson }}}<|eot_id|>"
        "{% elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content | tojson }}<|eot_id|>"
        "{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "mistral-v0.3": (
        "<s>{% if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
        "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
        "{% elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}"
        "{% if c.id is not defined or c.id | length != 9 %}"
        "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
        "{{ dict(c.function, id=c.id) | tojson }}{{ ', ' if not loop.last }}{% endfor %}]</s>"
        "{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ {'content': m.content, 'call_id': m.tool_call_id} | tojson }}[/TOOL_RESULTS]"
        "{% else %} {{ m.content | trim }}</s>{% endif %}{% endfor %}"
    ),
}  # fmt: skip

SPECIAL = [
    "<s>", "</s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>", "[INST]",
    "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|end|>", "<|start|>", "<|message|>", "<|channel|>", "<|return|>",
]  # fmt: skip
TEXTS = [
    "The sky is blue.\n\nIt is blue because of how light scatters.\n\n\n- one\n- two\n\n  indented\n",
    "user\n assistant\n\nassistant\nmodel\n\n Hello there, how are you?\n\nHello! Hello there\n",
    "def f(x):\n    return x\n\n\nprint(f(3))\n\n" * 3,
    "<think>\n\n</think>\n\n Hello",
    "¿Qué tal? 你好，世界。 Привет! 🙂\n\n",
] * 4
SIZE = 600
LLAMA3_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level():
    """As in GPT-2 and SmolLM2: white space of any kind is one piece."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return made, trainers.BpeTrainer(vocab_size=SIZE, initial_alphabet=alphabet, show_progress=False)


def prefixed_bytes():
    """Byte-level with a space before every text, as in OPT."""
    made, trainer = byte_level()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return made, trainer


def tiktoken_like():
    """As in Llama-3 and Qwen: line breaks join the punctuation before them."""
    made, trainer = byte_level()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return made, trainer


def dummy_prefix():
    """SentencePiece as in Llama-2 and Mistral: a space before every piece of text between special tokens."""
    made = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made, trainers.BpeTrainer(vocab_size=SIZE, special_tokens=["<unk>", *BYTES], show_progress=False)


def no_prefix():
    """SentencePiece as in Gemma: runs of line breaks are tokens, and nothing is put before a text."""
    made = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return made, trainers.BpeTrainer(vocab_size=SIZE, special_tokens=["<unk>", *BYTES], show_progress=False)


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TOKENIZERS = {kind.__name__: kind for kind in (byte_level, prefixed_bytes, tiktoken_like, dummy_prefix, no_prefix)}


@cache
def _trained(kind):
    made, trainer = TOKENIZERS[kind]()
    made.train_from_iterator(TEXTS, trainer)
    return made.to_str()


def tokenizer_like(kind, template):
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained(kind)), bos_token="<s>", eos_token="</s>"
    )
    made.add_special_tokens({"additional_special_tokens": [AddedToken(token, special=True) for token in SPECIAL[2:]]})
    made.chat_template = TEMPLATES.get(template, template)
    return made
