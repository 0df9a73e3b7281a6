"""Linear attention whose states fade or are overwritten: retention, Mamba-2, GLA, DeltaNet and its
gated forms, RWKV-5 and RWKV-7."""
