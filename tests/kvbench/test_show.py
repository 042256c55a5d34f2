"""`kvbench show`: the ranks it prints against the presses' own, and what its pictures and pages hold."""

import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor
from transformers import AutoModelForCausalLM

from attention_weights import received_after
from command_line import Done, kvbench
from kvbench import seeds
from kvbench.press import LayerCache
from kvbench.rank_shading import LEVELS, ON_DARK, ShadedText, mean_ranks, pieces_of, print_shaded, write_html
from kvbench.registry import make_press
from tiny_models import tiny_tokenizer

TEXT = 'One of the <special> "numbers" & names\nis 42 – for\tyou.\n'
N = len(TEXT.encode())  # the tiny tokenizer's tokens are bytes
LAYERS, KV_HEADS = 3, 2


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8", newline="")
    return file


def show(model: Path, text: Path, presses: str, *more: str) -> Done:
    common = ("--model", str(model), "--text", str(text), "--dtype", "float32", "--device", "cpu")
    return kvbench("show", "--press", presses, *common, *more)


def printed_ranks(done: Done, presses: int) -> Tensor:
    """The ranks that were printed, from 1, `[presses, n]`."""
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[2:] if line[:1].isdigit()]
    assert [int(row[0]) for row in rows] == list(range(N))
    return torch.tensor([[int(cell) for cell in row[-presses:]] for row in rows]).T


def caches(folder: Path) -> list[LayerCache]:
    """What transformers itself caches of the text, per layer."""
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        cached = network(torch.tensor([tiny_tokenizer()(TEXT)["input_ids"]])).past_key_values
    positions = torch.arange(N).expand(1, KV_HEADS, -1)
    scaling = network.config.head_dim**-0.5
    return [
        LayerCache(index, layer.keys, layer.values, positions, scaling, seeds.BENCHMARK)
        for index, layer in enumerate(cached.layers)
    ]


def places(order: Tensor) -> Tensor:
    """Each token's place in a ranking, from 1."""
    return order.argsort(dim=-1, stable=True) + 1


@pytest.mark.parametrize(("layer", "head"), [(0, 0), (2, 1)])
def test_a_heads_ranks_are_the_presses_own(model_folder: Path, text: Path, layer: int, head: int) -> None:
    names = ("k_norm", "streaming_llm", "random")
    done = show(model_folder, text, ",".join(names), "--layer", str(layer), "--head", str(head))
    assert f"layer {layer}, KV head {head}" in done.stdout
    cache = caches(model_folder)[layer]
    for name, ranks in zip(names, printed_ranks(done, len(names)), strict=True):
        assert torch.equal(ranks, places(make_press(name).sort(cache)[0, head])), name


@pytest.mark.parametrize("layer", [None, 1])
def test_ranks_are_averaged_over_the_heads_that_are_shown(model_folder: Path, text: Path, layer: int | None) -> None:
    chosen = caches(model_folder) if layer is None else [caches(model_folder)[layer]]
    one = () if layer is None else ("--layer", str(layer))
    [ranks] = printed_ranks(show(model_folder, text, "k_norm", *one), 1)
    of_heads = [
        (make_press("k_norm").sort(cache)[0, head] == token).nonzero().item()
        for token in range(N)
        for cache in chosen
        for head in range(KV_HEADS)
    ]
    means = torch.tensor(of_heads, dtype=torch.float64).view(N, -1).mean(dim=1)
    assert torch.equal(ranks, places(means.argsort(stable=True)))


def test_the_oracle_ranks_by_the_models_own_continuation(model_folder: Path, text: Path) -> None:
    network = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32, attn_implementation="eager")
    end = tiny_tokenizer().eos_token_id
    sequence = tiny_tokenizer()(TEXT)["input_ids"]
    with torch.inference_mode():
        for place in range(6):
            logits = network(torch.tensor([sequence])).logits[0, -1]
            if place == 0:
                logits[end] = -torch.inf
            sequence.append(int(logits.argmax()))
            assert sequence[-1] != end
        attention = network(torch.tensor([sequence]), output_attentions=True).attentions[1]
    [ranks] = printed_ranks(show(model_folder, text, "oracle", "--layer", "1", "--head", "1", "--future", "6"), 1)
    future = received_after(attention[0].unflatten(0, (KV_HEADS, -1)), N)[1]
    ranked = future[ranks.argsort()]
    assert bool((ranked[:-1] >= ranked[1:] - 1e-5).all())


def test_protected_tokens_stand_in_front(model_folder: Path, text: Path) -> None:
    ranks = printed_ranks(show(model_folder, text, "k_norm,random", "--protect", "3,2"), 2)
    front = [0, 1, 2, N - 1, N - 2]
    assert ranks.argsort()[:, :5].tolist() == [front, front]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("snapvk",), "unknown press 'snapvk': did you mean 'snapkv'?"),
        (("k_norm", "--layer", "3"), "unknown layer with full attention '3': allowed are 0, 1, 2"),
        (("k_norm", "--layer", "0", "--head", "2"), "unknown KV head '2': allowed are 0, 1"),
        (("k_norm", "--head", "0"), "--head needs --layer"),
        (("full",), "no press to show: the full cache evicts nothing"),
        (("k_norm", "--protect", "4"), "--protect '4' is not allowed"),
        (("k_norm", "--png", "ranks.svg"), "--png 'ranks.svg' is not allowed: the file's name must end in .png"),
        (("oracle", "--future", "4090"), "4090 that is more than the 4096 positions that tiny-llama knows"),
        (("kvp",), "kvp"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    model_folder: Path, text: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    refused(show(model_folder, text, *arguments), sentence)


def refused(done: Done, sentence: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "has no tokens: there is nothing to show"),
        (b"\xff\xfe", "is not a text in UTF-8"),
        (b"x" * 4097, "has 4097 tokens"),
        (None, "cannot be read: no such file or directory"),
    ],
)
def test_a_text_that_cannot_be_shown_is_refused(
    model_folder: Path, tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    refused(show(model_folder, file, "k_norm"), sentence)


def test_the_future_needs_no_room_where_nothing_reads_it(model_folder: Path, text: Path) -> None:
    assert show(model_folder, text, "streaming_llm", "--future", "4096").returncode == 0


def test_pictures_and_pages_are_the_same_each_time(model_folder: Path, text: Path, tmp_path: Path) -> None:
    written = []
    for name in ("first", "second"):
        png, html = tmp_path / name / "ranks.png", tmp_path / name / "ranks.html"
        done = show(model_folder, text, "k_norm,oracle", "--png", str(png), "--html", str(html))
        assert done.returncode == 0, done.stderr
        assert f"written to {png}" in done.stdout.replace("\n", "")
        written.append((png.read_bytes(), html.read_bytes()))
    assert written[0] == written[1]
    assert written[0][0].startswith(b"\x89PNG")
    page = written[0][1].decode()
    assert "&lt;special&gt;" not in page  # every byte is a token of its own
    assert all(f">{shown}</span>" in page for shown in ("&lt;", "&gt;", "&amp;", "&quot;"))


def shaded(pieces: Sequence[str], *ranks: Sequence[float]) -> ShadedText:
    return ShadedText(pieces, {f"p<{i}>": np.array(one) for i, one in enumerate(ranks)}, "<b>title</b>")


def test_a_page_escapes_texts_and_names(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    write_html(shaded(["<script>alert(1)</script>", ' "&amp;"'], [1, 0]), file)
    page = file.read_text()
    assert "<script" not in page
    assert "<b>" not in page.replace("<b>Point at a token", "")
    assert "p<0>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&quot;&amp;amp;&quot;" in page
    assert 'title="token 0: rank 2 of 2, mean 2.0"' in page


def test_a_terminal_with_colours_shows_presses_side_by_side() -> None:
    pieces = [f"{number} " for number in range(20)]
    console = Console(
        file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor", legacy_windows=False, _environ={}
    )
    print_shaded(shaded(pieces, list(range(20)), list(range(20))[::-1]), console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    [names] = [line for line in lines if "p<0>" in line]
    assert "p<1>" in names
    kept, evicted = (f"48;2;{';'.join(str(part) for part in bytes.fromhex(ON_DARK[level][1:]))}m" for level in (-1, 0))
    [first] = [line for line in lines if f"{kept}0 " in line]  # the first press keeps token 0 longest
    assert f"{evicted}0 " in first  # and beside it the second evicts it first


def test_a_file_is_not_coloured(model_folder: Path, text: Path) -> None:
    done = show(model_folder, text, "streaming_llm")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@settings(max_examples=30)
@given(st.integers(1, 60), st.randoms(use_true_random=False))
def test_shades_are_tenths_of_the_tokens(n: int, random: Random) -> None:
    order = random.sample(range(n), n)
    levels = shaded(["x"] * n, [float(rank) for rank in order]).levels("p<0>")
    counts = np.bincount(levels, minlength=LEVELS)
    assert len(counts) == LEVELS
    assert counts.max() - counts.min() <= 1
    assert all(np.diff(levels[np.argsort(order)]) <= 0)


@given(st.lists(st.permutations(range(7)), min_size=1, max_size=5))
def test_mean_ranks_are_their_definition(rankings: list[list[int]]) -> None:
    expected = [sum(ranking.index(token) for ranking in rankings) / len(rankings) for token in range(7)]
    assert mean_ranks(np.array(rankings)).tolist() == pytest.approx(expected)


@given(st.text(max_size=30))
def test_the_pieces_of_a_text_are_the_text(text: str) -> None:
    tokenizer = tiny_tokenizer()
    encoded = tokenizer(text, return_offsets_mapping=True)
    names = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    assert "".join(pieces_of(text, encoded["offset_mapping"], names)) == text


def test_special_tokens_are_shown_by_their_names() -> None:
    assert pieces_of("ab", [(0, 0), (0, 1), (1, 2)], ["<s>", "a", "b"]) == ["<s>", "a", "b"]


def test_help_imports_no_torch() -> None:
    script = (
        "import sys; from kvbench.cli import main\n"
        "sys.argv = ['kvbench', 'show', '--help']\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'transformers', 'matplotlib'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    assert "--future" in done.stdout
