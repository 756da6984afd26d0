"""Modules with experts in tensors of three dimensions, of the names, the parameters and the arguments that Hugging Face's models have."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

EXPERTS, HIDDEN, INNER = 4, 32, 48


class MixtralExperts(nn.Module):
    """Also Qwen's, OLMoE's and DeepSeek-V3's: rows of gate above rows of up."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.hidden_dim, self.intermediate_dim = EXPERTS, HIDDEN, INNER
        self.gate_up_proj = nn.Parameter(torch.randn(EXPERTS, 2 * INNER, HIDDEN) * 0.2)
        self.down_proj = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER) * 0.2)
        self.act_fn = nn.SiLU()

    def forward(self, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
        final = torch.zeros_like(hidden_states)
        with torch.no_grad():
            mask = functional.one_hot(top_k_index, num_classes=self.num_experts).permute(2, 1, 0)
            hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for one in hit:
            expert = one[0]
            position, token = torch.where(mask[expert])
            gate, up = functional.linear(hidden_states[token], self.gate_up_proj[expert]).chunk(2, dim=-1)
            found = functional.linear(self.act_fn(gate) * up, self.down_proj[expert])
            found = found * top_k_weights[token, position, None]
            final.index_add_(0, token, found.to(final.dtype))
        return final


class GptOssExperts(nn.Module):
    """gpt-oss: weights ``[experts, K, N]`` with biases, gate and up in turn, a factor for every expert."""

    dense_scores = True

    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.hidden_size, self.expert_dim = EXPERTS, HIDDEN, INNER
        self.gate_up_proj = nn.Parameter(torch.randn(EXPERTS, HIDDEN, 2 * INNER) * 0.2)
        self.gate_up_proj_bias = nn.Parameter(torch.randn(EXPERTS, 2 * INNER))
        self.down_proj = nn.Parameter(torch.randn(EXPERTS, INNER, HIDDEN) * 0.2)
        self.down_proj_bias = nn.Parameter(torch.randn(EXPERTS, HIDDEN))
        self.alpha, self.limit = 1.702, 7.0

    def forward(self, hidden_states: Any, router_indices: Any = None, routing_weights: Any = None) -> Any:
        shape = hidden_states.shape
        rows = hidden_states.reshape(-1, self.hidden_size)
        final = torch.zeros_like(rows)
        mask = functional.one_hot(router_indices, num_classes=self.num_experts).permute(2, 1, 0)
        for expert in range(self.num_experts):
            position, token = torch.where(mask[expert])
            both = rows[token] @ self.gate_up_proj[expert] + self.gate_up_proj_bias[expert]
            gate, up = both[..., ::2], both[..., 1::2]
            gate, up = gate.clamp(min=None, max=self.limit), up.clamp(min=-self.limit, max=self.limit)
            out = ((up + 1) * (gate * torch.sigmoid(gate * self.alpha))) @ self.down_proj[expert]
            out = out + self.down_proj_bias[expert]
            factors = routing_weights[token, expert if self.dense_scores else position, None]
            final.index_add_(0, token, (out * factors).to(final.dtype))
        return final.view(shape)


class NewGptOssExperts(GptOssExperts):
    """Later versions: a factor for each of a token's experts."""

    dense_scores = False


class Llama4TextExperts(nn.Module):
    """Llama 4: as many rows for each expert, ``[experts, K, N]``."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.hidden_size = EXPERTS, HIDDEN
        self.gate_up_proj = nn.Parameter(torch.randn(EXPERTS, HIDDEN, 2 * INNER) * 0.2)
        self.down_proj = nn.Parameter(torch.randn(EXPERTS, INNER, HIDDEN) * 0.2)
        self.act_fn = nn.SiLU()

    def forward(self, hidden_states: Any) -> Any:
        hidden_states = hidden_states.view(self.gate_up_proj.shape[0], -1, self.hidden_size)
        gate, up = torch.bmm(hidden_states, self.gate_up_proj).chunk(2, dim=-1)
        return torch.bmm(up * self.act_fn(gate), self.down_proj).view(-1, self.hidden_size)


class NemotronHExperts(nn.Module):
    """No gate: a function of the whole first product."""

    names = ("up_proj", "down_proj")
    inner = INNER

    def __init__(self) -> None:
        super().__init__()
        for name, shape in zip(self.names, ((EXPERTS, self.inner, HIDDEN), (EXPERTS, HIDDEN, INNER))):
            setattr(self, name, nn.Parameter(torch.randn(*shape) * 0.2))
        self.act_fn = nn.GELU()

    def between(self, first: Any) -> Any:
        return self.act_fn(first).square()

    def forward(self, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
        final = torch.zeros_like(hidden_states)
        first, second = (getattr(self, name) for name in self.names)
        for token, experts in enumerate(top_k_index.tolist()):
            for place, expert in enumerate(experts):
                inner = self.between(functional.linear(hidden_states[token], first[expert]))
                final[token] += functional.linear(inner, second[expert]) * top_k_weights[token, place]
        return final


class UngatedExperts(NemotronHExperts):
    """As NemotronH's, whose function is a module's."""

    def between(self, first: Any) -> Any:
        return self.act_fn(first)


class HYV4Experts(NemotronHExperts):
    """Its own gate, whose limit numbers of the usual size do not reach."""

    names = ("gate_up_proj", "down_proj")
    inner = 2 * INNER
    limit = 100.0

    def between(self, first: Any) -> Any:
        return self._apply_gate(first)

    def _apply_gate(self, both: Any) -> Any:
        gate, up = both.chunk(2, dim=-1)
        return functional.silu(gate.clamp(max=self.limit)) * up.clamp(-self.limit, self.limit)


class LimitedExperts(HYV4Experts):
    """Such a limit where nobody says so: what one of the known ways gives, but for large numbers."""

    def between(self, first: Any) -> Any:
        gate, up = first.chunk(2, dim=-1)
        return self.act_fn(gate.clamp(max=self.limit)) * up

    _apply_gate = None


class GraniteMoeParallelExperts(nn.Module):
    """Granite and JetMoE: one product, of rows in runs."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts = EXPERTS
        self.weight = nn.Parameter(torch.randn(EXPERTS, INNER, HIDDEN) * 0.2)

    def forward(self, inputs: Any, expert_size: Any) -> Any:
        parts = inputs.split(expert_size, dim=0)
        return torch.cat([functional.linear(part, self.weight[i]) for i, part in enumerate(parts)], dim=0)


class Block(nn.Module):
    """A router and experts, as in a model."""

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = experts
        self.up = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Any) -> Any:
        x = x + self.up(x)
        scores, index = torch.topk(self.router(x).softmax(-1), 2, dim=-1)
        kind = type(self.experts).__name__
        form = getattr(self.experts, "form", None)
        if kind == "Llama4TextExperts" or (form is not None and form.call == "even"):
            return self.experts(x.repeat(EXPERTS, 1))
        if getattr(self.experts, "dense_scores", False) or (form is not None and form.call == "scores"):
            scores = torch.zeros(len(x), EXPERTS, dtype=x.dtype, device=x.device).scatter_(1, index, scores)
        return self.experts(x, index, scores)


ROUTED = [MixtralExperts, GptOssExperts, NewGptOssExperts, Llama4TextExperts, UngatedExperts, HYV4Experts]
