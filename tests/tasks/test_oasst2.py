"""OASST2: which messages make a thread, which threads a chat, and what of it is scored."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import UsageError
from kvbench.prompts import prompts_of
from kvbench.registry import make_task
from kvbench.task import Answer, Question
from kvbench.tasks.oasst2 import is_for_training
from tiny_models import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
GOOD: dict[str, Any] = {"lang": "en", "review_result": True, "deleted": False, "rank": None}


def message(text: str, *replies: dict[str, Any], role: str = "prompter", **changed: Any) -> dict[str, Any]:
    for reply in replies:
        reply["role"] = "assistant" if role == "prompter" else "prompter"
    return {"text": text, "role": role, **GOOD, **changed, "replies": list(replies)}


def tree(name: str, prompt: dict[str, Any], state: str = "ready_for_export") -> dict[str, Any]:
    return {"message_tree_id": name, "tree_state": state, "prompt": prompt}


def benchmark_names(count: int) -> list[str]:
    names = (f"tree{number}" for number in range(10 * count))
    return [name for name in names if not is_for_training(name)][:count]


def write(folder: Path, trees: Sequence[dict[str, Any]]) -> Path:
    file = folder / "trees.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in trees))
    return file


def chats(file: Path, spec: str = "oasst2-1k", limit: int | None = None, seed: int = 0) -> list[str]:
    """Return each sample's whole text."""
    samples = make_task(spec, {"oasst2": file}).samples(TOKENIZER, limit, seed)
    return [
        sample.context + sample.questions[0].text + "".join(sample.questions[0].continuations) for sample in samples
    ]


def test_a_thread_follows_the_best_ranked_fit_replies_up_to_the_last_of_an_assistant(tmp_path: Path) -> None:
    [name] = benchmark_names(1)
    best = message("best", message("and then?", message("more"), message("worse", rank=3)), rank=0)
    best["replies"][0]["replies"][0]["rank"] = 1
    replies = [
        message("second", rank=1),
        message("deleted", rank=-1, deleted=True),
        message("unreviewed", rank=-1, review_result=None),
        message("español", rank=-1, lang="es"),
        best,
        message("unranked"),
    ]
    best["replies"][0]["replies"][0]["replies"] = [message("left without a reply")]
    file = write(tmp_path, [tree(name, message("hello", *replies))])
    for reply in best["replies"]:
        reply["role"] = "prompter"
        for answer in reply["replies"]:
            answer["role"] = "assistant"
            for last in answer["replies"]:
                last["role"] = "prompter"
    write(tmp_path, [tree(name, message("hello", *replies))])
    assert chats(file) == ["<user>hello</s><assistant>best</s><user>and then?</s><assistant>more"]


def test_trees_that_are_not_fit_are_left_out(tmp_path: Path) -> None:
    names = benchmark_names(4)
    trees = [
        tree(names[0], message("growing", message("reply")), state="growing"),
        tree(names[1], message("español", message("reply"), lang="es")),
        tree(names[2], message("no reply")),
        tree(names[3], message("fit", message("reply"))),
    ]
    assert chats(write(tmp_path, trees)) == ["<user>fit</s><assistant>reply"]


def many(count: int) -> list[dict[str, Any]]:
    return [
        tree(name, message(f"question {name} " + "x" * (number % 7) * 9, message(f"answer {name}")))
        for number, name in enumerate(benchmark_names(count))
    ]


def test_whole_threads_stand_before_another_last_one_in_every_sample(tmp_path: Path) -> None:
    trees = many(40)
    texts = chats(write(tmp_path, trees))
    assert len(texts) == len(trees)
    turns = [text.split("<user>")[1:] for text in texts]
    assert len({chat[-1] for chat in turns}) == len(trees)
    for text, chat in zip(texts, turns, strict=True):
        assert 900 < len(TOKENIZER(text)["input_ids"]) <= 1024
        assert len(set(chat)) == len(chat)
        assert all("answer" in turn for turn in chat)


def test_only_the_last_reply_is_scored_and_all_before_it_is_the_prompt(tmp_path: Path) -> None:
    file = write(tmp_path, many(20))
    for sample in make_task("oasst2-1k", {"oasst2": file}).samples(TOKENIZER, None, 0):
        [question] = sample.questions
        assert question.continuations == (f"answer {sample.source}",)
        [inside] = prompts_of(TOKENIZER, sample, "inside")
        assert TOKENIZER.decode([*inside.context, *inside.fed[0]]).endswith("</s><assistant>")
        [after] = prompts_of(TOKENIZER, sample, "after")
        assert TOKENIZER.decode(after.fed[0]).startswith(f"<user>question {sample.source}")
        assert TOKENIZER.decode(after.context).endswith("</s>")


@given(seed=st.integers(0, 99), limit=st.integers(1, 12))
def test_a_smaller_limit_gives_the_first_samples(
    tmp_path_factory: pytest.TempPathFactory, seed: int, limit: int
) -> None:
    file = write(tmp_path_factory.mktemp("trees"), many(12))
    assert chats(file, limit=limit, seed=seed) == chats(file, seed=seed)[:limit]


def test_no_tree_serves_both_training_and_the_benchmark(tmp_path: Path) -> None:
    trees = [tree(f"tree{number}", message(f"q{number}.", message("reply"))) for number in range(60)]
    file = write(tmp_path, trees)

    def names(spec: str) -> set[str]:
        return {part.split("</s>")[0] for text in chats(file, spec) for part in text.split("<user>")[1:]}

    benchmark, training = names("oasst2"), names("oasst2:train")
    assert not benchmark & training
    assert len(benchmark | training) == 60
    assert min(len(benchmark), len(training)) > 15


def test_the_hubs_rows_of_messages_make_the_same_chats_as_trees(tmp_path: Path) -> None:
    trees = many(10)
    flat: list[dict[str, Any]] = []

    def add(one: dict[str, Any], parent: str | None, name: str) -> None:
        number = f"message{len(flat)}"
        fields = {key: value for key, value in one.items() if key != "replies"}
        flat.append(
            {
                "message_id": number,
                "parent_id": parent,
                "message_tree_id": name,
                "tree_state": "ready_for_export",
                **fields,
            }
        )
        for reply in one["replies"]:
            add(reply, number, name)

    for one in trees:
        add(one["prompt"], None, one["message_tree_id"])
    (tmp_path / "data").mkdir()
    schema = pa.schema(
        [pa.field(key, pa.bool_() if isinstance(value, bool) else pa.string()) for key, value in flat[1].items()]
    )
    schema = schema.set(schema.get_field_index("rank"), pa.field("rank", pa.int32()))
    pq.write_table(pa.Table.from_pylist(flat, schema=schema), tmp_path / "data" / "validation-00000-of-00001.parquet")
    expected = chats(write(tmp_path, trees))
    (tmp_path / "trees.jsonl").unlink()
    assert chats(tmp_path) == expected


def test_the_score_is_the_negative_log_likelihood_per_token_weighted_by_tokens(tmp_path: Path) -> None:
    task = make_task("oasst2", {"oasst2": write(tmp_path, many(2))})
    answer = Answer("", log_likelihoods=(-12.0,), continuation_tokens=(8,))
    question = Question(text="", targets=(), continuations=("reply",))
    assert (task.score(answer, question, "oasst2"), task.weight(answer)) == (1.5, 8)
    assert task.lower_is_better
    assert task.shown_as == "exp"


@pytest.mark.parametrize(
    ("spec", "message_"),
    [("oasst2-long", "'long' is no length"), ("oasst2:trian", "did you mean 'train'"), ("oasst2-8", "none of the")],
)
def test_what_cannot_be_made_is_refused(tmp_path: Path, spec: str, message_: str) -> None:
    with pytest.raises(UsageError, match=message_):
        chats(write(tmp_path, many(3)), spec)


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    bare = tiny_tokenizer()
    bare.chat_template = None
    with pytest.raises(UsageError, match="has no chat template"):
        make_task("oasst2-1k", {"oasst2": write(tmp_path, many(3))}).samples(bare, None, 0)


def test_real_trees_make_chats_of_about_the_length_asked_for(shared: Path) -> None:
    texts = chats(shared / "data" / "oasst1" / "en_100_trees.jsonl", "oasst2-16k")
    lengths = sorted(len(TOKENIZER(text)["input_ids"]) for text in texts)
    assert len(texts) > 30
    assert lengths[0] > 14000
    assert lengths[-1] <= 16384
