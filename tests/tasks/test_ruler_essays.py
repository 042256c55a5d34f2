"""The essay haystack: whole sentences with needles between them, and what stands in for essays that are not here."""

import json
import re
import shutil
from collections.abc import Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

import nltk
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nltk.tokenize.punkt import PunktTokenizer

from kvbench.errors import UsageError
from kvbench.registry import make_task
from kvbench.tasks.ruler.data import read_essays
from kvbench.tasks.ruler.essays import Essay, Text, own_prose
from kvbench.tasks.ruler.niah import Niah

ELEVEN_WORDS = "One two three. Four five six seven.\n\n  Eight nine.\tTen eleven.\n"


def by_full_stops(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"[^. ][^.]*(?:\.|$)", text)]


def text_of(words: str = ELEVEN_WORDS) -> Text:
    return Text(words.strip(), by_full_stops, "")


def test_the_first_words_are_split_into_sentences_and_the_text_starts_again_at_its_end() -> None:
    text = text_of()
    assert text.sentences(3) == ["One two three."]
    assert text.sentences(8) == ["One two three.", "Four five six seven.", "Eight"]
    assert text.sentences(13) == [*text.sentences(11), "One two"]
    assert len(" ".join(text.sentences(100)).split(" ")) == 100


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.lists(
        st.sampled_from(['"Yes."', "Mr.", "e.g.", "(So?)", "end.)", "no", "It", "3.", "!", '"', "a.b", "…", "Dr.)No"])
    )
    .map(" ".join)
    .filter(str.strip),
    words=st.integers(1, 60),
    before=st.integers(1, 60),
)
def test_nltk_splits_a_text_as_it_splits_what_the_text_is_the_beginning_of(
    official: Mapping[str, Path], text: str, words: int, before: int
) -> None:
    tokenizer = punkt_of(official["nltk"])
    haystack = Text(text, tokenizer.span_tokenize, "")
    haystack.sentences(before)
    copies = text.split(" ") * (words // len(text.split(" ")) + 1)
    assert haystack.sentences(words) == tokenizer.tokenize(" ".join(copies[:words]).strip())


def test_nltk_splits_the_essays_wherever_they_are_cut(official: Mapping[str, Path]) -> None:
    tokenizer = punkt_of(official["nltk"])
    essays = read_essays(official["essays"])
    haystack = Text(essays, tokenizer.span_tokenize, "")
    words = re.sub(r"\s+", " ", essays).split(" ")
    for size in [*range(16000, 1, -997), *range(3000, 3040)]:
        assert haystack.sentences(size) == tokenizer.tokenize(" ".join(words[:size]).strip())


@cache
def punkt_of(folder: Path) -> PunktTokenizer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nltk.data, "path", [str(folder)])
        return PunktTokenizer("english")


@pytest.mark.parametrize("size", [1, 40, 500])
def test_taking_the_needles_out_gives_the_text_back(size: int) -> None:
    text = text_of()
    needles = ["<a>", "<b>", "<c>"]
    hidden = Essay(text).hide(needles, size, Random(4))
    pieces = hidden.replace(" ", "  ").split(" ")
    assert [piece for piece in pieces if piece in needles] == needles
    rest = " ".join(piece for piece in hidden.split(" ") if piece and piece not in needles)
    assert rest == " ".join(text.sentences(size))


def test_a_needle_never_cuts_a_sentence() -> None:
    text = own_prose()
    for _, prompt in zip(range(5), Niah(Essay(text), keys=4).prompts(3000, 7, lambda t: len(t.split())), strict=False):
        for sentence in prompt.context.split("\n", 1)[1].split("One of the special magic ")[1:]:
            after = sentence.split(".", 1)[1].strip()
            assert after == "" or any(after.startswith(known) for known in text.sentences(20000)), after[:60]


def test_needles_are_at_one_of_forty_depths() -> None:
    text = Text(" ".join(f"w{i}." for i in range(1000)), by_full_stops, "")
    places = set()
    for seed in range(200):
        before = Essay(text).hide(["<needle>"], 1000, Random(seed)).split("<needle>")[0]
        places.add(len(before.split()))
    allowed = {int(1000 * (round(i * 100 / 39) / 100)) for i in range(40)}
    assert places <= allowed
    assert {0, 1000} <= places


def test_a_folder_a_text_and_the_official_json_are_the_same_essays(
    official: Mapping[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "essays"
    folder.mkdir()
    for name, text in (("b", "Second. Essay."), ("a", "First essay.")):
        (folder / f"{name}.txt").write_text(text)
    (folder / "notes.md").write_text("no essay")
    whole = "First essay.\nSecond. Essay."
    (tmp_path / "essays.txt").write_text(whole)
    (tmp_path / "essays.json").write_text(json.dumps({"text": whole}))
    tasks = [
        make_task("ruler-4k", {"essays": path, "nltk": official["nltk"]})
        for path in (folder, tmp_path / "essays.txt", tmp_path / "essays.json")
    ]
    assert len({task.data_of("niah_single_2") for task in tasks}) == 1
    assert {task.name for task in tasks} == {"ruler-4k"}
    assert tasks[0].data_of("niah_single_2") != make_task("ruler-4k", official).data_of("niah_single_2")


def test_without_essays_it_is_another_task_and_says_so() -> None:
    task = make_task("ruler-4k")
    assert task.name == "ruler-4k-prose"
    assert ", prose " in task.data_of("niah_single_2")
    assert any("--data essays=PATH" in remark and "ruler-4k-prose" in remark for remark in task.remarks())


def test_own_prose_can_be_asked_for(official: Mapping[str, Path]) -> None:
    asked = make_task("ruler-4k-prose", official)
    assert asked.name == "ruler-4k-prose"
    assert asked.remarks() == []
    without_essays = make_task("ruler-4k", {name: official[name] for name in ("squad", "hotpotqa")})
    assert (
        asked.data_of("niah_single_2")
        == without_essays.data_of("niah_single_2")
        != make_task("ruler-4k", official).data_of("niah_single_2")
    )


def test_essays_without_the_rules_of_sentences_are_as_good_as_none(official: Mapping[str, Path]) -> None:
    task = make_task("ruler-4k", {"essays": official["essays"]})
    assert task.name == "ruler-4k-prose"
    assert task.data_of("niah_single_2") == make_task("ruler-4k").data_of("niah_single_2")
    assert any("--data nltk=PATH" in remark for remark in task.remarks())


def test_sentences_are_split_wherever_nltk_has_its_data(
    official: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = make_task("ruler-4k", {name: official[name] for name in ("essays", "nltk")})
    assert given.name == "ruler-4k"
    assert nltk.data.path == []
    monkeypatch.setattr(nltk.data, "path", [str(official["nltk"])])
    found = make_task("ruler-4k", {"essays": official["essays"]})
    assert found.data_of("niah_single_2") == given.data_of("niah_single_2")


def test_other_rules_of_sentences_are_other_data(official: Mapping[str, Path], tmp_path: Path) -> None:
    copy = tmp_path / "nltk_data"
    shutil.copytree(official["nltk"], copy, copy_function=shutil.copyfile)
    same = make_task("ruler-4k", {"essays": official["essays"], "nltk": copy}).data_of("niah_single_2")
    with next(copy.rglob("abbrev_types.txt")).open("a") as file:
        file.write("\nkv")
    other = make_task("ruler-4k", {"essays": official["essays"], "nltk": copy}).data_of("niah_single_2")
    assert (
        same
        == make_task("ruler-4k", {name: official[name] for name in ("essays", "nltk")}).data_of("niah_single_2")
        != other
    )


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("essays.json", '{"texts": "a"}', "KeyError"),
        ("essays.json", "not json", "JSONDecodeError"),
        ("essays.txt", " \n", "holds no text"),
        ("folder/notes.md", "no essay", "holds no text"),
        ("essays.txt", b"\xff\xfe\x00", "UnicodeDecodeError"),
    ],
)
def test_what_are_no_essays_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: str | bytes, reason: str
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    path = file.parent if "folder" in name else file
    with pytest.raises(UsageError, match=reason) as refusal:
        make_task("ruler-4k", {"essays": path}).remarks()
    assert f"--data essays={path}" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_folder_without_nltk_data_is_refused(official: Mapping[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no nltk_data folder with tokenizers/punkt_tab/english"):
        make_task("ruler-4k", {"essays": official["essays"], "nltk": tmp_path}).remarks()


def test_own_prose_is_readable_english_in_whole_sentences() -> None:
    sentences = own_prose().sentences(4800)
    assert len(sentences) > 300
    assert max(map(len, sentences)) < 400
    assert all(sentence.rstrip("”\"'")[-1] in ".?!" for sentence in sentences[:-1])
    assert not any("special magic" in sentence for sentence in sentences)


def test_prompts_are_drawn_without_end() -> None:
    subtask = Niah(Essay(own_prose()), values=4)
    assert len(list(islice(subtask.prompts(1500, 1, lambda text: len(text.split())), 30))) == 30
