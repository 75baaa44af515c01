"""Time transformers' BertForPreTraining on torch, compiled, with torch's fused attention.

Needs transformers 5 and torch; a C++ compiler too where there is no GPU. Prints one JSON line; see
gpu_step.py.
"""

import gpu_common
import torch_model


def main() -> None:
    args = gpu_common.peer_flags(__doc__)

    import torch

    torch.set_float32_matmul_precision("high")
    torch_model.time_model(
        args, True, args.dropout, args.attention_dropout, attn_implementation="sdpa"
    )


main()
