"""Embeddings, greedy generation and judges, checked against slow, obvious code."""

import copy
import json
import shutil

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

from tests.worlds.families import build
from tests.worlds.models import TINY, tiny, word_tokenizer
from unmdpo.core.errors import UserError
from unmdpo.core.functions import function_files
from unmdpo.data.identity import Message
from unmdpo.engine.inference.embed import Embedder, embed_prompts, embeddings_of
from unmdpo.engine.inference.function_judge import check_function, checked, open_function
from unmdpo.engine.inference.generate import GenerationSettings, Generator
from unmdpo.engine.inference.judges import FunctionSettings
from unmdpo.engine.inference.reward_model import RewardModel
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.text.encode import Encoder


def prompts(count):
    return [(Message("user", " ".join(f"w{(i * j) % 50}" for j in range(1 + i % 7))),) for i in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer()


@pytest.fixture
def encoder(tokenizer):
    return Encoder(tokenizer)


@pytest.fixture(scope="module")
def model():
    return tiny("llama, tied", "sdpa", torch.float32)


# --- Embeddings -----------------------------------------------------------------------------------


def test_embeddings_are_the_last_hidden_state_of_each_prompt(model, encoder, monkeypatch):
    monkeypatch.setattr("unmdpo.engine.inference.embed.BUDGETS", (64, 64))
    asked = prompts(35)
    found = embeddings_of(Embedder(model), encoder, asked)
    assert found.shape == (35, 32)
    for place in range(35):
        ids = encoder.tokenize([encoder.prompt_text(asked[place])])
        with torch.no_grad():
            alone = model.model(torch.tensor(ids)).last_hidden_state[0, -1]
        assert torch.allclose(found[place], alone, atol=1e-5)
    batches = list(embed_prompts(Embedder(model), encoder, asked, done=range(10)))
    assert len(batches) > 1
    assert sorted(place for places, _ in batches for place in places) == [*range(10, 35)]
    assert all(torch.allclose(batch, found[places], atol=1e-5) for places, batch in batches)


def test_long_prompts_lose_their_beginning(model, encoder, monkeypatch):
    monkeypatch.setattr("unmdpo.engine.inference.embed.LONGEST", 3)
    long, short = (Message("user", "w9 w8 w7 w1"),), (Message("user", "w1"),)
    a, b = (embeddings_of(Embedder(model), encoder, [p]) for p in (long, short))
    assert torch.allclose(a, b, atol=1e-6)  # both end in: w1 <end> <assistant>


def test_embeddings_that_are_not_finite_stop(encoder):
    broken = tiny("llama, tied", "sdpa", torch.float32)
    with torch.no_grad():
        broken.model.norm.weight[0] = torch.nan
    with pytest.raises(UserError, match="embedding of prompt 0 is not finite"):
        list(embed_prompts(Embedder(broken), encoder, prompts(2)))


# --- Generation -----------------------------------------------------------------------------------


def greedy(model, encoder, prompt, limit):
    """One token at a time, no cache, no batch."""
    row = encoder.tokenize([encoder.prompt_text(prompt)])[0]
    written = []
    while len(written) < limit:
        with torch.no_grad():
            token = int(model(torch.tensor([row + written])).logits[0, -1].argmax())
        written.append(token)
        if token in (1, 2):  # the tokenizer's <end>, and the model's end token
            break
    return written


@pytest.mark.parametrize("kind", ["llama, tied", "gemma3, sliding"])  # our decoding and Transformers'
def test_generation_equals_a_slow_greedy_loop(kind, encoder):
    model, asked = tiny(kind, "sdpa", torch.float32), prompts(9)
    made = Generator(model, encoder, GenerationSettings(max_new_tokens=12, token_budget=60))
    batches = list(made.generate(asked))
    assert len(batches) > 2
    found = {g.prompt: g for batch in batches for g in batch}
    assert sorted(found) == list(range(9))
    for place, prompt in enumerate(asked):
        slow = greedy(model, encoder, prompt, 12)
        ended = slow[-1] in (1, 2)
        assert found[place].tokens == len(slow)
        assert found[place].finished == ended
        text = encoder.tokenizer.decode(slow[:-1] if ended else slow, skip_special_tokens=True)
        assert found[place].text == text
    penalized = copy.deepcopy(model)
    penalized.generation_config.repetition_penalty = 1.5  # from the model's folder; ignored by greedy decoding
    assert list(Generator(penalized, encoder, made.settings).generate(asked)) == batches
    done = {one.prompt for batch in batches[:2] for one in batch}
    rest = list(Generator(model, encoder, made.settings).generate(asked, done))
    assert rest == batches[2:]


def test_a_long_prompt_does_not_shorten_its_neighbours_answers(encoder):
    """Context 64: one prompt leaves 4 tokens for its answer, the other all it may have."""
    small = LlamaForCausalLM(LlamaConfig(**(TINY | {"max_position_embeddings": 64, "eos_token_id": None}))).eval()
    texts = [" ".join(["w1"] * 57), "w2 w3", "w4"]
    asked = [(Message("user", text),) for text in texts]
    settings = GenerationSettings(max_new_tokens=32)
    found = {one.prompt: one for batch in Generator(small, encoder, settings).generate(asked) for one in batch}
    for place, prompt in enumerate(asked):
        ((alone,),) = Generator(small, encoder, settings).generate([prompt])
        assert (found[place].text, found[place].tokens) == (alone.text, alone.tokens)
    assert found[0].tokens <= 64 - 60


def test_answers_end_where_the_template_ends_them(tokenizer, model):
    """Also if it is neither the tokenizer's nor the model's end token."""
    other = copy.deepcopy(tokenizer)
    other.add_special_tokens({"eos_token": "<user>"})
    other.add_tokens(["<end>"], special_tokens=True)
    ends = Generator(model, Encoder(other)).ends
    assert {other.convert_tokens_to_ids(name) for name in ("<end>", "<user>")} <= ends


def test_what_was_read_before_changes_nothing(encoder):
    """Dynamic ropes remember the longest input."""
    short, long = prompts(3)[1:], [(Message("user", " ".join(["w5"] * 40)),)]

    used = build("llama, dynamic rope")
    embeddings_of(Embedder(used), encoder, long)
    expected = embeddings_of(Embedder(build("llama, dynamic rope")), encoder, short)
    assert torch.equal(embeddings_of(Embedder(used), encoder, short), expected)


# --- Judges ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reward_folder(tokenizer, tmp_path_factory):
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("judge")
    config = LlamaConfig(**(TINY | {"num_labels": 1}))
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_reward_model_scores_the_whole_conversation(reward_folder, encoder, monkeypatch):
    monkeypatch.setattr("unmdpo.engine.inference.reward_model.TOKEN_BUDGET", 20)
    judge = RewardModel(ModelSource(path=str(reward_folder)))
    asked, responses = prompts(5), ["w1 w2", "", "w3", "w4 w5 w6 w7", "w1"]
    scores = checked(judge, asked, responses)
    for prompt, response, score in zip(asked, responses, scores, strict=True):
        text = f"<user> {prompt[0].content} <end> <assistant> {response} <end> "
        ids = torch.tensor(encoder.tokenize([text]))
        with torch.no_grad():
            assert score == pytest.approx(float(judge.model(ids).logits[0, 0]), abs=1e-5)


def test_a_reward_model_with_several_outputs_needs_a_choice(reward_folder, tmp_path):
    config = AutoConfig.from_pretrained(reward_folder, num_labels=3)
    config.id2label = {0: "helpful", 1: "harmless", 2: "short"}
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        model.score.weight.normal_()
    model.save_pretrained(tmp_path / "three")
    AutoTokenizer.from_pretrained(reward_folder).save_pretrained(tmp_path / "three")
    source = ModelSource(path=str(tmp_path / "three"))
    with pytest.raises(UserError, match=r"3 outputs; set evaluation\.judge\.label to one of 0 \(helpful\), 1"):
        RewardModel(source)
    with pytest.raises(UserError, match="has no output 'harmles'; did you mean 'harmless'"):
        RewardModel(source, "harmles")
    asked, responses = prompts(3), ["w1 w2", "w3", "w4 w5 w6 w7"]
    by_name, by_place = (RewardModel(source, label)(asked, responses) for label in ("harmless", 1))
    assert by_name == by_place != RewardModel(source, 0)(asked, responses)


def test_a_judge_with_its_own_code_and_another_template(reward_folder, tmp_path):
    shutil.copytree(reward_folder, tmp_path / "own")
    (tmp_path / "own" / "own.py").write_text(
        "from transformers import LlamaConfig, LlamaForSequenceClassification\n\n\n"
        "class PromptOffsets(LlamaForSequenceClassification):\n"
        "    config_class = LlamaConfig\n\n"
        "    def forward(self, *inputs, **more):\n"
        "        made = super().forward(*inputs, **more)\n"
        "        made.logits = 10 * made.logits\n"
        "        return made\n"
    )
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    config["auto_map"] = {"AutoModelForSequenceClassification": "own.PromptOffsets"}
    (tmp_path / "own" / "config.json").write_text(json.dumps(config))
    source = ModelSource(path=str(tmp_path / "own"), trust_remote_code=True)
    asked, responses = prompts(2), ["w1 w2", "w3"]
    plain = RewardModel(ModelSource(path=str(reward_folder)))(asked, responses)
    assert RewardModel(source)(asked, responses) == pytest.approx([10 * score for score in plain], rel=1e-5)
    other = source.model_copy(update={"template": "{% for m in messages %}{{ m.content }} <end> {% endfor %}"})
    assert RewardModel(other)(asked, responses) != RewardModel(source)(asked, responses)


def test_a_language_model_is_no_reward_model(tmp_path):
    tiny("llama, untied", dtype=torch.float32).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"has no score head[\s\S]*evaluation\.judge\.endpoint"):
        RewardModel(ModelSource(path=str(tmp_path)))


def test_the_last_token_is_scored_even_if_it_looks_like_padding(reward_folder, encoder, tmp_path):
    """A model without a padding token reads its score at the very last token; ours is chosen so that it still does."""
    shutil.copytree(reward_folder, tmp_path / "judge")
    config = json.loads((tmp_path / "judge" / "config.json").read_text())
    config["pad_token_id"] = None
    (tmp_path / "judge" / "config.json").write_text(json.dumps(config))
    judge = RewardModel(ModelSource(path=str(tmp_path / "judge")))
    asked, responses = prompts(4), ["w1 w2", "w0", "w3", "w4 w5 w6 w7"]
    scores = judge(asked, responses)
    for prompt, response, score in zip(asked, responses, scores, strict=True):
        ids = torch.tensor(encoder.tokenize([f"<user> {prompt[0].content} <end> <assistant> {response} <end> "]))
        judge.model.config.pad_token_id = None
        with torch.no_grad():
            assert score == pytest.approx(float(judge.model(ids).logits[0, 0]), abs=1e-5)


def test_a_judge_chooses_its_padding_for_each_call(reward_folder, tmp_path):
    """A token that the first conversations lacked may end a later one."""
    shutil.copytree(reward_folder, tmp_path / "judge")
    config = json.loads((tmp_path / "judge" / "config.json").read_text())
    (tmp_path / "judge" / "config.json").write_text(json.dumps(config | {"pad_token_id": None}))
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    used, fresh = (RewardModel(ModelSource(path=str(tmp_path / "judge"), template=template)) for _ in range(2))
    asked = [(Message("user", "w1 w2 w3"),), (Message("user", "w1"),)]
    used(asked, ["w2", "w3"])  # <pad> is not in these
    assert used(asked, ["w2 <pad>", "w3 w4 <pad>"]) == fresh(asked, ["w2 <pad>", "w3 w4 <pad>"])


def test_a_missing_judge_is_said(tmp_path):
    with pytest.raises(UserError, match=r"of '.*nowhere' could not be loaded"):
        RewardModel(ModelSource(path=str(tmp_path / "nowhere")))


def test_a_judge_function_reads_turns_as_it_likes():
    judge = open_function(FunctionSettings(function="tests.worlds.judges:reads_turns"))
    assert judge([(Message("system", "Be brief."), Message("user", "Why?"))], ["So."]) == [4.0]


def test_a_function_can_judge():
    judge = open_function(FunctionSettings(function="tests.worlds.judges:longest"))
    assert checked(judge, prompts(2), ["a", "a b c"]) == [1.0, 3.0]
    for name in ("tests.worlds.judges:nobody", "no.such.module:f", "plain", "tests.worlds.judges:NASTY"):
        with pytest.raises(UserError, match="judge function"):
            check_function(FunctionSettings.model_construct(function=name))


def test_judges_that_misbehave_are_stopped():
    with pytest.raises(UserError, match="1 scores for 2 responses"):
        checked(lambda p, r: [1.0], prompts(2), ["a", "b"])
    with pytest.raises(UserError, match=r"scores of prompts \[1\] are not finite"):
        checked(lambda p, r: [1.0, float("inf")], prompts(2), ["a", "b"])


def test_a_judge_package_that_exits_when_it_is_imported_ends_only_itself(tmp_path, monkeypatch):
    (tmp_path / "leaver").mkdir()
    (tmp_path / "leaver" / "__init__.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "leaver" / "judge.py").write_text(
        "def score(prompts, responses):\n    return [0.0 for _ in responses]\n"
    )
    monkeypatch.chdir(tmp_path)
    settings = FunctionSettings(function="leaver.judge:score")
    files = [str(tmp_path / "leaver" / name) for name in ("__init__.py", "judge.py")]
    assert sorted(map(str, function_files(settings.function).values())) == files  # found without importing anything
    with pytest.raises(UserError, match=r"judge function 'leaver\.judge:score': SystemExit: 0"):
        check_function(settings)


def test_a_chosen_padding_token_is_in_none_of_the_texts(reward_folder, tmp_path):
    """Scores are read at the last token that does not pad."""
    shutil.copytree(reward_folder, tmp_path / "judge")
    config = json.loads((tmp_path / "judge" / "config.json").read_text())
    (tmp_path / "judge" / "config.json").write_text(json.dumps(config | {"pad_token_id": None}))
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    judge = RewardModel(ModelSource(path=str(tmp_path / "judge"), template=template))
    rows = [[0, 5, 0], [3, 1, 4, 0]]
    assert judge._pad(rows) == 2
    assert judge.model.config.pad_token_id == 2
