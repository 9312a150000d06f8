"""Rows in the published shapes of preference data, with what should be read from them.

Each case: the source it is taken for, its rows, and its comparisons as (chosen, rejected, strength), ties last with
strength 0.
"""

# ruff: noqa: E501 - rows read best in one line

from typing import Any, NamedTuple


class Shape(NamedTuple):
    source: str
    rows: list[dict[str, Any]]
    expected: list[tuple[str, str, int]]
    prompt: str = "Name a prime."  # the text of the first prompt's last turn
    settings: dict[str, Any] = {}  # noqa: RUF012 - read only
    left_out: int = 0


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def talk(answer, question="Name a prime."):
    return [user(question), said(answer)]


def parts(text):
    return [{"type": "text", "text": text, "image": None, "mimeType": None}]


PROMPT = {"prompt": "Name a prime."}
CONTEXT = {"domain": "general", "language": "english", "context": [user("Name a prime.")]}
RATED = {"correctness": 4, "coherence": 4, "complexity": 1, "verbosity": 1}
PAIR = {"chosen": "Seven.", "rejected": "Nine."}
BETTER = ("Seven.", "Nine.", 1)


def completion(text, score):
    return {
        "annotations": {"honesty": {"Rating": "N/A", "Rationale": "Not applicable."}},
        "custom_system_prompt": "Be helpful.", "model": "m", "principle": "helpfulness", "response": text,
        "critique": "Good.", "fine-grained_score": 5.0, "overall_score": score,
    }  # fmt: skip


def battle(winner, a="Seven.", b="Nine.", **changes):
    return {
        "question_id": "q", "model_a": "x", "model_b": "y", "winner": winner, "judge": "j", "conversation_a": talk(a),
        "conversation_b": talk(b), "turn": 1, "anony": True, "language": "English", "tstamp": 1.5,
    } | changes  # fmt: skip


def arena_140k(winner):
    sides = {
        f"conversation_{side}": [
            {"role": "user", "content": parts("Name a prime.")},
            {"role": "assistant", "content": parts(text)},
        ]
        for side, text in (("a", "Seven."), ("b", "Nine."))
    }
    return {
        "id": "c",
        "model_a": "x",
        "model_b": "y",
        "winner": winner,
        "evaluation_order": 1,
        **sides,
        "language": "en",
    }


def shp(label, a, b):
    return {
        "post_id": "p", "domain": "askculinary_train", "upvote_ratio": 0.98, "history": "How to keep basil?",
        "score_A": a, "score_B": b, "human_ref_A": "In water.", "human_ref_B": "Freeze it.", "labels": label,
        "seconds_difference": 2.0, "score_ratio": max(a, b) / max(1, min(a, b)),
    }  # fmt: skip


def safe(better, safer, severity=(2, 0)):
    return {
        "prompt": "How do I get back at my boss?", "response_0": "Spread rumours.", "response_1": "Talk to HR.",
        "is_response_0_safe": False, "is_response_1_safe": True, "response_0_harm_category": {"Insulting Behavior": True},
        "response_0_severity_level": severity[0], "response_1_severity_level": severity[1],
        "better_response_id": better, "safer_response_id": safer, "response_0_sha256": "00",
    }  # fmt: skip


HELLO = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Name a prime.\n\nAssistant:"

SHAPES: dict[str, Shape] = {
    "HelpSteer3 preference": Shape(
        "helpsteer3",
        [
            CONTEXT | {"response1": "Seven.", "response2": "Nine.", "overall_preference": -2,
                       "individual_preference": [{"score": -2, "reasoning": "r"}]},
            CONTEXT | {"response1": "Two.", "response2": "Three.", "overall_preference": 0, "individual_preference": []},
        ],
        [("Seven.", "Nine.", 2), ("Two.", "Three.", 0)],
    ),
    "HelpSteer2 preference": Shape(
        "helpsteer2",
        [PROMPT | {"split": "train", "response_1": "Nine.", "response_2": "Seven.", "preference_strength": 2,
                   "all_preferences_unprocessed": [{"strength": 2, "justification": "j"},
                                                   {"strength": -100, "justification": "Neither."}]},
         PROMPT | {"split": "val", "response_1": "a", "response_2": "b", "preference_strength": 1}],
        [("Seven.", "Nine.", 2)],
    ),
    "HelpSteer ratings": Shape(
        "helpsteer",
        [PROMPT | RATED | {"response": text, "helpfulness": grade}
         for text, grade in (("Seven.", 4), ("Eleven.", 3), ("Nine.", 0), ("Thirteen.", 4))],
        [("Seven.", "Eleven.", 1), ("Seven.", "Nine.", 3), ("Thirteen.", "Eleven.", 1), ("Thirteen.", "Nine.", 3),
         ("Eleven.", "Nine.", 3), ("Seven.", "Thirteen.", 0)],
    ),
    "HelpSteer2 disagreements": Shape(
        "helpsteer",
        [PROMPT | {name: [4, 4] for name in RATED} | {"response": text, "helpfulness": grades}
         for text, grades in (("Seven.", [3, 3, 3]), ("Nine.", [1, 1, 1]))],
        [("Seven.", "Nine.", 2)],
    ),
    "UltraFeedback": Shape(
        "ultrafeedback",
        [{"source": "evol_instruct", "instruction": "Name a prime.", "models": ["a", "b", "c"],
          "completions": [completion("Nine.", 2.0), completion("Seven.", 9.0), completion("Ten.", 2.0)],
          "correct_answers": ["None"]},
         {"source": "x", "instruction": "Alone?", "completions": [completion("One.", 2.0)]}],
        [("Seven.", "Nine.", 3), ("Seven.", "Ten.", 3), ("Nine.", "Ten.", 0)],
        settings={"thresholds": (2.0, 4.0)},
        left_out=1,
    ),
    "UltraFeedback binarized": Shape(
        "preference",
        [PROMPT | {"prompt_id": "0", "chosen": talk("Seven."), "rejected": talk("Nine."), "messages": talk("Seven."),
                   "score_chosen": 8.5, "score_rejected": 3.0},
         PROMPT | {"prompt_id": "1", "chosen": talk("A"), "rejected": talk("B"), "messages": talk("A"),
                   "score_chosen": 8.5, "score_rejected": 8.5}],
        [("Seven.", "Nine.", 2), ("A", "B", 0)],
        settings={"thresholds": (2.0, 6.0)},
    ),
    "UltraFeedback of Argilla": Shape(
        "preference",
        [{"source": "s", "instruction": "Name a prime.", "chosen_response": "Seven.", "rejected_response": "Nine.",
          "chosen_avg_rating": 4.75, "rejected_avg_rating": 1.5, "chosen_model": "m"}],
        [("Seven.", "Nine.", 3)],
        settings={"thresholds": (1.0, 2.0)},
    ),
    "UltraFeedback of Argilla, cleaned": Shape(
        "preference",
        [PROMPT | {"source": "s", "chosen": talk("Seven."), "chosen-rating": 4.75, "rejected": talk("Nine."),
                   "rejected-rating": 4.5}],
        [BETTER],
        settings={"thresholds": (1.0, 2.0)},
    ),
    "Nectar": Shape(
        "ranked",
        [{"prompt": "\n\nHuman: Name a prime.\n\nAssistant: ", "turns": 1, "num_responses": 4, "source": ["s"],
          "answers": [{"answer": text, "model": "m", "rank": rank}
                      for text, rank in (("Seven.", 1.0), ("Two.", 3.0), ("Nine.", 7.0), ("Nine.", 6.0))]}],
        [("Seven.", "Two.", 2), ("Seven.", "Nine.", 3), ("Seven.", "Nine.", 3), ("Two.", "Nine.", 2),
         ("Two.", "Nine.", 3)],
        left_out=1,
    ),
    "NeMo-RL": Shape(
        "ranked",
        [{"context": [user("Name a prime.")],
          "completions": [{"rank": 1, "completion": [said("Nine.")]}, {"rank": 0, "completion": [said("Seven.")]}]}],
        [BETTER],
    ),
    "SHP": Shape(
        "shp",
        [shp(1, 340, 166), shp(0, 10, 12), shp(1, 100, 2), shp(0, -3, 0)],
        [("In water.", "Freeze it.", 2), ("Freeze it.", "In water.", 1), ("In water.", "Freeze it.", 3),
         ("Freeze it.", "In water.", 1)],
        prompt="How to keep basil?",
    ),
    "PKU-SafeRLHF": Shape(
        "safe-rlhf",
        [safe(0, 1), safe(1, 1)],
        [("Spread rumours.", "Talk to HR.", 1), ("Talk to HR.", "Spread rumours.", 1)],
        prompt="How do I get back at my boss?",
    ),
    "PKU-SafeRLHF by harm": Shape(
        "safe-rlhf-harmless",
        [{key: value for key, value in row.items() if key != "better_response_id"}
         for row in (safe(0, 1), safe(0, 0, (1, 1)))],
        [("Talk to HR.", "Spread rumours.", 2), ("Spread rumours.", "Talk to HR.", 1)],
        prompt="How do I get back at my boss?",
    ),
    "Anthropic HH": Shape(
        "hh",
        [{"chosen": f"{HELLO} Seven.", "rejected": f"{HELLO} Nine."},
         {"chosen": f"{HELLO} Seven.\n\nHuman: Thanks", "rejected": f"{HELLO} Nine."},
         {"chosen": f"{HELLO} Seven.", "rejected": "\n\nHuman: Hi\n\nAssistant: Nine."}],
        [BETTER],
        left_out=2,
    ),
    "HH with a prompt": Shape("hh", [{"prompt": HELLO, "chosen": " Seven.", "rejected": " Nine."}], [BETTER]),
    "Chatbot Arena": Shape(
        "arena",
        [battle("model_a"), battle("model_b", "Nine.", "Seven."), battle("tie"), battle("tie (bothbad)", "x", "y"),
         battle(None), battle("model_a", conversation_b=talk("Nine.", "Else?")), battle("model_b", "u", "v")],
        [("Seven.", "Nine.", 2), ("v", "u", 1), ("x", "y", 0)],
        left_out=4,
    ),
    "Arena 55k": Shape(
        "arena",
        [{"id": i, "model_a": "x", "model_b": "y", "prompt": '["Name a prime."]', "response_a": '["Seven."]',
          "response_b": '["Nine."]', "winner_model_a": a, "winner_model_b": b, "winner_tie": 1 - a - b}
         for i, (a, b) in enumerate([(1, 0), (0, 1), (1, 0)])],
        [BETTER],
        left_out=2,
    ),
    "Arena 140k": Shape("arena", [arena_140k("model_a")], [BETTER]),
    "MT-Bench human": Shape(
        "arena",
        [{"question_id": 81, "model_a": "a", "model_b": "b", "winner": winner, "judge": judge, "turn": 1,
          "conversation_a": [*talk("Seven."), *talk("x")], "conversation_b": [*talk("Nine."), *talk("y")]}
         for winner, judge in (("model_a", "expert_1"), ("model_a", "expert_2"), ("tie (inconsistent)", "gpt4"))],
        [("Seven.", "Nine.", 2)],
        left_out=2,
    ),
    "labels with a sign": Shape(
        "sides",
        [PROMPT | {"response_a": "Nine.", "response_b": "Seven.", "label": label} for label in ("3", "-1", "+2", "0", None)],
        [("Seven.", "Nine.", 3), ("Nine.", "Seven.", 1), ("Seven.", "Nine.", 2), ("Nine.", "Seven.", 0)],
        left_out=1,
    ),
    "Label Studio": Shape(
        "label-studio",
        [{"id": 1, "data": PROMPT | {"answer1": "Nine.", "answer2": "Seven."}, "meta": {},
          "annotations": [{"completed_by": 1, "result": [{"type": "pairwise", "value": {"selected": "right"}}]}]}],
        [BETTER],
    ),
    "Argilla": Shape(
        "argilla",
        [{"id": "1", "status": "completed", "instruction": PROMPT["prompt"], "response1": "Nine.",
          "response2": "Seven.", "best.responses": ["b"], "best.responses.status": ["submitted"]}],
        [BETTER],
    ),
    "Argilla, nested": Shape(
        "argilla",
        [{"fields": PROMPT | {"response1": "Nine.", "response2": "Seven."},
          "responses": {"best": [{"value": "2", "user_id": "u"}]}}],
        [BETTER],
    ),
    "Skywork": Shape("preference", [{"chosen": talk("Seven."), "rejected": talk("Nine."), "source": "m"}], [BETTER]),
    "Tülu 3": Shape(
        "preference",
        [PROMPT | {"id": "t", "chosen": talk("Seven."), "rejected": talk("Nine."), "source": "s"},
         {"prompt": "Hi", "chosen": [user("Hi"), said("Hello."), *talk("A")],
          "rejected": [user("Hi"), said("Hello."), *talk("B")], "id": "u", "source": "s"}],
        [BETTER, ("A", "B", 1)],
    ),
    "OLMo 2 mix": Shape(
        "preference",
        [PROMPT | {"chosen": talk("Seven."), "rejected": talk("Nine."), "chosen_rating": 4.75, "rejected_rating": 2.5}],
        [("Seven.", "Nine.", 3)],
        settings={"thresholds": (1.0, 2.0)},
    ),
    "Orca DPO pairs": Shape("preference", [{"system": "Be brief.", "question": "Name a prime.", **PAIR}], [BETTER]),
    "Orca of Argilla": Shape(
        "preference",
        [{"system": "", "input": "Name a prime.", **PAIR, "generations": ["Nine.", "Seven."], "rating": [2.0, 9.0],
          "status": "unchanged", "chosen_score": 9.0, "in_gsm8k_train": False},
         {"system": "", "input": "Name a prime.", **PAIR, "generations": ["Nine.", "Seven."], "rating": [7.0, 7.0],
          "status": "tie", "chosen_score": 7.0, "in_gsm8k_train": False}],
        [("Seven.", "Nine.", 3), ("Seven.", "Nine.", 0)],
        settings={"thresholds": (1.0, 2.0)},
    ),
    "RewardBench": Shape(
        "preference", [PROMPT | PAIR | {"chosen_model": "m", "rejected_model": "n", "subset": "s", "id": 0}], [BETTER]
    ),
    "TRL, standard": Shape("preference", [PROMPT | PAIR], [BETTER]),
    "TRL, conversational": Shape(
        "preference", [{"prompt": [user("Name a prime.")], "chosen": [said("Seven.")], "rejected": [said("Nine.")]}],
        [BETTER],
    ),
    "TRL, content in parts": Shape(
        "preference",
        [{"prompt": [{"role": "user", "content": [{"type": "text", "text": "Name a prime."}]}],
          "chosen": [said("Seven.")], "rejected": [said("Nine.")]}],
        [BETTER],
    ),
    "LLaMA-Factory, Alpaca": Shape(
        "preference", [{"instruction": "Name", "input": "a prime.", **PAIR}], [BETTER], prompt="Name\na prime."
    ),
    "LLaMA-Factory, ShareGPT": Shape(
        "preference",
        [{"conversations": [{"from": "human", "value": "Name a prime."}], "chosen": {"from": "gpt", "value": "Seven."},
          "rejected": {"from": "gpt", "value": "Nine."}}],
        [BETTER],
    ),
    "UltraInteract": Shape(
        "preference",
        [{"task": "t", "dataset": "d", "trajectory": [{"from": "user", "value": "Name a prime."}], **PAIR, "id": "x"}],
        [BETTER],
    ),
    "StackExchange paired": Shape(
        "preference", [{"qid": 1, "question": "Name a prime.", "response_j": "Seven.", "response_k": "Nine."}], [BETTER]
    ),
    "OpenRLHF": Shape(
        "preference",
        [{"chosen": talk("Seven."), "rejected": talk("Nine."), "chosen_score": 4.0, "rejected_score": 2.0}],
        [("Seven.", "Nine.", 3)],
        settings={"thresholds": (1.0, 2.0)},
    ),
}  # fmt: skip
