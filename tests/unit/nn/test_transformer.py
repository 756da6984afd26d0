"""End to end: a small transformer quantised through `Linear`, beside the same arithmetic in float64 and beside float32."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from tilewright.nn import Linear, linears  # noqa: E402

WIDTH, HEADS, LAYERS, VOCABULARY = 64, 4, 2, 50


class Block(torch.nn.Module):
    """Attention and two dense layers, each after a norm and around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out, self.up, self.down = (
            torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)
        )
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        parts = [f(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.query, self.key, self.value)]
        scores = (parts[0] @ parts[1].transpose(-1, -2) / math.sqrt(WIDTH / HEADS)).softmax(-1)
        x = x + self.out((scores @ parts[2]).transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.between(x))))


class Transformer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.norm(self.blocks(self.embedding(tokens)))


class Reference(torch.nn.Module):
    """What a quantised layer stands for, step by step in float64."""

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.dense, self.bias, self.quantize = layer.dequantize().double(), layer.bias.double(), layer.quantize

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.quantize == "int8":
            # Torch divides numbers by tensors by way of a reciprocal, which rounds twice; doubles do not.
            largest = x.double().abs().amax(-1, keepdim=True)
            codes = torch.round(x.float() * (127.0 / largest).float())
            x = codes.double() * (largest / 127.0).float().double()
        return torch.nn.functional.linear(x.double(), self.dense, self.bias).to(torch.float32)


def replaced(make: object, model: Transformer) -> Transformer:
    """A model of the same weights whose linear layers are made anew."""
    twin = Transformer()
    twin.load_state_dict(model.state_dict())
    for parent, name, layer in linears(twin):
        setattr(parent, name, make(layer))
    return twin.eval()


@pytest.mark.parametrize(
    ("weights", "group", "activations", "least"),
    [("int8", None, "int8", 0.995), ("int4", 32, None, 0.98), ("int4", 32, "int8", 0.975)],
    ids=["W8A8", "W4A16", "W4A8"],
)
def test_a_transformer_keeps_its_meaning(
    weights: str, group: int | None, activations: str | None, least: float
) -> None:
    torch.manual_seed(0)
    model = Transformer().eval()
    tokens = torch.randint(0, VOCABULARY, (3, 11))
    quantised = replaced(lambda f: Linear.from_float(f, weights, group=group, activations=activations), model)
    exact = replaced(lambda f: Reference(Linear.from_float(f, weights, group=group, activations=activations)), model)
    with torch.no_grad():
        expected, found, reference = model(tokens), quantised(tokens), exact(tokens)
    # Activations that lie halfway between two codes may round differently after sums in another order.
    torch.testing.assert_close(found, reference, rtol=0, atol=1e-4 if activations is None else 3e-2)
    assert (found - reference).abs().mean() < 1e-3
    assert torch.nn.functional.cosine_similarity(found.flatten(1), expected.flatten(1)).min() >= least
