"""`keel layers`: the weights of scalar mixes (`layer_weights`) and probing curves (`layer_probing`).

Probing reads the vectors of all layers (`layer_features`), fits a `linear_probe` on each and returns `probe_curves`.
"""
