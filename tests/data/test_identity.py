"""Prompt hashes and folds never change: their values are worked out by hand here."""

import hashlib
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from unmdpo.data import Message, fold_of, prompt_hash
from unmdpo.data.identity import entropy_fold_of


def test_hash_is_sha256_of_the_documented_json():
    messages = [{"role": "user", "content": "Grüße, 世界 🌍"}, {"role": "assistant", "content": 'a "b"\n'}]
    text = '[{"content": "Grüße, 世界 🌍", "role": "user"}, {"content": "a \\"b\\"\\n", "role": "assistant"}]'
    assert prompt_hash(messages) == hashlib.sha256(text.encode("utf-8")).hexdigest()


def test_only_role_and_content_count():
    plain = [{"role": "user", "content": "hi"}]
    assert prompt_hash(plain) == prompt_hash([{"role": "user", "content": "hi", "name": "x"}])
    assert prompt_hash(plain) == prompt_hash((Message("user", "hi"),))
    assert prompt_hash(plain) != prompt_hash([{"role": "user", "content": "hi "}])
    assert prompt_hash(plain) != prompt_hash([{"role": "system", "content": "hi"}])


def test_fold_is_the_documented_integer():
    digest = hashlib.sha256(b"identified-k1-fold-v1:260836:abc").digest()
    by_hand = sum(byte << (8 * (7 - i)) for i, byte in enumerate(digest[:8]))
    assert fold_of("abc") == by_hand % 5
    assert fold_of("abc", folds=3) == by_hand % 3
    other_seed = hashlib.sha256(b"identified-k1-fold-v1:1:abc").digest()
    assert fold_of("abc", seed=1) == int.from_bytes(other_seed[:8], "big") % 5


def test_entropy_fold_hashes_the_hash():
    assert entropy_fold_of("abc") == int(hashlib.sha256(b"abc").hexdigest()[:16], 16) % 5


def test_folds_are_about_equal():
    counts = Counter(fold_of(hashlib.sha256(str(i).encode()).hexdigest()) for i in range(5000))
    assert sorted(counts) == [0, 1, 2, 3, 4]
    assert all(abs(count - 1000) < 150 for count in counts.values())


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text()), min_size=1, max_size=4))
def test_hash_is_a_function_of_the_text(turns):
    messages = [Message(role, content) for role, content in turns]
    try:
        first = prompt_hash(messages)
    except UnicodeEncodeError:  # lone surrogates, which rows refuse before hashing
        return
    assert first == prompt_hash([message._asdict() for message in messages])
    assert prompt_hash([*messages, Message("user", "more")]) != first
