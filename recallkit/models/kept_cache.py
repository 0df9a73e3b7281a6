"""A cache of transformers whose layers of full attention are compressed between chunks; the others
are transformers' own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.cache_utils import CacheLayerMixin, DynamicCache, DynamicLayer

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.models.compression import Compression


class KeptLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of the `num_read` ids, or of those that are left of them.

    What is left takes the places before the ids that follow, so that masks show all of it; rotated
    keys have the positions of the text.
    """

    num_read = 0

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Appends keys and values (b, h, t, d) of the next ids; returns all that they see."""
        self.num_read += key_states.shape[-2]
        extended: tuple[Tensor, Tensor] = super().update(key_states, value_states, *args, **kwargs)
        return extended

    def get_seq_length(self) -> int:
        """Ids that were read."""
        return self.num_read

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that the next ids see, themselves included, and the place of the first."""
        left = int(super().get_seq_length())
        return left + query_length, self.num_read - left


class RecurrentCache(DynamicCache):  # type: ignore[misc]
    """A cache of recurrent layers alone: the masks of attention, which transformers makes all the
    same, mask nothing."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Keys before the next ids."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Keys that the next ids see, and the place of the first."""
        return query_length, 0


def recurrent_cache(config: Any) -> RecurrentCache | None:
    """An empty cache for a model of this configuration; None where it has attention, or does not
    say."""
    cache = RecurrentCache(config=config)
    has_attention = any(isinstance(layer, CacheLayerMixin) for layer in cache.layers)
    return None if has_attention or not cache.layers else cache


def kept_cache(config: Any) -> DynamicCache:
    """An empty cache for a model of this configuration."""
    cache = recurrent_cache(config) or DynamicCache(config=config)
    if cache.layers:
        for place, layer in enumerate(cache.layers):
            if type(layer) is DynamicLayer:
                cache.layers[place] = KeptLayer()
    else:
        cache.layer_class_to_replicate = KeptLayer
    return cache


def compress_cache(cache: Any, compression: Compression) -> None:
    """Compresses the keys and values of full attention, and the recurrent states, in place."""
    for layer in getattr(cache, "layers", ()):
        if isinstance(layer, KeptLayer) and layer.is_initialized:
            layer.keys, layer.values = compression.keep(layer.keys, layer.values, layer.num_read)
        for place, state in (getattr(layer, "recurrent_states", None) or {}).items():
            if state is not None:
                layer.recurrent_states[place] = compression.round(state)
    # RWKV-4: (b, d, layers), of which the third and fourth are the sums of its recurrence.
    if isinstance(cache, list):
        for place in (2, 3):
            by_layer = cache[place].transpose(1, 2).unsqueeze(-1)
            cache[place] = compression.round(by_layer).squeeze(-1).transpose(1, 2)
