"""Time transformers' BertForPreTraining on torch, compiled, with torch's fused attention.

Needs transformers 5 and torch; a C++ compiler too where there is no GPU. Prints one JSON line; see
gpu_step.py.
"""

import gpu_common
import pretraining_common as common


def main() -> None:
    args = gpu_common.peer_flags(__doc__)

    import torch
    import transformers

    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = transformers.BertConfig(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        intermediate_size=args.intermediate,
        max_position_embeddings=common.MAX_POSITIONS,
        hidden_act="gelu_pytorch_tanh",  # the tanh form, as the original and the other rows
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.attention_dropout,
        attn_implementation="sdpa",
    )
    model = transformers.BertForPreTraining(config).to(device).train()
    decayed, spared = [], []
    for name, parameter in model.named_parameters():
        (spared if "LayerNorm" in name or "bias" in name else decayed).append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": common.WEIGHT_DECAY},
            {"params": spared, "weight_decay": 0.0},
        ],
        lr=common.LEARNING_RATE,
        eps=1e-6,
        fused=True,
    )
    forward = torch.compile(model)

    batch = common.make_batch(args)
    arrays = {
        "input_ids": batch["input_ids"].astype("int64"),
        "attention_mask": batch["input_mask"].astype("int64"),
        "token_type_ids": batch["segment_ids"].astype("int64"),
        "labels": common.labels_everywhere(batch),
        "next_sentence_label": batch["next_sentence_labels"][:, 0].astype("int64"),
    }
    features = {name: torch.from_numpy(value).to(device) for name, value in arrays.items()}

    def step() -> float:
        with torch.autocast(device, torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = forward(**features).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), common.CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    peer = f"transformers {transformers.__version__}, torch {torch.__version__}"
    common.time_steps(args, step, peer)


main()
