"""The papers' proofs as programs: models with set weights that solve MQAR, layers of BaseConv that compute what a proof says, bounds."""
