"""`kvbench show`: a text's tokens shaded by rank, press beside press."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from kvbench import seeds
from kvbench.commands.run import make_presses, parse_presses, parse_protect, ready_presses
from kvbench.errors import KvbenchError, UsageError, unknown
from kvbench.press import Press, Reads
from kvbench.record_table import reason

if TYPE_CHECKING:
    from kvbench.context_ranking import ContextRanking
    from kvbench.models import Model, ModelSource
    from kvbench.ranking import Protect


@dataclass(frozen=True)
class ShowRanksRequest:
    """`kvbench show` as it was typed."""

    presses: Sequence[str]
    text: Path
    model: str
    layer: int | None
    head: int | None
    protect: str
    future: int
    png: Path | None
    html: Path | None
    dtype: str | None
    device: str | None
    attention: str


def show_ranks_command(request: ShowRanksRequest, out: Console, err: Console) -> None:
    """Rank a text with every press, and show the ranks in the terminal and in the files asked for.

    Raises:
        UsageError: A name or value is wrong, or the text cannot be read or does not fit the model.
        KvbenchError: A press failed, or a file cannot be written.
    """
    if request.head is not None and request.layer is None:
        raise UsageError("--head needs --layer: heads are counted within a layer")
    if request.png is not None and request.png.suffix != ".png":
        raise UsageError(f"--png '{request.png}' is not allowed: the file's name must end in .png")
    first, last = parse_protect(request.protect)
    text = _read(request.text)
    made = [one for one in make_presses(parse_presses(request.presses), err) if one.press.evicts]

    from kvbench.models import choose_device, choose_dtype, find, quieten_transformers
    from kvbench.rank_shading import ShadedText, mean_ranks, pieces_of, print_shaded, write_html, write_png
    from kvbench.ranking import Protect

    quieten_transformers()
    device = choose_device(request.device)
    source = find(request.model)
    presses, _ = ready_presses(made, source.facts, err)
    if not presses:
        raise UsageError("no press to show: the full cache evicts nothing")
    encoded = source.tokenizer(text, return_offsets_mapping=True, return_attention_mask=False)
    tokens: list[int] = encoded["input_ids"]
    if not tokens:
        raise UsageError(f"'{request.text}' has no tokens: there is nothing to show")
    future = request.future if any(Reads.FUTURE in press.reads for press in presses.values()) else 0
    if len(tokens) + future > source.facts.window:
        raise UsageError(
            f"'{request.text}' has {len(tokens)} tokens; with a future of {future} that is more than the "
            f"{source.facts.window} positions that {source.name} knows"
        )
    model = source.load(choose_dtype(request.dtype, device), device, request.attention)
    ranking = _rank(model, tokens, presses, Protect(first, last), future)
    for press, why in ranking.rankers.failures.items():
        raise KvbenchError(f"press {press} failed: {why}")
    layers = _layers(request, ranking.cache.layers, source.facts.kv_heads)
    heads = slice(None) if request.head is None else slice(request.head, request.head + 1)
    ranks = {}
    for press in presses:
        rows = [ranking.rankings[press, layer][0, heads].cpu().numpy() for layer in layers]
        ranks[press] = mean_ranks(np.concatenate(rows))
    pieces = pieces_of(text, encoded["offset_mapping"], source.tokenizer.convert_ids_to_tokens(tokens))
    shaded = ShadedText(pieces, ranks, _title(request, source, len(tokens), len(layers)))
    files = [(file, write) for file, write in ((request.png, write_png), (request.html, write_html)) if file]
    for file, write in files:
        write(shaded, file)
    print_shaded(shaded, out)
    for file, _ in files:
        out.print(f"written to {file}", highlight=False, markup=False, soft_wrap=True)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"'{file}' is not a text in UTF-8") from None
    except OSError as error:
        raise UsageError(f"the text '{file}' cannot be read: {reason(error)}") from None


def _rank(
    model: Model, tokens: Sequence[int], presses: Mapping[str, Press], protected: Protect, future: int
) -> ContextRanking:
    """Rank a text; what reads the future is given the model's own greedy continuation of it.

    The continuation does not begin with the end of the text, which is what an instructed model likes to say.
    """
    import torch

    from kvbench.context_ranking import ContextRanking
    from kvbench.task import Question

    ranking = ContextRanking(model, torch.tensor(tokens), presses, protected, seeds.BENCHMARK)
    if future:
        logits = ranking.cache.logits[0].clone()
        logits[list(model.end_tokens)] = -torch.inf
        ranking.roll_out(Question(text="", targets=(), max_new_tokens=future), logits.argmax().view(1))
    return ranking


def _layers(request: ShowRanksRequest, there: Sequence[int], kv_heads: int) -> Sequence[int]:
    """Return the layers to show: the one asked for, or all."""
    if request.head is not None and request.head >= kv_heads:
        raise unknown("KV head", str(request.head), map(str, range(kv_heads)))
    if request.layer is None:
        return there
    if request.layer not in there:
        raise unknown("layer with full attention", str(request.layer), map(str, there))
    return [request.layer]


def _title(request: ShowRanksRequest, source: ModelSource, tokens: int, layers: int) -> str:
    if request.head is not None:
        where = f"layer {request.layer}, KV head {request.head}"
    else:
        what = f"{layers} layers" if request.layer is None else f"layer {request.layer}"
        where = f"mean over the KV heads of {what}"
    return f"{tokens} tokens by rank, {source.name}, {where}"
