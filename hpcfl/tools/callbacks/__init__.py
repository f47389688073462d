"""Callbacks that come with hpcfl: ``callbacks: [tensorboard]``, ``[wandb]``, ``[mlflow]``."""
