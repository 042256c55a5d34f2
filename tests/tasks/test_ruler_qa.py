"""Question answering: whose documents a prompt has, where the questions come from, and what is said without them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import PreTrainedTokenizerBase

from kvbench.errors import UsageError
from kvbench.registry import make_task
from kvbench.task import Sample
from kvbench.tasks.ruler.question_answering import Corpus, read_hotpotqa, read_squad

REVISION = "0" * 40


def squad_article(title: str, paragraphs: int, asked: int) -> dict[str, Any]:
    return {
        "title": title,
        "paragraphs": [
            {
                "context": f"The {title} number {p} is written here, and a few more words about it are written too.",
                "qas": [
                    {
                        "question": f"Which {title} number is it, {p} or not {q}?",
                        "answers": [{"text": str(p), "answer_start": 0}, {"text": f"number {p}", "answer_start": 0}],
                        "is_impossible": False,
                    }
                    for q in range(asked)
                ]
                + [{"question": "What is not said?", "answers": [], "is_impossible": True}],
            }
            for p in range(paragraphs)
        ],
    }


ARTICLES = [squad_article("river", 4, 2), squad_article("garden", 30, 1), squad_article("bread", 30, 1)]


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    """A small file in the published form."""
    file = tmp_path / "dev-v2.0.json"
    file.write_text(json.dumps({"version": "v2.0", "data": ARTICLES}))
    return file


def squad_parquet(file: Path) -> Path:
    """The same questions as the hub has them."""
    rows = [
        {
            "id": "0",
            "title": article["title"],
            "context": paragraph["context"],
            "question": question["question"],
            "answers": {"text": [answer["text"] for answer in question["answers"]], "answer_start": []},
        }
        for article in ARTICLES
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file


def put_into_hub_cache(cache: Path) -> None:
    repository = cache / "datasets--rajpurkar--squad_v2"
    squad_parquet(repository / "snapshots" / REVISION / "squad_v2" / "validation-00000-of-00001.parquet")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)


def documents_of(sample: Sample) -> list[str]:
    return re.split(r"(?:\n\n)?Document \d+:\n", sample.context)[1:]


def draw(spec: str, sources: Mapping[str, Path], tokenizer: PreTrainedTokenizerBase, limit: int) -> list[Sample]:
    return list(make_task(spec, sources).samples(tokenizer, limit, 42))


def test_the_document_asked_about_is_there_and_its_article_comes_before_others(
    squad: Path, smollm2_tokenizer: PreTrainedTokenizerBase
) -> None:
    corpus = read_squad(squad)
    for sample, question in zip(
        draw("ruler-1k:qa_1", {"squad": squad}, smollm2_tokenizer, 20), corpus.questions, strict=False
    ):
        documents = documents_of(sample)
        assert corpus.documents[question.own[0]] in documents
        assert len(set(documents)) == len(documents)
        nearer = {corpus.documents[place] for place in question.nearer}
        strangers = len([d for d in documents if d not in nearer]) - 1
        assert strangers == max(0, len(documents) - 1 - len(nearer))
        [asked] = sample.questions
        assert asked.targets == question.answers
        assert asked.text.endswith(f"Question: {question.text}")
        assert asked.answer_prefix == " Answer:"


def test_the_samples_end_with_the_questions(squad: Path, smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    drawn = draw("ruler-1k:qa_1+fwe", {"squad": squad}, smollm2_tokenizer, 80)
    counts = {name: sum(sample.subtask == name for sample in drawn) for name in ("qa_1", "fwe")}
    assert counts == {"qa_1": 4 * 2 + 30 + 30, "fwe": 80}


def test_questions_about_one_paragraph_are_one_cluster(squad: Path, smollm2_tokenizer: PreTrainedTokenizerBase) -> None:
    drawn = draw("ruler-1k:qa_1", {"squad": squad}, smollm2_tokenizer, 10)
    sources = [sample.source for sample in drawn]
    assert sources[:4] == ["squad/river/0", "squad/river/0", "squad/river/1", "squad/river/1"]
    assert len(set(sources)) == 6
    assert len({sample.id for sample in drawn}) == 10


def test_documents_are_repeated_where_the_corpus_is_too_small(
    squad: Path, smollm2_tokenizer: PreTrainedTokenizerBase
) -> None:
    corpus = read_squad(squad)
    for sample in draw("ruler-4k:qa_1", {"squad": squad}, smollm2_tokenizer, 2):
        documents = documents_of(sample)
        assert len(documents) > len(corpus.documents)
        assert set(documents) == set(corpus.documents)


def test_prompts_of_questions_fill_the_length_and_never_exceed_it(
    official: Mapping[str, Path], smollm2_tokenizer: PreTrainedTokenizerBase
) -> None:
    for sample in draw("ruler-3000:qa_1+qa_2", official, smollm2_tokenizer, 20):
        [question] = sample.questions
        used = len(smollm2_tokenizer.tokenize(sample.context + question.text + question.answer_prefix)) + 32
        assert 1000 < used <= 3000


def test_a_length_that_some_question_does_not_fit_is_refused_with_one_that_fits_all(
    official: Mapping[str, Path], smollm2_tokenizer: PreTrainedTokenizerBase
) -> None:
    with pytest.raises(UsageError, match=r"ruler-1500 is too short.* qa_2 needs") as refusal:
        draw("ruler-1500:qa_1+qa_2", official, smollm2_tokenizer, 5)
    [longest] = re.findall(r"fits is (ruler-\w+)", str(refusal.value))
    assert len(draw(f"{longest}:qa_1+qa_2", official, smollm2_tokenizer, 5)) == 10


def test_the_hubs_rows_are_the_published_file(squad: Path, tmp_path: Path, official: Mapping[str, Path]) -> None:
    assert read_squad(squad_parquet(tmp_path / "validation.parquet")) == read_squad(squad)
    published = json.loads(official["hotpotqa"].read_text())
    rows = [
        {
            "question": row["question"],
            "answer": row["answer"],
            "context": {"title": [t for t, _ in row["context"]], "sentences": [s for _, s in row["context"]]},
        }
        for row in published
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "hotpotqa.parquet")
    assert read_hotpotqa(tmp_path / "hotpotqa.parquet") == read_hotpotqa(official["hotpotqa"])


def test_the_hubs_cache_is_found_with_its_revision(
    hub_cache: Path, squad: Path, smollm2_tokenizer: PreTrainedTokenizerBase
) -> None:
    put_into_hub_cache(hub_cache)
    task = make_task("ruler-1k:qa_1")
    assert task.data_of("qa_1") == f"squad hub rajpurkar/squad_v2@{REVISION}"
    assert list(task.samples(smollm2_tokenizer, 3, 42)) == draw("ruler-1k:qa_1", {"squad": squad}, smollm2_tokenizer, 3)


def test_what_is_given_comes_before_the_hubs_cache(hub_cache: Path, squad: Path) -> None:
    put_into_hub_cache(hub_cache)
    assert make_task("ruler-1k", {"squad": squad}).data_of("qa_1").startswith("squad sha256:")


def test_without_data_the_rest_is_drawn_and_what_is_missing_is_named(
    squad: Path, smollm2_tokenizer: PreTrainedTokenizerBase
) -> None:
    task = make_task("ruler-1500", {"squad": squad})
    [_, remark] = task.remarks()
    assert "without qa_2" in remark
    assert "--data hotpotqa=PATH" in remark
    drawn = {sample.subtask for sample in task.samples(smollm2_tokenizer, 1, 42)}
    assert drawn == set(task.subtasks) - {"qa_2"}
    assert task.data_of("qa_2") == "hotpotqa none"


@pytest.mark.parametrize(("subtask", "source"), [("qa_1", "squad"), ("qa_2", "hotpotqa")])
def test_a_subtask_asked_for_by_name_is_refused_without_its_data(
    smollm2_tokenizer: PreTrainedTokenizerBase, subtask: str, source: str
) -> None:
    task = make_task(f"ruler-4k:vt+{subtask}")
    with pytest.raises(UsageError, match=f"--data {source}=PATH"):
        task.remarks()
    with pytest.raises(UsageError, match=f"--data {source}=PATH"):
        task.samples(smollm2_tokenizer, 1, 42)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"data": []}', '{"data": [{"title": "a"}]}', '{"data": [{"paragraphs": [3]}]}']
)
def test_what_is_no_corpus_is_refused_in_one_sentence(tmp_path: Path, content: str) -> None:
    file = tmp_path / "given.json"
    file.write_text(content)
    for subtask, source in (("qa_1", "squad"), ("qa_2", "hotpotqa")):
        with pytest.raises(UsageError, match="cannot be read as") as refusal:
            make_task(f"ruler-4k:{subtask}", {source: file}).remarks()
        assert str(file) in str(refusal.value)
        assert "\n" not in str(refusal.value)
    with pytest.raises(UsageError, match="holds none of dev-v2"):
        make_task("ruler-4k:qa_1", {"squad": tmp_path}).remarks()


def test_a_file_that_is_not_asked_about_is_not_read_as_a_corpus(tmp_path: Path) -> None:
    file = tmp_path / "given.json"
    file.write_text("[]")
    assert not [remark for remark in make_task("ruler-4k-prose:vt", {"squad": file}).remarks() if "squad" in remark]


def test_documents_are_sorted_and_without_repeats(official: Mapping[str, Path]) -> None:
    corpora: list[Corpus] = [read_squad(official["squad"]), read_hotpotqa(official["hotpotqa"])]
    for corpus in corpora:
        assert list(corpus.documents) == sorted(set(corpus.documents))
