"""Feature maps of linear attention: phi(x) such that phi(q).phi(k) replaces exp(q.k/sqrt(f))."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from recallkit.kernels.taylor_attention.state import (
    num_taylor_features,
    taylor_features,
    taylor_scores,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class FeatureMap(nn.Module):
    """A map of vectors of `feature_dim` (f) entries to `num_features` ones; this one divides by
    f^(1/4) alone (`identity`).

    phi(q).phi(k) = q.k/sqrt(f), linear attention without a kernel (arXiv 2006.16236, section 3.2,
    phi(x) = x; the scale is that of attention). Its weights have both signs, so that their sum may
    be zero: it cannot be normalised.
    """

    has_positive_scores: ClassVar[bool] = False
    """Whether phi(q).phi(k) >= 0, so that weights can be divided by their sum."""
    needs_positions: ClassVar[bool] = False
    scores_take_features: ClassVar[bool] = True
    """Whether `scores` multiplies features; else it computes scores without them."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.num_features = feature_dim
        self.root = math.sqrt(math.sqrt(feature_dim))

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """x: (..., f) in float32 or float64; positions: int64, as the leading axes of x, 1 last ->
        (..., num_features)."""
        return x / self.root

    def reference(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Features with the same products, written like the equation; their number and order may
        differ."""
        features: Tensor = self(x, positions)
        return features

    def scores(self, q: Tensor, k: Tensor, positions: Tensor | None = None) -> Tensor:
        """q, k: (..., t, f) -> phi(q_i).phi(k_j) for all pairs, (..., t, t)."""
        products: Tensor = self(q, positions) @ self(k, positions).transpose(-1, -2)
        return products

    def flops(self) -> int:
        """Operations of one vector's features."""
        return self.num_features

    def score_flops(self) -> int:
        """Operations of one pair's score, given the features."""
        return 2 * self.num_features


class Taylor(FeatureMap):
    """The second-order Taylor expansion of exp(s) (Based, arXiv 2402.18668, section 4.1):
    phi(q).phi(k) = 1 + s + s^2/2, s = q.k/sqrt(f).

    phi(x) = [1, x/f^(1/4), (x x^T)/sqrt(2 f)]. x_i x_j is kept once, times sqrt(2): 1 + f +
    f(f+1)/2 features (153 where f = 16) in place of 1 + f + f^2 (273). A score is never below 1/2.
    """

    has_positive_scores = True
    scores_take_features = False

    def __init__(self, feature_dim: int) -> None:
        super().__init__(feature_dim)
        self.num_features = num_taylor_features(feature_dim)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return taylor_features(x)

    def reference(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """All f^2 products."""
        products = (x[..., :, None] * x[..., None, :]).flatten(start_dim=-2)
        return torch.cat(
            [
                torch.ones_like(x[..., :1]),
                x / self.root,
                products / math.sqrt(2 * self.feature_dim),
            ],
            dim=-1,
        )

    def scores(self, q: Tensor, k: Tensor, positions: Tensor | None = None) -> Tensor:
        """From s itself: f products per pair instead of the number of features."""
        return taylor_scores(q, k)

    def flops(self) -> int:
        f = self.feature_dim
        return 2 * f + 2 * f + f * (f - 1) // 2

    def score_flops(self) -> int:
        """See `FeatureMap.score_flops`; no features are needed."""
        return 2 * self.feature_dim + 4


class Elementwise(FeatureMap):
    """phi(x) = f(x), entry by entry, of a function f that is never negative, in `operations` for
    each entry."""

    has_positive_scores = True

    def __init__(
        self,
        feature_dim: int,
        function: Callable[[Tensor], Tensor],
        operations: int = 1,
    ) -> None:
        super().__init__(feature_dim)
        self.function, self.operations = function, operations

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return self.function(x)

    def flops(self) -> int:
        return self.operations * self.feature_dim


class CosFormer(FeatureMap):
    """cosFormer (arXiv 2202.08791, equation 10): phi(q_i).phi(k_j) = relu(q_i).relu(k_j) cos(pi (i
    - j) / (2 M)).

    phi(x_i) = [relu(x) cos(pi i/(2 M)), relu(x) sin(pi i/(2 M))] with M = `max_length`, so that no
    weight of a sequence is negative.
    """

    has_positive_scores = True
    needs_positions = True

    def __init__(self, feature_dim: int, max_length: int) -> None:
        super().__init__(feature_dim)
        self.num_features = 2 * feature_dim
        self.max_length = max_length

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        assert positions is not None
        angles = positions.to(x.dtype) * (math.pi / 2 / self.max_length)
        positive = x.relu()
        return torch.cat([positive * angles.cos(), positive * angles.sin()], dim=-1)

    def flops(self) -> int:
        return 3 * self.feature_dim


class Performer(FeatureMap):
    """FAVOR+ (Performer, arXiv 2009.14794, section 2.3, lemma 1): E phi(q).phi(k) =
    exp(q.k/sqrt(f)).

    phi(x) = exp(W x' - |x'|^2/2)/sqrt(m), x' = x/f^(1/4), W: (m, f) whose rows are normally
    distributed and orthogonal in blocks of f; 1e-6 is added to each exponential, as the authors'
    code does, so that none is zero. W is drawn once, from a seed, and is a buffer of the
    checkpoint. The authors' subtraction of the largest exponent is left out: over keys it would not
    be causal.
    """

    has_positive_scores = True
    STABILISER = 1e-6

    projection: Tensor

    def __init__(self, feature_dim: int, num_features: int | None = None, seed: int = 0) -> None:
        super().__init__(feature_dim)
        self.num_features = num_features or max(1, round(feature_dim * math.log(feature_dim)))
        self.register_buffer("projection", _orthogonal_normal(self.num_features, feature_dim, seed))

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        x = x / self.root
        exponents = x @ self.projection.to(x.dtype).T - x.square().sum(dim=-1, keepdim=True) / 2
        return (exponents.exp() + self.STABILISER) / math.sqrt(self.num_features)

    def flops(self) -> int:
        return self.num_features * (2 * self.feature_dim + 3) + 3 * self.feature_dim


def _orthogonal_normal(rows: int, columns: int, seed: int) -> Tensor:
    """Rows orthogonal in blocks of `columns`, with the lengths of normal vectors (arXiv 2009.14794,
    section 2.4)."""
    generator = torch.Generator().manual_seed(seed)
    blocks = []
    for _ in range(math.ceil(rows / columns)):
        q, r = torch.linalg.qr(torch.randn(columns, columns, generator=generator))
        blocks.append((q * r.diagonal().sign()).T)
    lengths = torch.linalg.vector_norm(
        torch.randn(rows, columns, generator=generator),
        dim=1,
        keepdim=True,
    )
    vectors: Tensor = torch.cat(blocks)[:rows] * lengths
    return vectors


def _one_plus_elu(x: Tensor) -> Tensor:
    return 1 + nn.functional.elu(x)


FEATURE_MAPS: dict[str, Callable[..., FeatureMap]] = {
    "taylor": Taylor,
    # The map of cosFormer without its weights (arXiv 2202.08791, section 3.2).
    "relu": partial(Elementwise, function=torch.relu),
    # Linear Transformers (arXiv 2006.16236, equation 7): an exponential, a sum and a comparison.
    "elu": partial(Elementwise, function=_one_plus_elu, operations=3),
    # One of the maps that Based compares (arXiv 2402.18668, figure 3).
    "square": partial(Elementwise, function=torch.square),
    "identity": FeatureMap,
    "cosformer": CosFormer,
    "performer": Performer,
}


def make_feature_map(
    name: str,
    feature_dim: int,
    *,
    max_length: int | None = None,
    num_features: int | None = None,
) -> FeatureMap:
    """A map by its name. `max_length` is for cosFormer only, `num_features` (default f ln f) for
    Performer. Raises ValueError."""
    if name not in FEATURE_MAPS:
        raise ValueError(f"feature map {name!r} is not one of {', '.join(FEATURE_MAPS)}")
    if feature_dim < 1:
        raise ValueError(f"feature_dim {feature_dim} is not positive")
    if num_features is not None and (name != "performer" or num_features < 1):
        problem = "it is the positive number of Performer's random features"
        raise ValueError(f"num_features {num_features} with {name}: {problem}")
    if name == "cosformer":
        if max_length is None or max_length < 1:
            raise ValueError(
                "cosformer needs max_length, the longest sequence that its weights are defined for",
            )
        return CosFormer(feature_dim, max_length)
    if name == "performer":
        return Performer(feature_dim, num_features)
    return FEATURE_MAPS[name](feature_dim)
