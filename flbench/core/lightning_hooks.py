"""The methods of a LightningModule that a client's training calls, and those that it refuses.

A Trainer also loads data, validates and saves checkpoints. Here the suite, the round loop and the
run do that, so a hook of theirs would be ignored; it is refused by name. Every public method of
LightningModule is in exactly one of the tables below.
"""

from __future__ import annotations

from flbench.core.client_module import ClientModule
from flbench.errors import PluginError

ALWAYS = "configure_optimizers", "training_step", "forward"
"""Called for every module."""
HOOKS = (
    "on_fit_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_before_batch_transfer",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
    "on_train_batch_start",
    "optimizer_step",
    "on_before_zero_grad",
    "optimizer_zero_grad",
    "on_before_backward",
    "backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
    "clip_gradients",
    "lr_scheduler_step",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_end",
    "on_fit_end",
)
"""Called, as a Trainer does, for a module that overrides one of them."""
DATA = "the suite brings the data, and the hook `partition` divides them"
EVALUATION = "write `predict`, the hook `personalise` or the hook `metrics`"
STATE = "what is kept between rounds is in memories of the hook `setup`, and is saved with the run"
BUILD = "build the module in its __init__, from the hook `client_module`"
EPOCH = "write on_train_epoch_start or on_train_epoch_end"
BATCH = "write on_train_batch_start or on_train_batch_end"
EVALUATED = "validation", "test", "predict"
REFUSED = {
    "prepare_data": DATA,
    "setup": BUILD,
    "teardown": "write on_fit_end",
    "configure_model": BUILD,
    "configure_sharded_model": BUILD,
    "configure_callbacks": "write the hooks of the callback in the module",
    "train_dataloader": DATA,
    **{f"{kind}_dataloader": DATA for kind in ("val", "test", "predict")},
    **{f"{kind}_step": EVALUATION for kind in EVALUATED},
    **{
        f"on_{kind}_{moment}": EVALUATION
        for kind in EVALUATED
        for moment in (
            *("start", "end", "epoch_start", "epoch_end", "batch_start", "batch_end"),
            *("model_eval", "model_train", "model_zero_grad"),
        )
    },
    "on_save_checkpoint": STATE,
    "on_load_checkpoint": STATE,
    # What Lightning 1 called.
    "training_step_end": "return the loss from training_step",
    "training_epoch_end": EPOCH,
    **{f"{kind}_{end}_end": EVALUATION for kind in EVALUATED for end in ("step", "epoch")},
    **{f"on_epoch_{moment}": EPOCH for moment in ("start", "end")},
    **{f"on_batch_{moment}": BATCH for moment in ("start", "end")},
}
"""What nothing calls here, and what to use."""
TOOLS = frozenset(
    (
        *("all_gather", "freeze", "unfreeze", "print", "log", "log_dict"),
        *("lr_schedulers", "manual_backward", "optimizers"),
        *("toggle_optimizer", "toggled_optimizer", "untoggle_optimizer"),
        *("load_from_checkpoint", "remove_ignored_hparams", "save_hyperparameters"),
        *("to_onnx", "to_tensorrt", "to_torchscript"),
        *("cpu", "cuda", "double", "float", "half", "to", "type"),
    )
)
"""What a module calls itself."""


def overrides(module: ClientModule, name: str) -> bool:
    """Whether a module has an attribute other than that of ClientModule."""
    missing = object()
    usual = getattr(ClientModule, name, missing)
    return name in vars(module) or getattr(type(module), name, missing) is not usual


def hooks_of(module: ClientModule) -> frozenset[str]:
    """The hooks of `HOOKS` that a module overrides.

    Raises:
        PluginError: it overrides one that nothing calls.
    """
    for name, use in REFUSED.items():
        if overrides(module, name):
            who = module.provided_by or type(module).__name__
            raise PluginError(f"{who}: {name} is never called in local training: {use}")
    return frozenset(name for name in HOOKS if overrides(module, name))
