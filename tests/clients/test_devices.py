"""Models that are spread over devices by accelerate, kept on a disk in part, or made on the meta device: what they say is what they say whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
import transformers as tf
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from tiny_models import logits_of, model_of

import tilewright
from tilewright.conversion.modules import put_in_place
from tilewright.errors import CannotQuantize

KINDS = ("llama", "qwen3-moe", "gpt-oss")
SPLIT = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "disk"}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """A dense model and the same quantised, in files; the logits of the second."""
    directory = tmp_path_factory.mktemp(request.param)
    model = model_of(request.param)
    model.save_pretrained(directory / "dense")
    model = tf.AutoModelForCausalLM.from_pretrained(directory / "dense")
    tilewright.quantize(model, "int8-g32", skip="lm_head|gate$|router|embed").save_pretrained(directory / "ours")
    return directory, logits_of(model)


def loaded(directory: Path, form: str, **options: Any) -> Any:
    if form == "dense":
        options["quantization_config"] = tilewright.QuantizationConfig("int8", group=32)
    return tf.AutoModelForCausalLM.from_pretrained(directory / form, **options)


@pytest.mark.parametrize("form", ["dense", "ours"])
@pytest.mark.parametrize("device_map", ["auto", "sequential", {"": "cpu"}, SPLIT])
def test_a_map_of_devices_changes_nothing(saved: Any, tmp_path: Path, form: str, device_map: Any) -> None:
    directory, expected = saved
    model = loaded(directory, form, device_map=device_map, offload_folder=tmp_path / "away")
    assert sum(isinstance(one, tilewright.Linear) for one in model.modules()) >= 8
    assert torch.equal(logits_of(model), expected)
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits_of(loaded(tmp_path, "again")), expected)


def test_little_memory_sends_layers_to_the_disk(saved: Any, tmp_path: Path) -> None:
    directory, expected = saved
    model = loaded(directory, "ours", device_map="auto", max_memory={"cpu": "60KB"}, offload_folder=tmp_path)
    assert "disk" in model.hf_device_map.values()
    assert torch.equal(logits_of(model), expected)


@pytest.mark.parametrize("buffers", [False, True])
@pytest.mark.parametrize("how", ["cpu", "disk", "dispatch"])
def test_what_accelerate_does_to_a_loaded_model(saved: Any, tmp_path: Path, how: str, buffers: bool) -> None:
    directory, expected = saved
    model = loaded(directory, "ours")
    if how == "cpu":
        accelerate.cpu_offload(model, execution_device="cpu", offload_buffers=buffers)
    elif how == "disk":
        accelerate.disk_offload(model, str(tmp_path), execution_device="cpu", offload_buffers=buffers)
    else:
        accelerate.dispatch_model(model, {"model": "cpu", "lm_head": "cpu"}, force_hooks=True)
    assert torch.equal(logits_of(model), expected) and torch.equal(logits_of(model), expected)


@pytest.mark.parametrize("offload", [False, True])
def test_a_layer_takes_the_place_of_one_that_accelerate_watches(offload: bool) -> None:
    """Of a device other than the one that codes are on, as far as a name goes: codes that are kept elsewhere come for a call, and are saved.

    Without a bias: accelerate itself makes a tensor that is no parameter of one that goes to "cpu:0", and then stops at it.
    """
    torch.manual_seed(0)
    sizes, x = ((64, 32), (32, 7)), torch.randn(3, 64)
    model, twin = (torch.nn.Sequential(*(torch.nn.Linear(*one, bias=False) for one in sizes)) for _ in range(2))
    expected = tilewright.quantize(twin, "int8-g32")
    expected.load_state_dict(tilewright.quantize(model, "int8-g32").state_dict())
    dense = torch.nn.Linear(64, 32, bias=False)
    add_hook_to_module(dense, AlignDevicesHook(execution_device="cpu:0", offload=offload, io_same_device=True))
    hooked = torch.nn.Sequential(dense, model[1])
    put_in_place(hooked, "0", dense, model[0])
    assert hooked[0]._hf_hook.execution_device == "cpu:0" and hooked[0].qweight.is_meta == offload
    for _ in range(2):
        assert torch.equal(hooked(x), expected(x)) and hooked[0].qweight.is_meta == offload
    state = hooked.state_dict()
    assert all(torch.equal(state[name], value) for name, value in expected.state_dict().items())


@pytest.fixture
def default_of_meta() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def test_whatever_torch_makes_tensors_on_codes_are_there(saved: Any, default_of_meta: None) -> None:
    directory, expected = saved
    empty = tf.AutoModelForCausalLM.from_config(tf.AutoConfig.from_pretrained(directory / "dense"))
    assert next(empty.parameters()).is_meta
    model = tilewright.load_quantized(empty.eval(), directory / "ours")
    again = tf.AutoModelForCausalLM.from_config(tf.AutoConfig.from_pretrained(directory / "dense"))
    with pytest.raises(CannotQuantize, match="on the meta device: it has no numbers"):
        tilewright.quantize(again, "int8-g32")
    torch.set_default_device(None)
    assert not any(one.is_meta for one in (*model.parameters(), *model.buffers()))
    # transformers chooses another way to multiply by dense experts for a model that it has loaded.
    assert (logits_of(model) - expected).abs().max() <= 1e-5 * expected.abs().max()
