"""What the fork server of `processes` imports once, so that a command starts in a moment."""

import torch
import transformers.models.auto.modeling_auto
import transformers.models.llama.modeling_llama
import transformers.tokenization_utils_tokenizers  # noqa: F401

import kvbench.cli
import kvbench.commands.run
import kvbench.commands.traces
import kvbench.commands.train
import kvbench.commands.validate
import kvbench.sweep
import kvbench.tracing
import kvbench.training.trainer  # noqa: F401

torch.set_num_threads(1)
