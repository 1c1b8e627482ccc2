"""What adding up gradients over replicas costs: the compiled training step with it and without, in turn."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from core.engine.models import ReplicatedModel
from core.engine.pipeline import Batches

_MOST_EXECUTIONS = 102
"""Executions that a measurement takes at most, those that trace the graphs included."""
_LEAST_ROUNDS = 5
_BUDGET_S = 6.0

_Function = Callable[[Any], dict[str, tf.Tensor]]


def measure(model: ReplicatedModel, batches: Batches, stop: threading.Event) -> dict[str, Any] | None:
    """Times a trained model's step as it is, and with the gradient reduction left out.

    Both are timed in the same process on the same layout, one execution of each after the other, so that
    whatever else the machine does falls on both alike. The model is afterwards as it was.

    Args:
        model: One that ``fit`` has trained.
        batches: Training batches.
        stop: Ends the measurement early.

    Returns:
        ``step_s`` and ``step_without_s``, the medians of the step's duration with and without all-reduce,
        and ``steps``, how many of each were timed. None on one replica, which has nothing to reduce, and
        where `stop` came before enough was timed.
    """
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return None
    with kept(model):
        model.make_train_function()  # a resumed run may have had no epoch left to train
        with_reduction: _Function = model.train_function
        model.make_train_function(force=True)
        without_reduction: _Function = model.train_function
        model.train_function = with_reduction
        iterator = iter(batches.dataset)
        _duration_s(model, with_reduction, iterator)
        with no_reduction(model):  # where the graph is traced
            _duration_s(model, without_reduction, iterator)
        timed: list[tuple[float, float]] = []
        began = time.perf_counter()
        while len(timed) < _MOST_EXECUTIONS // 2 - 1:
            if stop.is_set():
                return None
            if len(timed) >= _LEAST_ROUNDS and time.perf_counter() - began > _BUDGET_S:
                break
            timed.append(
                (
                    _duration_s(model, with_reduction, iterator),
                    _duration_s(model, without_reduction, iterator),
                )
            )
    steps = model.steps_per_execution
    step_s, step_without_s = (statistics.median(durations) / steps for durations in zip(*timed, strict=True))
    return {"step_s": step_s, "step_without_s": step_without_s, "steps": len(timed) * steps}


def _duration_s(model: ReplicatedModel, function: _Function, iterator: Any) -> float:
    """Seconds that one execution takes until its results are on the host."""
    began = time.perf_counter()
    function(iterator)
    np.asarray(model.taken)
    return time.perf_counter() - began


@contextmanager
def no_reduction(model: ReplicatedModel) -> Iterator[None]:
    """Lets each replica update its copy of the weights with what it hands in, while a step is traced.

    Keras's optimizer reduces them in ``_all_reduce_sum_gradients`` and nowhere else
    (``keras/src/backend/tensorflow/optimizer.py``, 3.15.1); it has no public switch for that.
    """
    model.optimizer._all_reduce_sum_gradients = list  # noqa: SLF001
    try:
        yield
    finally:
        del model.optimizer._all_reduce_sum_gradients  # noqa: SLF001


@contextmanager
def kept(model: ReplicatedModel) -> Iterator[None]:
    """Gives the model and its optimizer their values back, the same on all replicas.

    Meanwhile no execution is cut short by the end of an epoch.
    """
    epoch = model.steps
    model.steps = (_MOST_EXECUTIONS * model.steps_per_execution, epoch[1])
    variables = [*model.variables, *model.optimizer.variables]
    before = [variable.numpy() for variable in variables]
    try:
        yield
    finally:
        model.steps = epoch
        with model.distribute_strategy.scope():
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)
