"""Run by torchrun: models of a folder, each shared out among all processes, against their files."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import prism_transformer.hf  # noqa: F401

N = 2


def main(folder: Path, *names: str) -> None:
    from transformers.distributed import DistributedConfig

    for name in names:
        known = load_file(folder / f"{name}.safetensors")
        model = AutoModelForCausalLM.from_pretrained(
            folder / name, distributed_config=DistributedConfig(tp_size=N)
        )
        own = model.model.layers[0].self_attn.q_proj.weight.to_local()
        assert own.shape[0] * N == model.config.hidden_size, "not shared out"
        with torch.no_grad():
            torch.testing.assert_close(model(known["text"]).logits, known["logits"])
        written = model.generate(known["text"], max_new_tokens=8, do_sample=False)
        assert torch.equal(written, known["written"]), name
        model.train()(known["text"], labels=known["text"]).loss.backward()
        grad = model.model.layers[0].self_attn.q_proj.weight.grad.full_tensor()
        torch.testing.assert_close(grad, known["grad"], rtol=1e-4, atol=1e-5)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
