"""Asks trained models: about all newswires of a split, or about one, and which of its words mattered.

Words are weighed by integrated gradients: Sundararajan, Taly and Yan, "Axiomatic Attribution for Deep
Networks" (ICML 2017). On the straight way from an empty newswire's embedding x' (all padding) to the
newswire's x, the gradient of the class's probability F is averaged and multiplied by x - x'. The products,
summed over a word's embedding, add up to F(x) - F(x') (completeness), here up to the error of the midpoint
rule. Unlike leaving out one word at a time, this still tells words apart when the model is sure of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from core.corpus import PADDING
from core.engine.callbacks import Outbox
from core.engine.models import ReplicatedModel
from core.errors import TrainingError

_IDS_AT_ONCE = 40_000
"""Word ids that pass through a model together."""
_DIGITS = 7
STEPS = 128
"""Points of the way at which integrated gradients look."""


def predict(model: keras.Model, x: NDArray[np.int32], outbox: Outbox) -> NDArray[np.float32]:
    """The model's probabilities.

    Args:
        model: A trained model.
        x: Padded sequences, shape (n, max_len).
        outbox: Takes how many are done.

    Returns:
        Float32, shape (n, classes).
    """
    at_once = _rows_at_once(x.shape[1])
    parts = []
    for start in range(0, len(x), at_once):
        parts.append(np.asarray(model(x[start : start + at_once], training=False), np.float32))
        outbox.progress = {"done": min(start + at_once, len(x)), "of": len(x)}
    return np.concatenate(parts)


def classify(model: ReplicatedModel, ids: Sequence[int], max_len: int) -> dict[str, Any]:
    """What the model makes of one newswire, and of each of its words.

    Args:
        model: A trained model.
        ids: Word ids, at most `max_len`.
        max_len: Of the model.

    Returns:
        JSON values: ``probabilities`` of all classes; the likeliest ``class``; the ``attributions`` of the
        ids to its probability, in order; ``empty``, its probability for a newswire without words.

    Raises:
        TrainingError: The model's weights or answers are not finite.
    """
    x = np.full((1, max_len), PADDING, np.int32)
    x[0, max_len - len(ids) :] = ids
    probabilities = np.asarray(model(x, training=False), np.float64)[0]
    if not np.isfinite(probabilities).all():
        raise TrainingError(
            "The model's answer is not a number: its training has diverged.",
            "Choose the other of best and last, or a run with a smaller learning rate.",
        )
    likeliest = int(probabilities.argmax())
    attributions, empty = integrated_gradients(model, x[0], likeliest)
    return {
        "probabilities": probabilities.tolist(),
        "class": likeliest,
        "attributions": [round(value, _DIGITS) for value in attributions[max_len - len(ids) :].tolist()],
        "empty": empty,
    }


def integrated_gradients(
    model: ReplicatedModel, x: NDArray[np.int32], target: int, steps: int = STEPS
) -> tuple[NDArray[np.float64], float]:
    """How much each word id contributes to a class's probability, against an empty newswire.

    Args:
        model: A trained model; its first layer behind the input is the embedding.
        x: A padded sequence, shape (max_len,).
        target: The class.
        steps: Points of the way.

    Returns:
        The contributions, shape (max_len,), 0 for padding; and the probability for an empty newswire.
    """
    embedding, *rest = model.layers[1:]

    def probability(embedded: tf.Tensor) -> tf.Tensor:
        for layer in rest:
            embedded = layer(embedded, training=False)
        return embedded[:, target]

    end = embedding(x[None])
    start = embedding(np.full_like(x, PADDING)[None])
    places = (np.arange(steps) + 0.5) / steps
    total = np.zeros(end.shape[1:], np.float64)
    at_once = _rows_at_once(len(x))
    for begin in range(0, steps, at_once):
        place = tf.cast(places[begin : begin + at_once], end.dtype)[:, None, None]
        points = start + place * (end - start)
        with tf.GradientTape() as tape:
            tape.watch(points)
            value = probability(points)
        total += np.asarray(tape.gradient(value, points), np.float64).sum(axis=0)
    way = np.asarray(end - start, np.float64)[0]
    return (way * total / steps).sum(axis=-1), float(probability(start)[0])


def _rows_at_once(max_len: int) -> int:
    return max(_IDS_AT_ONCE // max_len, 1)
