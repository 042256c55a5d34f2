"""Models: what `--model` may name, how its weights are found and identified, and one forward pass through them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from kvbench import embedded_model
from kvbench.attention import AttentionStep, register
from kvbench.errors import KvbenchError, UsageError, unknown
from kvbench.half_precision import multiplied_slowly, multiply_in_float32
from kvbench.memory import keep_freed_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_TEXT_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]
_WITH_CODE = " with its own code"


@dataclass(frozen=True)
class ModelFacts:
    """What a press may need to know of a model.

    Attributes:
        name: As the user gave it.
        weights: Where the weights came from, with the revision or digest that pins them.
        layers: Attention layers.
        kv_heads: KV heads per layer.
        heads: Query heads per layer.
        head_dim: Size of a head.
        window: The most positions that the model knows.
    """

    name: str
    weights: str
    layers: int
    kv_heads: int
    heads: int
    head_dim: int
    window: int


@dataclass(frozen=True)
class ModelSource:
    """A model that was found, before its weights are loaded.

    Attributes:
        name: As the user gave it.
        folder: The local folder with its files.
        gguf: The GGUF file in that folder, if the weights are one.
        weights: Where the weights came from, with the revision or digest that pins them.
        trust_remote_code: Whether Python code that comes with the model may run.
    """

    name: str
    folder: Path
    gguf: str | None
    weights: str
    trust_remote_code: bool = False

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""
        from transformers import AutoTokenizer

        with _one_sentence(f"the tokenizer of {self.name}"):
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self.folder, **self._arguments)
            return tokenizer

    @cached_property
    def config(self) -> Any:
        """The configuration of the model's text decoder."""
        from transformers import AutoConfig

        with _one_sentence(f"the configuration of {self.name}"):
            return AutoConfig.from_pretrained(self.folder, **self._arguments).get_text_config(decoder=True)

    @property
    def facts(self) -> ModelFacts:
        """What a press may need to know of the model."""
        return facts_of(self.config, self.name, self.weights)

    def load(self, dtype: str, device: str, attention: str) -> Model:
        """Load the weights.

        Args:
            dtype: A key of `DTYPES`.
            device: A torch device, `cpu` or `cuda` say.
            attention: The kernel of the prefill, by transformers' name.

        Raises:
            KvbenchError: The weights or the kernel cannot be loaded.
        """
        from transformers import AutoModelForCausalLM

        if device == "cpu":
            keep_freed_memory()
        files: dict[str, Any] = self._arguments if self.gguf else {**self._arguments, "use_safetensors": True}
        with _one_sentence(f"the weights of {self.name}"):
            network: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                self.folder, dtype=DTYPES[dtype], attn_implementation=attention, **files
            )
            cast(nn.Module, network).to(device)
        if multiplied_slowly(DTYPES[dtype], device):
            multiply_in_float32(network)
        return Model(network, self.tokenizer, self.facts, attention)

    @property
    def _arguments(self) -> dict[str, Any]:
        """What transformers is told of every part; left out, it would ask a person whether to trust code."""
        return {"trust_remote_code": self.trust_remote_code} | ({"gguf_file": self.gguf} if self.gguf else {})


class Model:
    """A decoder whose attention kvbench answers for."""

    def __init__(self, network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, facts: ModelFacts, attention: str):
        """Take over the attention of a loaded `network`; `attention` is the kernel of the prefill."""
        self.network = network.eval()
        self.tokenizer = tokenizer
        self.facts = facts
        self.attention = attention
        self.network.set_attn_implementation(register(attention))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.network.parameters()).device
        return device

    @property
    def dtype(self) -> str:
        """The weights' type, a key of `DTYPES`."""
        return str(self.network.dtype).removeprefix("torch.")

    @property
    def window(self) -> int:
        """The most positions that the model knows."""
        return self.facts.window

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """The tokens that end an answer."""
        configured = getattr(self.network.generation_config, "eos_token_id", None)
        ends = configured if isinstance(configured, list) else [configured]
        return frozenset(token for token in (*ends, self.tokenizer.eos_token_id) if token is not None)

    def refuse_without_full_attention(self, layers: Collection[int]) -> None:
        """Refuse a model of which no layer was seen to attend to the whole context.

        Raises:
            KvbenchError: `layers`, the numbers of those that were, is empty.
        """
        if not layers:
            raise KvbenchError(
                f"{self.facts.name} has no full-attention layer: there is nothing that a press could rank"
            )

    def forward(self, tokens: Tensor, position: int, step: AttentionStep) -> Tensor:
        """Run `tokens`, the first at `position`, with `step` in place of attention.

        Args:
            tokens: int64 `[batch, t]`.
            position: The position of the first of them, the same for all rows.
            step: What each layer's attention does.

        Returns:
            The logits after the last token, `[batch, vocabulary]`.
        """
        positions = torch.arange(position, position + tokens.shape[1], device=tokens.device)
        return self._logits(tokens, positions, step, 1)[:, 0]

    def forward_all(self, tokens: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """Run `tokens` at any positions, int64 `[t]`, and return the logits after each: `[batch, t, vocabulary]`."""
        return self._logits(tokens, positions, step, len(positions))

    @torch.inference_mode()
    def _logits(self, tokens: Tensor, positions: Tensor, step: AttentionStep, last: int) -> Tensor:
        output = self.network(
            input_ids=tokens,
            position_ids=positions.expand(len(tokens), -1),
            use_cache=False,
            logits_to_keep=last,
            kvbench_step=step,
        )
        logits: Tensor = output.logits
        return logits


def facts_of(config: Any, name: str, weights: str) -> ModelFacts:
    """Read a text decoder's configuration."""
    heads = config.num_attention_heads
    return ModelFacts(
        name=name,
        weights=weights,
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        heads=heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        window=config.max_position_embeddings,
    )


def find(name: str, weights: bool = True, trust_remote_code: bool = False) -> ModelSource:
    """Find the model that `name` means: an alias, a local folder, a GGUF file, or a hub id.

    Args:
        name: What the user gave.
        weights: Fetch the weights too if they are not here; otherwise only what planning needs.
        trust_remote_code: Let Python code that comes with the model run. It then counts as part of the weights.

    Raises:
        UsageError: There is nothing of that name.
    """
    if name == embedded_model.ALIAS:
        folder, origin = embedded_model.folder()
        return ModelSource(name, folder, None, origin)
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UsageError(f"there is no GGUF file '{name}'")
        return ModelSource(path.stem, path.parent, path.name, f"gguf sha256:{_digest([path])}")
    if path.is_dir():
        return ModelSource(path.name, path, None, _folder_identity(path, trust_remote_code), trust_remote_code)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        error = unknown("model", name, [embedded_model.ALIAS])
        raise UsageError(f"{error}, a hub id (organisation/name), a local folder or a .gguf file")
    folder = _hub_folder(name, weights, trust_remote_code)
    origin = f"hub {name}@{folder.name}{_WITH_CODE if trust_remote_code else ''}"
    return ModelSource(name, folder, None, origin, trust_remote_code)


def _hub_folder(repository: str, weights: bool, code: bool) -> Path:
    from huggingface_hub import snapshot_download

    patterns = [*_TEXT_FILES, *(["*.safetensors"] if weights else []), *(["*.py"] if code else [])]
    try:
        return Path(snapshot_download(repository, allow_patterns=patterns))
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"model '{repository}' cannot be had from the hub or its cache: {reason}") from None


def _folder_identity(folder: Path, code: bool) -> str:
    files = sorted(folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file() or not files:
        raise UsageError(f"model folder '{folder}' lacks a config.json or *.safetensors weights")
    modules = sorted(folder.glob("*.py")) if code else []
    return f"folder sha256:{_digest([folder / 'config.json', *files, *modules])}{_WITH_CODE if code else ''}"


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


@contextmanager
def _one_sentence(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, ImportError, KeyError, json.JSONDecodeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise KvbenchError(f"{what} cannot be loaded: {type(error).__name__}: {reason}") from error


def choose_device(asked: str | None) -> str:
    """Return the device to run on: what was asked for, else the accelerator where there is one, else the CPU.

    Raises:
        UsageError: There is no such device here.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    here = ["cpu", *([accelerator.type] if accelerator else [])]
    if asked is None:
        return here[-1]
    if asked.partition(":")[0] not in here:
        raise unknown("device", asked, here)
    return asked


def choose_dtype(asked: str | None, device: str) -> str:
    """Return the weights' type: what was asked for, else bfloat16 where the processor computes in it.

    Raises:
        UsageError: There is no such type.
    """
    if asked is not None:
        if asked not in DTYPES:
            raise unknown("dtype", asked, DTYPES)
        return asked
    if device.startswith("cuda"):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    capabilities = torch.cpu.get_capabilities() if device == "cpu" else {}
    return "bfloat16" if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else "float32"


def quieten_transformers() -> None:
    """Keep transformers' progress bars and advice out of the command line's output."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def parameter_count(config: Any) -> int:
    """Count the weights that a configuration describes, without making them."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    return sum(weight.numel() for weight in network.parameters())
