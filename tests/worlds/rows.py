"""Rows of data files, good and bad."""


def helpsteer3_row(prompt="Why is the sky blue?", label=-2, votes=(-2, -1, -3), **changes):
    return {
        "domain": "general",
        "language": "english",
        "context": [{"role": "user", "content": prompt}],
        "response1": f"Rayleigh scattering, for: {prompt}",
        "response2": f"Because it is, for: {prompt}",
        "overall_preference": label,
        "individual_preference": [{"score": v, "reasoning": "r", "feedback1": "a", "feedback2": "b"} for v in votes],
    } | changes


GOOD = helpsteer3_row("fine?")


def without(column):
    return {key: value for key, value in GOOD.items() if key != column}


def preference(**changes):
    return {"prompt": "Q?", "chosen": "a", "rejected": "b", "strength": 1} | changes


def conversation(*turns):
    return [{"role": role, "content": content} for role, content in turns]


HELPSTEER3 = {
    "missing column": (without("response1"), "column 'response1' is missing; did you mean 'response2'?"),
    "misspelt column": (without("context") | {"contxt": []}, "'context' is missing; did you mean 'contxt'?"),
    "strength out of range": (helpsteer3_row(label=4), "whole number from -3 to 3, not 4"),
    "strength not whole": (helpsteer3_row(label=1.5), "whole number from -3 to 3, not 1.5"),
    "strength as text": (helpsteer3_row(label="2"), "should be a number, not text"),
    "strength true": (helpsteer3_row(label=True), "should be a number, not true/false"),
    "strength null": (helpsteer3_row(label=None), "should be a number, not missing"),
    "strength NaN": (helpsteer3_row(label=float("nan")), "is nan, not a finite number"),
    "strength infinite": (helpsteer3_row(label=float("inf")), "is inf, not a finite number"),
    "vote out of range": (helpsteer3_row(votes=(1, -5)), r"individual_preference\[1\].score"),
    "vote without score": (helpsteer3_row(individual_preference=[{}]), r"\[0\].score' is missing"),
    "empty prompt": (helpsteer3_row(context=[]), "'context' is empty"),
    "blank prompt": (helpsteer3_row("  \n"), "its last user turn has no text"),
    "ends in assistant": (
        helpsteer3_row(context=conversation(("user", "a"), ("assistant", "b"))),
        "ends with a turn by 'assistant'",
    ),
    "unknown role": (helpsteer3_row(context=conversation(("usr", "a"))), "did you mean 'user'?"),
    "role not text": (helpsteer3_row(context=[{"role": 3, "content": "a"}]), "unknown role, 3"),
    "message without content": (helpsteer3_row(context=[{"role": "user"}]), "has no 'content'"),
    "message not an object": (helpsteer3_row(context=["hi"]), "should be a message"),
    "content not text": (helpsteer3_row(context=[{"role": "user", "content": 3}]), "should be text"),
    "response not text": (helpsteer3_row(response1=["a"]), "'response1' should be text, not a list"),
    "half a surrogate": (helpsteer3_row(response2="bad \ud83d"), "half of a surrogate pair"),
    "row not an object": ([1, 2], "a row should be a JSON object, not a list"),
}

PREFERENCE = {
    "no shared prefix": (
        {
            "chosen": conversation(("user", "a"), ("assistant", "x")),
            "rejected": conversation(("user", "b"), ("assistant", "y")),
            "strength": 1,
        },
        "should begin with the same turns",
    ),
    "no shared text": ({"chosen": "abc", "rejected": "xyz", "strength": 1}, "share no prefix"),
    "text and conversation": (
        {"chosen": "a b", "rejected": conversation(("user", "a"), ("assistant", "b")), "strength": 1},
        "both be text or both be conversations",
    ),
    "ends in user": (
        {"chosen": conversation(("user", "a")), "rejected": conversation(("user", "a")), "strength": 1},
        "should end with an assistant turn",
    ),
    "a user turn beside a prompt": (preference(chosen=conversation(("user", "a"))), "begin and end with an assistant"),
    "other turns than the prompt": (
        preference(
            chosen=conversation(("user", "X"), ("assistant", "a")),
            rejected=conversation(("user", "X"), ("assistant", "b")),
        ),
        "begin with turns that differ from 'prompt'",
    ),
    "null prompt": (preference(prompt=None), "'prompt' should be text or a list of messages, not missing"),
    "misspelt prompt": (
        {"promt": "Q", "chosen": "I say yes", "rejected": "I say no", "strength": 1},
        "there is no column 'prompt', but there is 'promt'",
    ),
    "null strength": (preference(strength=None), "'strength' should be a number, not missing"),
    "huge strength": (preference(strength=10**400), "'strength' is too large a number"),
    "other strength column": (
        {"prompt": "Q", "chosen": "a", "rejected": "b", "margin": 1.0},
        "gives its strength in 'margin', but the rows before it in 'strength'",
    ),
    "negative strength": (preference(strength=-1), "whole number from 0 to 3, not -1"),
    "strength too large": (preference(strength=4), "whole number from 0 to 3, not 4"),
}
