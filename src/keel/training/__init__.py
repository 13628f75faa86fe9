"""The training loop: plan, steps, optimizers, checkpoints, distribution. It does not know language."""
