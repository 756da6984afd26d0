"""Which layers may become codes: those that do what `torch.nn.Linear` does, and that their owner calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tilewright
from tilewright.conversion.linear_checks import borrowed_weights, computes_as_linear
from tilewright.errors import CannotQuantize

K, N = 32, 32


class WithANameOfItsOwn(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


class Scaled(torch.nn.Linear):
    """As fp8 layers are: alike while the weight is a float, and not with what stands beside it."""

    def __init__(self) -> None:
        super().__init__(K, N)
        self.register_buffer("scale", torch.tensor(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias) * getattr(self, "scale", 1.0)


class Doubled(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class TwoResults(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), x


class Twice(torch.nn.Linear):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + super().forward(y)


@pytest.mark.parametrize("bias", [True, False])
def test_subclasses_that_compute_the_same(bias: bool) -> None:
    model, x = torch.nn.Sequential(WithANameOfItsOwn(K, N, bias)), torch.randn(3, K)
    expected = model(x)
    assert isinstance(tilewright.quantize(model, "int8-g32")[0], tilewright.Linear)
    assert 0 < (model(x) - expected).abs().max() < 0.02


@pytest.mark.parametrize("kind", [Scaled, lambda: Doubled(K, N), lambda: TwoResults(K, N), lambda: Twice(K, N)])
def test_subclasses_that_compute_something_else_stay(kind: Any) -> None:
    model = torch.nn.ModuleList([torch.nn.Linear(K, N), kind()])
    tilewright.quantize(model, "int8-g32")
    assert isinstance(model[0], tilewright.Linear) and not isinstance(model[1], tilewright.Linear)
    assert not computes_as_linear(model[1])


def test_weights_of_eight_bits_without_their_scales_are_no_numbers() -> None:
    layer = WithANameOfItsOwn(K, N)
    assert computes_as_linear(layer) and not computes_as_linear(layer.to(torch.float8_e4m3fn))


class OfBytes(torch.Tensor):
    """As torchao's: a tensor that says float32 and holds something else."""


def scaled_codes() -> torch.nn.Linear:
    layer = torch.nn.Linear(K, N)
    layer.weight = torch.nn.Parameter(torch.ones(N, K, dtype=torch.int8), requires_grad=False)
    layer.register_buffer("weight_scale", torch.ones(N, 1))
    return layer


def packed_codes() -> torch.nn.Linear:
    layer = torch.nn.Linear(K, N)
    del layer._parameters["weight"]
    layer.weight_packed = torch.nn.Parameter(torch.ones(N, K // 8, dtype=torch.int32), requires_grad=False)
    return layer


def of_another_class() -> torch.nn.Linear:
    layer = torch.nn.Linear(K, N)
    layer.weight = torch.nn.Parameter(torch.randn(N, K).as_subclass(OfBytes))
    return layer


@pytest.mark.parametrize(
    ("made", "more"),
    [
        (scaled_codes, "weight_scale beside its weight"),
        (packed_codes, "no weight"),
        (of_another_class, "a weight of type OfBytes"),
    ],
)
def test_layers_that_another_library_quantised_stay(made: Any, more: str) -> None:
    """Their codes were rounded as if they were numbers, or ended in a traceback."""
    model, said = torch.nn.ModuleList([torch.nn.Linear(K, N), made()]), list[str]()
    tilewright.quantize(model, "int8-g32", report=said.append)
    assert isinstance(model[0], tilewright.Linear) and type(model[1]) is torch.nn.Linear
    assert f"Linear has {more}: another library's, quantised already" in said[0]
    with pytest.raises(CannotQuantize, match="another library's, quantised already"):
        tilewright.quantize(torch.nn.ModuleList([made()]), "int8-g32")


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("norm", [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm])
def test_weights_that_torch_normalises_are_numbers(norm: Any) -> None:
    model, x = torch.nn.Sequential(norm(torch.nn.Linear(K, N))).eval(), torch.randn(3, K)
    expected = model(x)
    assert isinstance(tilewright.quantize(model, "int8-g32")[0], tilewright.Linear)
    assert 0 < (model(x) - expected).abs().max() < 0.02 * expected.abs().max()


@torch.no_grad()
def test_the_attention_of_torch_keeps_its_weights() -> None:
    """It never calls ``out_proj``, a subclass of `torch.nn.Linear`; the layers around it are called."""
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 1).eval()
    x = torch.randn(2, 5, 64)
    expected = model(x)
    tilewright.quantize(model, "int8-g32")
    taken = {name for name, module in model.named_modules() if isinstance(module, tilewright.Linear)}
    assert taken == {"layers.0.linear1", "layers.0.linear2"}
    assert 0 < (model(x) - expected).abs().max() < 0.05


class Owner(torch.nn.Module):
    """Every way to use a part; those whose name begins with ``taken`` cannot be of codes."""

    def __init__(self, slow: bool = False) -> None:
        super().__init__()
        self.slow, self.parts = slow, 1
        names = (
            "taken_at",
            "taken_given",
            "taken_turned",
            "taken_kept",
            "taken_further",
            "exact",
            "called",
            "asked",
            "trained",
            "made",
        )
        for name in names:
            setattr(self, name, torch.nn.Linear(K, N))
        torch.nn.init.zeros_(self.made.weight)

    def reset_parameters(self) -> None:
        torch.nn.init.zeros_(self.made.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.taken_at.weight @ x.mT
        x = F.linear(x.mT, self.taken_given.weight)
        x = x @ self.taken_turned.weight.t()
        weight = self.taken_kept.weight
        if self.parts > 1 and self.slow:
            x = x @ self.exact.weight
        elif not self.slow or x is None:
            x = self.exact(x)
        if isinstance(self.asked.weight, torch.Tensor) and x.dtype != self.asked.weight.dtype:
            x = x.to(self.asked.weight.dtype)
        if self.training and x is not None:
            return x @ self.trained.weight
        return self.trained(self._more(self.asked(self.called(self.made(x @ weight)))))

    def _more(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.taken_further.weight


class Heir(Owner):
    pass


@pytest.mark.parametrize("kind", [Owner, Heir])
def test_weights_that_their_owner_takes(kind: type[Owner]) -> None:
    owner, x = kind().eval(), torch.randn(3, K)
    assert borrowed_weights(dict(owner.named_modules())) == {
        name for name in owner._modules if name.startswith("taken")
    }
    expected = owner(x)
    tilewright.quantize(owner, "int8-g32")
    assert all(isinstance(part, tilewright.Linear) != name.startswith("taken") for name, part in owner._modules.items())
    assert (owner(x) - expected).abs().max() < 0.05 * expected.abs().max()


def test_a_way_that_a_module_is_set_to_is_read() -> None:
    owner = Owner(slow=True)
    owner.parts = 2
    assert "exact" in borrowed_weights(dict(owner.named_modules()))


class Rescaling(torch.nn.Module):
    """As RWKV: weights of layers far below are divided before the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.ModuleDict({"output": Owner(), "key": Owner()}) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            layer.output.exact.weight.div_(2)
            x = layer.output(layer.key(x))
        return x


def test_weights_that_somebody_above_takes() -> None:
    found = borrowed_weights(dict(Rescaling().named_modules()))
    assert {name for name in found if ".exact" in name} == {"layers.0.output.exact", "layers.1.output.exact"}
