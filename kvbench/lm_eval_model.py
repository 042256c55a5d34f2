"""kvbench as a model of lm-eval: `lm_eval --model kvbench --model_args pretrained=…,press=snapkv,budget=512`.

An lm-eval that looks for models in the entry points `lm_eval.models` finds it by itself; lm-eval 0.4.13 does not yet.
There, `python -m kvbench.lm_eval_model` is lm-eval's command line with the model in it, and in Python
`import kvbench.lm_eval_model` is all it takes. Importing this module imports lm-eval.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm

from kvbench.after_prefill import run_prompt
from kvbench.budgets import Budget, parse_budgets
from kvbench.commands.run import parse_protect
from kvbench.errors import KvbenchError, UsageError, unknown
from kvbench.lm_eval_requests import MAX_NEW_TOKENS, greedy
from kvbench.models import choose_device, choose_dtype, find
from kvbench.press import Press, sample_seed
from kvbench.prompts import Prompt
from kvbench.ranking import Protect
from kvbench.records import FULL, press_identity
from kvbench.registry import make_press, press_label
from kvbench.task import Answer, Question
from kvbench.variants import Job, Variant

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import CacheHook

_log = logging.getLogger(__name__)

_LM_EVALS_DEVICE = "cuda:0"
"""What lm-eval's command line asks for unless the user does; its own models then take what there is."""

Pair = tuple[tuple[str, str], list[int], list[int]]
"""lm-eval's request for a log-likelihood: its texts, and the tokens of context and continuation."""


@register_model("kvbench")
class KVBenchLM(HFLM):  # type: ignore[misc]
    """A model that answers from a compressed cache.

    It tokenises, truncates and applies chat templates as lm-eval's `hf` does. A context is prefilled without its last
    token and compressed once; what is scored or generated is fed after that. With `press=full` it answers as `hf`.
    """

    def __init__(
        self,
        pretrained: str,
        press: str = FULL,
        budget: int | str | None = None,
        question: str = "inside",
        protect: str = "4:16",
        dtype: str | None = None,
        device: str | None = None,
        attention: str = "sdpa",
        seed: int = 42,
        max_length: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        **unknown_arguments: object,
    ) -> None:
        """Load a model and a press.

        Args:
            pretrained: Whatever `kvbench run --model` takes.
            press: `name`, or with parameters `name:field=value;field=value`.
            budget: Tokens per KV head (`512`) or a share of the context (`25%`); none with a press that keeps all.
            question: Only `inside`: lm-eval does not say where in a context the question begins.
            protect: How many first and last tokens no press may evict before the others, `FIRST:LAST`.
            dtype: Of weights and cache.
            device: What runs them; the accelerator where there is one if none.
            attention: The kernel of the prefill, by transformers' name.
            seed: Of the presses that draw.
            max_length: The most tokens of context and continuation; the model's own window if none.
            batch_size: Given by lm-eval, without effect: contexts are compressed one by one, the continuations of
                one are scored together.
            max_batch_size: As `batch_size`.
            **unknown_arguments: Refused.

        Raises:
            KvbenchError: An argument is wrong, or the model cannot be loaded.
        """
        for name in unknown_arguments:
            raise unknown("model argument", name, ARGUMENTS)
        if question != "inside":
            raise UsageError(
                f"question={question} is not allowed: lm-eval does not say where in a context the question begins; "
                "`kvbench run --task lm_eval:NAME --question after` feeds a row's text after compression"
            )
        source = find(pretrained)
        made = make_press(press.replace(";", ",")).for_model(source.facts)
        self._budget = _budget_of(press, made, budget)
        device = choose_device(None if device == _LM_EVALS_DEVICE and not torch.cuda.is_available() else device)
        self._kvbench = source.load(choose_dtype(dtype, device), device, attention)
        super().__init__(
            pretrained=self._kvbench.network, tokenizer=self._kvbench.tokenizer, max_length=max_length, batch_size=1
        )
        self._press_name = press_label(press.partition(":")[0], made)
        self._presses: dict[str, Press] = {self._press_name: made}
        self._protected = Protect(*parse_protect(protect.replace(":", ",")))
        self._seed = seed

    @property
    def max_gen_toks(self) -> int:
        """The most new tokens where a task does not say."""
        return MAX_NEW_TOKENS

    @property
    def tokenizer_name(self) -> str:
        """Tokenizer, press and budget: lm-eval's cache of requests in a chat template carries it in its keys."""
        return f"{super().tokenizer_name}-{self._press_name}-{self._budget.label if self._budget else FULL}"

    def get_model_info(self) -> dict[str, Any]:
        """Return what belongs to lm-eval's results: the weights, and all that decides what is kept."""
        return {
            "model_num_parameters": self.model.num_parameters(),
            "model_dtype": self._kvbench.dtype,
            "weights": self._kvbench.facts.weights,
            "press": self._press_name,
            "press_identity": press_identity(self._press_name, self._presses[self._press_name].identity()),
            "budget": self._budget.label if self._budget else FULL,
            "question": "inside",
            "protect_first": self._protected.first,
            "protect_last": self._protected.last,
            "attention": self._kvbench.attention,
            "seed": self._seed,
        }

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Refuse lm-eval's cache of answers.

        Raises:
            UsageError: Always, for lm-eval asks for a hook only where answers are cached.
        """
        raise UsageError(
            "use_cache is not allowed: lm-eval keeps an answer by its request alone, and would give one press's answer "
            "for another's; `kvbench run --task lm_eval:NAME` resumes by keys that hold press and budget"
        )

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Refuse a rolling perplexity.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "a rolling perplexity has no context that could be compressed: `kvbench run --task oasst2` measures one "
            "of a reply after its context is"
        )

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer greedily, each request until its stop texts or its limit of tokens.

        Raises:
            KvbenchError: A request asks for sampling, has nothing to compress, or the press fails.
        """
        answers = []
        cut = _Cut(len(requests), self.max_length)
        for context, arguments in tqdm(
            [request.args for request in requests], "Generating", disable=disable_tqdm, unit="request"
        ):
            stop, new_tokens = greedy(arguments)
            encoded, _ = self.tok_batch_encode([context])
            tokens = cut.to(encoded[0].tolist(), self.max_length - new_tokens)
            question = Question(text="", targets=(), max_new_tokens=new_tokens, stop=stop)
            answers.append(self._answer(tokens, question).text)
        cut.tell()
        return answers

    def _loglikelihood_tokens(
        self, requests: Sequence[Pair], disable_tqdm: bool = False, **_: object
    ) -> list[tuple[float, bool]]:
        """Score continuations; those of one context together, after one prefill."""
        cut = _Cut(len(requests), self.max_length)
        by_context: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, (_texts, context, continuation) in enumerate(requests):
            # The last token of a continuation is scored but never fed.
            by_context[tuple(cut.to(context, self.max_length + 1 - len(continuation)))].append(number)
        found: dict[int, tuple[float, bool]] = {}
        for context, numbers in tqdm(by_context.items(), "Scoring", disable=disable_tqdm, unit="context"):
            texts = tuple(requests[number][0][1] for number in numbers)
            continuations = tuple(torch.tensor(requests[number][2]) for number in numbers)
            answer = self._answer(context, Question(text="", targets=(), continuations=texts), continuations)
            found |= zip(numbers, zip(answer.log_likelihoods, answer.greedy, strict=True), strict=True)
        cut.tell()
        return [found[number] for number in range(len(requests))]

    def _answer(
        self, tokens: Sequence[int], question: Question, continuations: tuple[torch.Tensor, ...] = ()
    ) -> Answer:
        """Compress a context but for its last token, and answer from what is left.

        Raises:
            KvbenchError: There is nothing to compress, or the press fails.
        """
        if len(tokens) < 2:
            raise KvbenchError(
                f"a request leaves {len(tokens)} tokens of context: kvbench holds the last one back, and needs "
                "another to compress"
            )
        whole = torch.tensor(tokens)
        prompt = Prompt(whole[:-1], (whole[-1:],), (0,), (continuations,))
        variant = self._variant(len(tokens) - 1)
        seed = sample_seed(self._seed, sha256(str(list(tokens)).encode()).hexdigest())
        outcome = run_prompt(self._kvbench, Job(prompt, [question], self._presses, [variant], self._protected, seed))
        if variant not in outcome.answers:
            raise KvbenchError(f"press {self._press_name} failed: {outcome.failures[self._press_name]}")
        return outcome.answers[variant][0]

    def _variant(self, n: int) -> Variant:
        budget = self._budget.resolve(n) if self._budget else n
        return Variant(self._press_name if budget < n else None, budget)


ARGUMENTS = (
    "pretrained",
    "press",
    "budget",
    "question",
    "protect",
    "dtype",
    "device",
    "attention",
    "seed",
    "max_length",
)
"""What `--model_args` may hold."""


class _Cut:
    """Cuts contexts on the left, as lm-eval does, and says how much was cut."""

    def __init__(self, requests: int, window: int) -> None:
        self.requests = requests
        self.window = window
        self.cuts = 0
        self.tokens = 0

    def to(self, context: Sequence[int], length: int) -> Sequence[int]:
        """Return the last `length` tokens of a context."""
        left_out = len(context) - max(length, 0)
        if left_out <= 0:
            return context
        self.cuts += 1
        self.tokens += left_out
        return context[left_out:]

    def tell(self) -> None:
        """Log how many contexts and tokens were cut."""
        if self.cuts:
            _log.warning(
                "%d of %d contexts were cut on the left, by %d tokens in all, to fit %d tokens",
                self.cuts,
                self.requests,
                self.tokens,
                self.window,
            )


def _budget_of(name: str, press: Press, budget: int | str | None) -> Budget | None:
    """Return a press's budget; none of one that keeps all.

    Raises:
        UsageError: It has one that it cannot have, or has none.
    """
    if not press.evicts:
        if budget is not None:
            raise UsageError(f"press {name} keeps everything: leave budget={budget} out")
        return None
    if budget is None:
        raise UsageError(f"press {name} needs a budget: add budget=512, or budget=25%")
    [parsed] = parse_budgets(str(budget))
    return parsed


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
