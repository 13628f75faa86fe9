"""Network components without a paper of their own: attention, blocks, recurrent layers, pooling, CRF."""
