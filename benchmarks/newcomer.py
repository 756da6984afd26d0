"""A newcomer's day: the wheel in an empty environment of each Python, a model quantised, saved, loaded, asked, adapted, exported.

    python benchmarks/newcomer.py python3.10 python3.11 python3.12 python3.13

builds the wheel, makes an environment beside the temporary files for each, and prints how many seconds each step takes. The first
time of each Python is mostly pip's. Nothing is fetched but packages; the model is a small Llama with random weights that is made on the spot.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

DAY = """
import time
begun = time.perf_counter()

def done(step):
    global begun
    print(f"{step:44s} {time.perf_counter() - begun:7.1f} s", flush=True)
    begun = time.perf_counter()

import torch, transformers
done("import torch, transformers")
import tilewright, tilewright.hf
done("import tilewright, tilewright.hf")

torch.manual_seed(0)
size = dict(hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, vocab_size=512)
transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, pad_token_id=0)).save_pretrained("dense")
words = torch.arange(3, 11)[None]
load = transformers.AutoModelForCausalLM.from_pretrained
expected = load("dense")(words).logits
done("a dense model, made, saved, loaded, asked")

model = load("dense", quantization_config=tilewright.QuantizationConfig("int8", group=64))
done("quantised while loading")
found = model(words).logits
assert (found - expected).abs().max() < 0.05 * expected.abs().max()
done("first answer (kernels are compiled)")
assert model(words).logits.equal(found)
done("second answer")
said = model.generate(words, attention_mask=torch.ones_like(words), max_new_tokens=16, do_sample=False, pad_token_id=0)
assert said.shape == (1, 24)
done("16 words generated")

model.save_pretrained("ours")
again = load("ours")
assert again(words).logits.equal(found)
done("saved, loaded, asked: the same last bit")
tilewright.convert_checkpoint("dense", "converted", "w4a16-g64")
assert load("converted")(words).logits.isfinite().all()
done("converted to 4 bits, loaded, asked")

import peft
adapted = peft.get_peft_model(again, peft.LoraConfig(target_modules="all-linear"))
optimizer = torch.optim.AdamW([one for one in adapted.parameters() if one.requires_grad], lr=5e-3)
losses = []
for step in range(10):
    loss = adapted(input_ids=words, labels=words).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(float(loss.detach()))
assert losses[-1] < losses[0]
adapted.save_pretrained("adapter")
done(f"an adapter learns, {losses[0]:.2f} to {losses[-1]:.2f}, and is saved")

dense = peft.PeftModel.from_pretrained(load("ours"), "adapter").unload().dequantize()
dense.save_pretrained("exported")
assert (load("exported")(words).logits - found).abs().max() < 1e-3 * found.abs().max()
done("exported as a dense model, loaded, asked")
"""


def timed(step: str, *command: str, **options: object) -> None:
    """Run a program to its end, or end with what it said."""
    begun = time.perf_counter()
    finished = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if finished.returncode:
        sys.exit(f"{step}: {' '.join(command[:6])}\n{finished.stdout[-2000:]}{finished.stderr[-4000:]}")
    print(f"{step:44s} {time.perf_counter() - begun:7.1f} s", flush=True)


def main(pythons: list[str]) -> None:
    """One day for each Python."""
    with tempfile.TemporaryDirectory() as directory:
        room = Path(directory)
        timed("the wheel is built", sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(room), str(ROOT))
        wheel = next(room.glob("*.whl"))
        for python in pythons:
            print(f"\n{python}", flush=True)
            day = room / Path(python).name
            timed("an empty environment", python, "-m", "venv", str(day / "venv"))
            own = str(day / "venv" / "bin" / "python")
            timed("pip install tilewright", own, "-m", "pip", "install", "-q", str(wheel))
            timed("tilewright demo, without torch", own, "-m", "tilewright", "demo", cwd=day)
            timed(
                "pip install torch, transformers, peft",
                own,
                "-m",
                "pip",
                "install",
                "-q",
                f"{wheel}[transformers]",
                "peft",
                "accelerate",
            )
            finished = subprocess.run([own, "-W", "ignore", "-c", DAY], cwd=day, text=True, stderr=subprocess.PIPE)
            if finished.returncode:
                sys.exit(finished.stderr[-4000:])


if __name__ == "__main__":
    main(sys.argv[1:] or [sys.executable])
