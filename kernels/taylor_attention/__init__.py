"""Based's linear attention: softmax attention's exponential replaced by its second-order Taylor
expansion."""
