"""RWKV-5's time mixing: constant decays of key channels and a bonus for the present token."""
