"""Time transformers' BertForPreTraining on torch.

Needs transformers and torch, and a C++ compiler for --compile. Prints one JSON line; see
pretraining_step.py.
"""

import os

import pretraining_common as common
import torch_model


def main() -> None:
    args = common.peer_flags(__doc__, compile="through torch.compile")

    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch_model.time_model(args, args.compile)


main()
