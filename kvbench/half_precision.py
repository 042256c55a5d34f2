"""Half precision on processors that do not multiply in it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def multiplied_slowly(dtype: torch.dtype, device: str) -> bool:
    """Say whether torch would multiply matrices of `dtype` one number at a time on `device`."""
    if device != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if dtype == torch.float16:
        return not torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return False


def multiply_in_float32(network: nn.Module) -> None:
    """Let the linear layers of `network` multiply in float32 and round what comes out to their own type.

    That is what processors with such instructions do: products of two half-precision numbers are summed in float32.
    The weights of these layers take twice the memory.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear):
            _widen(module)


def _widen(linear: nn.Linear) -> None:
    dtype = linear.weight.dtype
    # New parameters: an embedding that shares the weight keeps its type.
    for name, parameter in list(linear.named_parameters(recurse=False)):
        setattr(linear, name, nn.Parameter(parameter.detach().float(), requires_grad=False))

    def widen(_: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        return inputs[0].float()

    def narrow(_: nn.Module, _inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return output.to(dtype)

    linear.register_forward_pre_hook(widen)
    linear.register_forward_hook(narrow)
