"""Which families of the installed transformers are not among those of tests/models/families.py, and which of those it lacks.

    python tests/benchmarks/new_families.py

Every `model_type` of which transformers makes a causal language model, in three groups: tested; those that mix tokens by something
else than attention, too, going by the names of their settings; all others.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from recallkit.quiet_transformers import quiet_transformers
from tests.models.families import FAMILIES

RECURRENT = (
    "conv_kernel",
    "conv_size",
    "conv_l_cache",
    "d_conv",
    "state_size",
    "d_state",
    "linear_num",
    "linear_head",
    "cca_time",
    "lru_width",
)
"""Parts of names of settings that a model with a convolution or a recurrence has."""


def causal_model_types() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def is_recurrent(model_type: str) -> bool:
    """Whether its default configuration has such a setting; False where it has no default configuration."""
    from transformers import CONFIG_MAPPING

    try:
        with quiet_transformers():
            settings = CONFIG_MAPPING[model_type]().get_text_config().to_dict()
    except Exception:  # noqa: BLE001 - some need arguments, or packages
        return False
    return any(part in name.lower() for name in settings for part in RECURRENT)


def main() -> None:
    known = causal_model_types()
    new = [name for name in known if name not in FAMILIES]
    recurrent = [name for name in new if is_recurrent(name)]
    print(f"tested ({len(set(known) & set(FAMILIES))} of {len(known)}):", *sorted(set(known) & set(FAMILIES)))
    print(f"\nnot tested, with a convolution or a recurrence ({len(recurrent)}):", *recurrent)
    print(f"\nnot tested, others ({len(new) - len(recurrent)}):", *(name for name in new if name not in recurrent))
    if gone := sorted(set(FAMILIES) - set(known)):
        print(f"\ntested, but not in this transformers ({len(gone)}):", *gone)


if __name__ == "__main__":
    main()
